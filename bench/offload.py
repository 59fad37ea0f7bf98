"""On a GPU: recompute an evicted prefix, or fetch it from the host? Does kvtrace's ledger account for the difference?

    python bench/offload.py MODEL_DIR [--kinds none,simple,offloading[,lmcache,lmcache-mp]] [--passes 3] [--keep DIR]

The prompts do not fit into the GPU's pool (4,096 blocks) together, and are sent several times: without a connector,
with SimpleCPUOffloadConnector, OffloadingConnector and LMCache (if asked for; in the engine, or as a server), 16 GiB
each, every engine in a process of its own, once untraced and once under `kvtrace record`. Prints the seconds of each
pass and the tokens that came from a cache; then, from the recording, where the second pass's time went and that of all
passes behind the first, in the mean, each in two ways. Priced: each step's tokens at the time a token of the run (the
median of its steps of at least half the largest's tokens, whatever their pass: with a connector, only the first has
such), but no step below the median of those that only decode; the transfers' bytes at their own bandwidth, or, of loads
that only the host timed and that others overlap, the time in which no tokens were scheduled beside them; the
connector's lookups at what they took, for nothing is scheduled meanwhile. Observed: wall time of the steps with
tokens, and of those without, in which the engine waited for loads.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.lab import policies

if TYPE_CHECKING:
    import pandas as pd

GPU_BLOCKS, BLOCK_TOKENS = 4096, 16
FIGURES = '{"seconds"'
"""How the line of figures begins. vLLM and LMCache print behind it."""
POLICIES = {"none": "fcfs", "simple": "simple-cpu-offload"}
"""The lab's names of kinds that have another one here."""


def policy(kind: str, gib: int) -> policies.Policy:
    """Return the lab's policy of a kind."""
    name = POLICIES.get(kind, kind)
    return policies.policy_of({"name": name} if kind == "none" else {"name": name, "host_gib": gib})


def one(options: Any) -> None:
    """Measure in this process; a JSON object on the last line of standard output."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        options.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=options.tokens + 64 + options.outputs,
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=GPU_BLOCKS,
        gpu_memory_utilization=0.7,
        enforce_eager=not options.graphs,
        disable_log_stats=False,
        **policies.engine_arguments(policy(options.one, options.gib)),
    )
    prompts = [
        {"prompt_token_ids": [(i * 7919 + j * 31) % 3000 + 3 for j in range(options.tokens)]}
        for i in range(options.prompts)
    ]
    warm_up = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": [5 + i] * 2048} for i in range(4)], warm_up, use_tqdm=False)
    figures: dict[str, Any] = {"seconds": [], "cached_tokens": []}
    for number in range(options.passes):
        parameters = [
            SamplingParams(
                max_tokens=options.outputs,
                ignore_eos=True,
                detokenize=False,
                extra_args={"kvtrace_session": f"prompt-{i}", "kvtrace_turn": number},
            )
            for i in range(options.prompts)
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        figures["seconds"].append(round(time.perf_counter() - start, 3))
        figures["cached_tokens"].append(sum(output.num_cached_tokens or 0 for output in outputs))
    counters = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    figures["vllm"] = {name: value for name, value in counters.items() if "offload" in name or "external" in name}
    print(json.dumps(figures), flush=True)


def measure(kind: str, options: Any, run: Path | None) -> dict[str, Any]:
    sizes = ["--tokens", str(options.tokens), "--prompts", str(options.prompts), "--gib", str(options.gib)]
    sizes += ["--outputs", str(options.outputs), "--passes", str(options.passes)]
    command = [
        sys.executable,
        __file__,
        options.model,
        "--one",
        kind,
        *sizes,
        *(["--graphs"] if options.graphs else []),
    ]
    if run is not None:
        command = [
            sys.executable,
            "-m",
            "kvtrace",
            "record",
            "--force",
            "-o",
            str(run),
            "--kv-level",
            "host",
            "--",
            *command,
        ]
    environment = {**os.environ, **policies.environment(policy(kind, options.gib))}
    code, output, errors = ended(command, environment)
    reason = policies.gave_up(policy(kind, options.gib), output + errors)
    if code or reason:
        raise SystemExit(f"the {kind!r} run failed: {reason or ''}\n{output[-2000:]}\n{errors[-4000:]}")
    if run is not None:
        print("\n".join(line for line in errors.splitlines() if line.startswith("kvtrace:")), flush=True)
    found: dict[str, Any] = json.loads(next(line for line in output.splitlines() if line.startswith(FIGURES)))
    return found


def ended(command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output and standard error. Nothing of it is left running.

    LMCache's server outlives an engine that was not served, and would keep pipes open.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True)
        try:
            code = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for file in (output, errors):
            file.seek(0)
        return code, output.read(), errors.read()


def compared(recorded: list[float], untraced: list[float]) -> str:
    """Print the cost of recording, by the passes' seconds: all passes after the first do the same work."""
    alike = statistics.median(recorded[1:]) / statistics.median(untraced[1:])
    return f"all passes: {sum(recorded) / sum(untraced):.3f}, median of those behind the first: {alike:.3f}"


