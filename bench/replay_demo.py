"""Replay's predictions of `examples/demo.py` with other settings, beside engines that ran with them on this CPU.

    python -m bench.replay_demo OUT [--repeats 2] [--prefix CMD]    # records what is missing in OUT, then the table

Each cell is recorded several times, in rounds, on one interpreter that has imported vLLM. All are predicted from the
first recording with the demo's own settings; offload takes its times from a recording with another size of host memory,
since what copies cost is not in one without a connector. Its engine copies with the Python worker of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DEMO, TESTS = ROOT / "examples" / "demo.py", ROOT / "tests" / "vllm" / "offload"
MIB = 1 << 20
PINS = {"ttl_s": 2.0, "threshold_s": 2.0, "unseen_tool_s": 0.1}


class Cell(NamedTuple):
    """A measured engine, and the same as changes of the demo's settings.

    Attributes:
        engine: Arguments of vLLM that differ from the demo's.
        changes: What `kvtrace replay --set` takes.
        time_from: Name of the cell that times are taken from; None for the base's own.
    """

    engine: dict[str, Any]
    changes: tuple[str, ...] = ()
    time_from: str | None = None


def _offload(mib: int) -> dict[str, Any]:
    extra = {"spec_name": "CpuSpec", "spec_module_path": "cpu_spec", "cpu_bytes_to_use": mib * MIB}
    return {
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra,
        },
    }  # fmt: skip


def _pinned() -> dict[str, Any]:
    scheduler = "kvtrace.lab.ttl_pin.TTLPinScheduler"
    return {"scheduler_cls": scheduler, "additional_config": {"kvtrace_ttl_pin": PINS}}


BASE, TIMES = "nothing (the check)", "(times of offload)"
CELLS = {
    BASE: Cell({}),
    TIMES: Cell(_offload(4)),
    "`num_gpu_blocks` 24": Cell({"num_gpu_blocks_override": 24, "max_model_len": 736}, ("num_gpu_blocks=24",)),
    "`num_gpu_blocks` 96": Cell({"num_gpu_blocks_override": 96}, ("num_gpu_blocks=96",)),
    "`max_num_batched_tokens` 128": Cell({"max_num_batched_tokens": 128}, ("max_num_batched_tokens=128",)),
    "`max_num_seqs` 3": Cell({"max_num_seqs": 3}, ("max_num_seqs=3",)),
    "`max_num_seqs` 8": Cell({"max_num_seqs": 8}, ("max_num_seqs=8",)),
    "`enable_prefix_caching` false": Cell({"enable_prefix_caching": False}, ("enable_prefix_caching=false",)),
    "`block_size` 64, 24 blocks": Cell(
        {"block_size": 64, "num_gpu_blocks_override": 24}, ("block_size=64", "num_gpu_blocks=24")
    ),
    "`policy` ttl-pin": Cell(_pinned(), ("policy=ttl-pin", *(f"{name}={value}" for name, value in PINS.items()))),
    "`cpu_bytes_to_use` 8 MiB": Cell(_offload(8), ("cpu_bytes_to_use=8MiB",), TIMES),
}


def run_demo(options: dict[str, Any]) -> None:
    """Run the demo with other arguments of vLLM. Each turn says that a tool call ends it, for the pins."""
    import vllm

    engine, parameters = vllm.LLM, vllm.SamplingParams

    def tagged(**given: Any) -> Any:
        return parameters(**{**given, "extra_args": {**given["extra_args"], "kvtrace_tool": "tool"}})

    def changed(*model: Any, **given: Any) -> Any:
        return engine(*model, **{**given, **options})

    vllm.LLM, vllm.SamplingParams = changed, tagged
    runpy.run_path(str(DEMO), run_name="__main__")


def record(out: Path, name: str, number: int, python: Sequence[str], prefix: Sequence[str]) -> Path:
    """The trace of a cell's run; recorded unless it is there."""
    run = out / f"{list(CELLS).index(name)}-{number}"
    trace = run / "trace.duckdb"
    if trace.exists():
        return trace
    environment = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
        "KVTRACE_TEST_SPEC_LOG": os.devnull, **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), str(ROOT), os.environ.get("PYTHONPATH")])),
    }  # fmt: skip
    kvtrace = [sys.executable, "-m", "kvtrace"]
    script = [*python, str(Path(__file__)), "--engine", json.dumps(CELLS[name].engine)]
    for command in (
        [*prefix, *kvtrace, "record", "--force", "-o", str(run), "--", *script], [*kvtrace, "ingest", str(run)],
    ):  # fmt: skip
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
    print(f"recorded {name}, round {number}", file=sys.stderr, flush=True)
    return trace


def predict(traces: dict[str, list[Path]]) -> dict[str, Any]:
    """Outcomes of all cells, predicted from the first recording with the demo's settings."""
    from kvtrace.lab.replay.session import FITTED, Session

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in dict.fromkeys(cell.time_from for cell in CELLS.values()):
            names = [name for name, cell in CELLS.items() if cell.changes and cell.time_from == source]
            session = Session(traces[BASE][0], Path(folder), time_from=traces[source][0] if source else None)
            results = session.run([session.what_if(name, CELLS[name].changes) for name in names])
            if results["failed"]:
                sys.exit(str(results["failed"]))
            found |= {name: results["outcomes"][name] for name in names}
            found.setdefault(BASE, results["outcomes"][FITTED])
            print(f"stalls left out: {session.own_model.stalls:.0%} of the steps' time", file=sys.stderr)
    return found


def table(predicted: dict[str, Any], measured: dict[str, list[Any]]) -> list[str]:
    """Rows of Markdown: predicted / each measured; the error is against the mean of those."""
    titles = ("steps", "hit share, %", "evictions", "preemptions", "mean request, ms", "mean job, ms", "p50 TTFT, ms")
    rows = ["| what if | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for name, mine in predicted.items():
        real = measured[name]
        cells = [f"{mine.steps} / {_each(real, 'steps')}"]
        cells.append(
            f"{mine.hit_share:.1%} / ".replace("%", "") + ", ".join(f"{100 * each.hit_share:.1f}" for each in real)
        )
        cells += [f"{getattr(mine, each)} / {_each(real, each)}" for each in ("evictions", "preemptions")]
        for key, place in (("request", 0), ("job", 0), ("ttft", 1)):
            values = [each.latency_ms[key][place] for each in real]
            mean, told = sum(values) / len(values), mine.latency_ms[key][place]
            cells.append(
                f"{told:,.0f} / " + ", ".join(f"{each:,.0f}" for each in values) + f" ({told / mean - 1:+.0%})"
            )
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def _each(outcomes: Sequence[Any], name: str) -> str:
    return ", ".join(f"{each}" for each in dict.fromkeys(getattr(outcome, name) for outcome in outcomes))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--prefix", default="", help="words before each recording, such as `nice -n -5`")
    options = parser.parse_args(arguments)
    from kvtrace.lab.replay import check
    from kvtrace.lab.warm import started

    traces: dict[str, list[Path]] = {name: [] for name in CELLS}
    with started() as python:
        for number in range(options.repeats):
            for name in CELLS:
                traces[name].append(record(options.out, name, number, python, shlex.split(options.prefix)))
    predicted = predict(traces)
    measured = {name: [check.outcome(trace) for trace in traces[name]] for name in predicted}
    print("\n".join(table(predicted, measured)))


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        run_demo(json.loads(sys.argv[2]))
    else:
        main(sys.argv[1:])