SPAN = """span AS (
    SELECT turn, min(queued_ns) AS start_ns, max(finished_ns) AS end_ns FROM request
    WHERE turn IS NOT NULL GROUP BY turn
)"""
"""Passes, from their first request to their last token."""

ALONE = """alone AS (
    SELECT t.*, span.turn, greatest(t.started_ns, coalesce(max(t.finished_ns) OVER (
        PARTITION BY span.turn, t.direction ORDER BY t.started_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0)) AS alone_ns
    FROM transfer t JOIN span ON t.submitted_ns BETWEEN span.start_ns AND span.end_ns
)"""
"""Transfers, and from when on each is alone on its way, or not at all: where only the host timed them, those that a
server works off together are on their way at the same time."""

ACCOUNT = f"""
WITH share AS (
    SELECT r.turn, sum(s.scheduled_tokens)::BIGINT AS computed_tokens
    FROM step_request s JOIN request r USING (request) WHERE r.turn IS NOT NULL GROUP BY r.turn
), {SPAN}, {ALONE}, moved AS (
    SELECT turn, direction, count(*) AS transfers, sum(blocks)::BIGINT AS blocks, sum(bytes)::BIGINT AS bytes,
        sum(coalesce(device_ns, reported_ns, greatest(0, finished_ns - alone_ns))) / 1e9 AS copy_s
    FROM alone GROUP BY turn, direction
), asked AS (
    SELECT span.turn, sum(c.time_ns - c.asked_ns) / 1e9 AS lookup_s
    FROM connector_lookup c JOIN span ON c.time_ns BETWEEN span.start_ns AND span.end_ns
    WHERE c.part = 0 GROUP BY span.turn
)
SELECT span.turn, (end_ns - start_ns) / 1e9 AS seconds, coalesce(computed_tokens, 0) AS computed_tokens,
    coalesce(l.transfers, 0) AS loads, coalesce(l.bytes, 0) AS load_bytes, coalesce(l.blocks, 0) AS load_blocks,
    coalesce(l.copy_s, 0) AS load_s, coalesce(s.transfers, 0) AS stores, coalesce(s.bytes, 0) AS store_bytes,
    coalesce(s.copy_s, 0) AS store_s, coalesce(lookup_s, 0) AS lookup_s
FROM span LEFT JOIN share USING (turn) LEFT JOIN asked USING (turn)
    LEFT JOIN moved l ON l.turn = span.turn AND l.direction = 'load'
    LEFT JOIN moved s ON s.turn = span.turn AND s.direction = 'store'
ORDER BY span.turn
"""

STEPS = f"""
WITH {SPAN}
SELECT span.turn, s.scheduled_tokens AS tokens, s.scheduled_tokens = s.decode_tokens AS decodes,
    s.start_ns >= span.start_ns AS begun,
    greatest(s.end_ns - s.interval_ns, span.start_ns) AS from_ns, least(s.end_ns, span.end_ns) AS until_ns,
    (until_ns - from_ns) / 1e9 AS seconds
FROM step s JOIN span ON s.end_ns > span.start_ns AND s.end_ns - s.interval_ns < span.end_ns
"""
# What a step added to the wall time lies before its end. Under asynchronous scheduling an empty step may begin before
# a pass and end in it, with all the time in which the pass's first step loads: only its part in the pass is the pass's.


HOST_TIMED = f"""
WITH {SPAN}, {ALONE}
SELECT turn, alone_ns AS from_ns, finished_ns AS until_ns FROM alone
WHERE direction = 'load' AND coalesce(device_ns, reported_ns) IS NULL AND finished_ns > alone_ns
"""

Account = dict[str, float]
"""A pass's seconds, its steps, and the seconds that the ledger accounts for, by what they are made of."""


def account(kind: str, run: Path) -> list[Account]:
    """Print what the recording says of each pass; the accounts of those behind the first."""
    import kvtrace

    done = subprocess.run(
        [sys.executable, "-m", "kvtrace", "ingest", str(run)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"ingest of the {kind!r} run failed:\n{done.stderr[-2000:]}")
    with kvtrace.open(run / "trace.duckdb") as trace:
        passes = trace.sql(ACCOUNT).to_dict("records")
        steps, host_timed = trace.sql(STEPS), trace.sql(HOST_TIMED)
        for query in ("transfers", "tier-hits", "pinned-blocks"):
            rows = trace.query(query)
            print(f"-- {kind}: {query}\n{rows.to_string(index=False) if len(rows) else '(nothing)'}", flush=True)
    for row in passes:
        print(f"-- {kind}: pass", json.dumps(row), flush=True)
    large = steps[steps.tokens >= steps.tokens.max() / 2]
    a_token = float((large.seconds / large.tokens).median())
    computing = steps[steps.tokens > 0]
    least_s = float(computing[computing.decodes].seconds.median())
    accounts = []
    for row in passes[1:]:
        mine = steps[steps.turn == row["turn"]]
        computed, waiting = mine[mine.tokens > 0], mine[mine.tokens == 0]
        priced = computed[computed.begun]
        loads = host_timed[host_timed.turn == row["turn"]]
        accounts.append(
            {
                "seconds": row["seconds"],
                "steps": len(priced),
                "computing": float((priced.tokens * a_token).clip(lower=least_s).sum()),
                "loading": waited_for(loads, waiting) if len(loads) else row["load_s"],
                "lookups": row["lookup_s"],
                "stepping": float(computed.seconds.sum()),
                "waiting": float(waiting.seconds.sum()),
            }
        )
    return accounts


def waited_for(loads: pd.DataFrame, steps: pd.DataFrame) -> float:
    """Seconds of steps in which any of the loads was on its way. Neither loads nor steps overlap among themselves."""
    spans = (zip(each.from_ns, each.until_ns, strict=True) for each in (loads, steps))
    shared = (
        min(ends) - max(begins) for begins, ends in (zip(*pair, strict=True) for pair in itertools.product(*spans))
    )
    return sum(max(0, ns) for ns in shared) / 1e9


def mean(accounts: list[Account]) -> Account:
    return {name: statistics.mean(account[name] for account in accounts) for name in accounts[0]}


def report(title: str, accounts: dict[str, Account]) -> None:
    """Print what the ledger says a pass of each kind took, and what it did take."""
    print(f"{'':12}{'':19}|{'priced, s':>32}{'':12}|{'observed, s':>24}")
    print(
        f"{title:>12} {'measured s':>11} {'steps':>6} | {'computing':>10} {'loading':>10} {'lookups':>10}"
        f" {'of it':>8}  | {'stepping':>10} {'waiting':>10} {'of it':>8}"
    )
    for kind, row in accounts.items():
        priced, observed = row["computing"] + row["loading"] + row["lookups"], row["stepping"] + row["waiting"]
        print(
            f"{kind:>12} {row['seconds']:11.3f} {row['steps']:6.0f} | {row['computing']:10.3f} {row['loading']:10.3f}"
            f" {row['lookups']:10.3f} {priced / row['seconds']:8.3f}  | {row['stepping']:10.3f} {row['waiting']:10.3f} "
            f"{observed / row['seconds']:8.3f}"
        )
    base = accounts.get("none")
    for kind, row in accounts.items():
        if base is None or row is base:
            continue
        clock = base["seconds"] - row["seconds"]
        priced = base["computing"] - row["computing"] - row["loading"] - row["lookups"]
        observed = base["stepping"] + base["waiting"] - row["stepping"] - row["waiting"]
        print(
            f"{kind}: saved {clock:.3f} s by the clock; priced {priced:.3f} s: {priced / clock:.3f}; "
            f"observed {observed:.3f} s: {observed / clock:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kinds", default="none,simple,offloading")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--prompts", type=int, default=32)
    # SimpleCPUOffload stores a step's blocks with the next step: of a request that ends with its prefill it has none.
    parser.add_argument("--outputs", type=int, default=4, help="output tokens of each prompt")
    parser.add_argument("--passes", type=int, default=3, help="more of them tell better what recording costs")
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--graphs", action="store_true", help="capture CUDA graphs; a start takes longer")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    accounts: dict[str, list[Account]] = {}
    for kind in options.kinds.split(","):
        untraced = measure(kind, options, None)
        print(f"{kind:>10} untraced", json.dumps(untraced), flush=True)
        recorded = measure(kind, options, options.keep / kind)
        print(f"{kind:>10} recorded", json.dumps(recorded), flush=True)
        print(f"{kind:>10} recorded/untraced, {compared(recorded['seconds'], untraced['seconds'])}", flush=True)
        accounts[kind] = account(kind, options.keep / kind)
    report("second pass", {kind: passes[0] for kind, passes in accounts.items()})
    report("mean of all", {kind: mean(passes) for kind, passes in accounts.items()})


if __name__ == "__main__":
    main()
