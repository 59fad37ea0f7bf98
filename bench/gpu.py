"""On a GPU: what recording costs a real engine. Untraced and recorded engines side by side, taking turns.

    python bench/gpu.py MODEL_DIR [--kinds off,layer,nsys,off] [--starts 2] [--rounds 32:9,256:5]
    python bench/gpu.py MODEL_DIR --backend TRITON_ATTN --kinds off,tile,tile+every=10
    python bench/gpu.py MODEL_DIR --backend FLASH_ATTN --kinds off@4,tile@4,off@3
    python bench/gpu.py MODEL_DIR --backend FLASHINFER --kinds off,tile,off
    python bench/gpu.py MODEL_DIR --backend TRITON_ATTN --kinds off,tile,tile^/tmp/before

Every kind's engine is started once per `--starts`, each time in another order, and stays on the GPU; in each round
each of them runs the same batch, in an order that turns, while the others wait. A kind is `off`, a level of `kvtrace
record --kv-level` with options after each +, or `nsys`: the launch under Nsight Systems alone with node-level graph
tracing. An `@` and a number behind it choose FlashAttention's version, a `^` and a folder the kvtrace that is installed
there (`pip install --target`): two versions of it in one run. FlashInfer decodes without XQA. Two engines of the same
kind differ, too: with `off` more than once, it is their mean that the others are compared with.

Prints tokens/s and the 99th percentiles of TTFT and of inter-token latency (of every token, as the engine's loop sees
it) at 32 and 256 sequences of 512 + 128 tokens (with fewer tokens more engines fit): medians, and ratios to the
untraced batches of the same round; their medians by start, too, for engines differ. A batch's 99th percentile is that
of a step or two, so that of all batches together is given as well. Then, of each kind, the steps whose results came
back latest or earliest against the untraced ones, in the median, what processors and GPU did meanwhile
(`meanwhile.py`), and the kernels that were compiled within batches, for which requests waited (vLLM says so). `--keep`
leaves the recordings there. Interrupted (Ctrl-C, `timeout -s INT`), it tells of the complete rounds.

How many of a batch's prompts are computed in its first step depends on how fast they arrive, and what they take
together on that: some percent of TTFT. With `--together` none is scheduled before all are queued, so that each batch
has the same steps; with a + behind a number of sequences (`--rounds 32:9,32+:9`) in those rounds alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

from meanwhile import Meanwhile

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
LARGEST = 256
KV_GIB = 21  # 256 sequences of 640 tokens take 20 GiB with this model, 32 a bit over 2.5
MOST_TELLING = 8
COMPILED = re.compile(r"JIT compilation during inference: ([\w.]+)")
APART = ("gaps", "steps", "compiled", "meanwhile")
"""Figures of a batch that are no numbers."""
COUNTS = {
    "stolen_ms": "ms stolen",
    "written_mb": "MB written",
    "energy_j": "J of the GPU",
    "power_capped_ms": "ms at its power limit",
    "too_hot_ms": "ms too hot",
}
"""Counts of the whole machine that are told of each kind's batches."""
Figures = dict[str, Any]


class Rounds(NamedTuple):
    """Batches of so many sequences: none of them scheduled before all are queued, or as they come."""

    sequences: int
    together: bool
    rounds: int

    def __str__(self) -> str:
        return f"{self.sequences}{'+' if self.together else ''} sequences"


def serve(options: Any) -> None:
    """Run the batches that are asked for over the connection."""
    from vllm import LLM, SamplingParams

    backend = {"attention_backend": options.backend} if options.backend else {}
    if options.flash_attention:
        backend["attention_config"] = {"flash_attn_version": options.flash_attention}
    if options.backend == "FLASHINFER":  # kernels that can be rewritten
        backend["attention_config"] = {"use_trtllm_attention": False}
    llm = LLM(
        options.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=LARGEST,
        gpu_memory_utilization=0.25,
        kv_cache_memory_bytes=options.kv_gib << 30,
        disable_log_stats=False,
        compilation_config={"cudagraph_mode": options.graphs},
        jit_monitor_verbose=True,
        **backend,
    )
    parameters = SamplingParams(max_tokens=options.output_tokens, ignore_eos=True, detokenize=False)
    gc.collect()
    gc.freeze()  # as vLLM's server does
    with Client(options.serve) as parent:
        parent.send("ready")
        while (asked := parent.recv()) is not None:
            meanwhile = Meanwhile()
            sequences, seed, together = asked
            figures = batch(llm.llm_engine, parameters, sequences, seed, options.prompt_tokens, together=together)
            parent.send({**figures, "meanwhile": meanwhile.told()})


def batch(
    engine: Any, parameters: Any, sequences: int, seed: int, prompt_tokens: int, *, together: bool = False
) -> Figures:
    """Run one batch: figures, and in ms every inter-token latency and how long after the last each step came back."""
    ids = [f"{seed}-{number}" for number in range(sequences)]
    start = time.perf_counter()
    if together:
        engine.engine_core.call_utility("pause_scheduler", "keep", False)  # nor clear its cache
    for number, request in enumerate(ids):
        prompt = [(number * 7 + position * (seed + 1) + sequences) % 500 + 3 for position in range(prompt_tokens)]
        engine.add_request(request, {"prompt_token_ids": prompt}, parameters)
    if together:
        engine.engine_core.call_utility("resume_scheduler")
    last: dict[str, float] = {}
    count = dict.fromkeys(ids, 0)
    first_ms: list[float] = []
    gaps_ms: list[float] = []
    steps_ms: list[float] = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        steps_ms.append(1e3 * (now - start))
        for output in outputs:
            request, tokens = output.request_id, len(output.outputs[0].token_ids)
            if tokens == count[request]:
                continue
            if count[request]:
                gaps_ms.append(1e3 * (now - last[request]))
            else:
                first_ms.append(1e3 * (now - start))
            count[request], last[request] = tokens, now
    elapsed = time.perf_counter() - start
    return {
        "tokens/s": sum(count.values()) / elapsed,
        "TTFT p99 ms": p99(first_ms),
        "inter-token p50 ms": statistics.median(gaps_ms),
        "inter-token p99 ms": p99(gaps_ms),
        "gaps": gaps_ms,
        "steps": [after - before for before, after in itertools.pairwise([0.0, *steps_ms])],
    }


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


class EngineError(Exception):
    """An engine ended within a batch."""


class Engine:
    """One kind's engine, in a process of its own."""

    def __init__(self, kind: str, options: Any, folder: Path, number: int) -> None:
        self.kind = kind
        address = str(folder / f"{number}.socket")
        self._listener = Listener(address)
        command = [sys.executable, __file__, options.model, "--serve", address]
        command += ["--graphs", options.graphs, "--backend", options.backend, "--kv-gib", str(options.kv_gib)]
        command += ["--prompt-tokens", str(options.prompt_tokens), "--output-tokens", str(options.output_tokens)]
        told, _, other = kind.partition("^")
        found_first = os.pathsep.join([other, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": found_first} if other else None
        run = options.keep / f"{told.replace('+', '-')}-{number}"
        traced, _, version = told.partition("@")
        command += ["--flash-attention", version] if version else []
        level, *more = traced.split("+")
        self._profiled = traced == "nsys"
        if self._profiled:
            from kvtrace.launch.nsys import find_nsys

            run.mkdir(parents=True)
            command = find_nsys(os.environ).profile(run / "profile", run / "pid", Path(sys.executable), command)
        elif traced != "off":
            python = [sys.executable, "-P"]  # the folder that this runs in may have another kvtrace
            recorder = [*python, "-m", "kvtrace", "record", "--force", "-o", str(run), "--kv-level", level]
            command = [*recorder, *(f"--{option}" for option in more), "--", *command]
        self._log = folder / f"{number}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._connection: Connection[Any, Any] | None = None
        self._read = 0

    def wait(self) -> None:
        """Until it has started."""
        self._listener._listener._socket.settimeout(5)  # type: ignore[attr-defined]
        while self._connection is None:
            try:
                self._connection = self._listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise SystemExit(f"the {self.kind!r} engine did not start:\n{self._said()[-4000:]}") from None
        self._connection.recv()

    def run(self, sequences: int, seed: int, *, together: bool = False) -> Figures:
        assert self._connection is not None
        try:
            self._connection.send((sequences, seed, together))
            figures: Figures = self._connection.recv()
        except (EOFError, OSError):
            said = f"the {self.kind!r} engine ended with exit code {self._process.wait()}:\n{self._said()[-4000:]}"
            raise EngineError(said) from None
        said = self._said()
        figures["compiled"] = COMPILED.findall(said, self._read)
        self._read = len(said)
        return figures

    def stop(self) -> list[str]:
        """Return kvtrace's summary. Nsight's own report is not waited for."""
        assert self._connection is not None
        self._connection.send(None)
        if self._profiled:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
        self._process.wait()
        return [line for line in self._said().splitlines() if line.startswith("kvtrace:")]

    def close(self) -> None:
        """Listen no more; an engine that still runs ends."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _said(self) -> str:
        return self._log.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kinds", default="off,layer,nsys")
    parser.add_argument("--starts", type=int, default=2, help="how often all engines are started afresh")
    parser.add_argument("--rounds", default="32:9,256:5", help="sequences:rounds of each start; sequences+: together")
    parser.add_argument("--graphs", default="FULL_AND_PIECEWISE")
    parser.add_argument("--backend", default="", help="an attention backend, such as TRITON_ATTN")
    parser.add_argument("--kv-gib", type=int, default=KV_GIB, help="GiB of KV cache of each engine")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="of each sequence")
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS, help="of each sequence")
    parser.add_argument("--together", action="store_true", help="schedule none of a batch before all of it is queued")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--flash-attention", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    kinds = options.kinds.split(",")
    plan = [
        Rounds(int(size.rstrip("+")), options.together or size.endswith("+"), int(rounds))
        for size, _, rounds in (part.partition(":") for part in options.rounds.split(","))
    ]
    found: dict[Rounds, list[list[Figures]]] = {part: [[] for _ in kinds] for part in plan}
    died = False
    try:
        measure(options, kinds, found)
    except (KeyboardInterrupt, EngineError) as error:
        died = isinstance(error, EngineError)
        print(f"{str(error) or 'interrupted'}; what follows is of the rounds that were complete", flush=True)
    for part, runs in found.items():
        complete = min(len(run) for run in runs)
        if complete:
            report(part, kinds, [run[:complete] for run in runs])
    if died:
        raise SystemExit(1)


def measure(options: Any, kinds: list[str], found: dict[Rounds, list[list[Figures]]]) -> None:
    """Start the engines and let them take turns: appends to `found`, by rounds and engine, each batch's figures."""
    for start in range(options.starts):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_engines:
            order: list[tuple[Engine, int]] = []
            for number in [(start + n) % len(kinds) for n in range(len(kinds))]:
                engine = Engine(kinds[number], options, Path(folder), start * len(kinds) + number)
                open_engines.callback(engine.close)
                order.append((engine, number))
                if len(order) == 1:
                    engine.wait()  # its compilation is found by the others
            for engine, _ in order[1:]:
                engine.wait()
            for engine, _ in order:
                engine.run(1, 0)  # attention's form for a lone sequence is compiled when there is one
            for at, (part, batches) in enumerate(found.items()):
                for round_ in range(-1, part.rounds):  # one to warm up
                    turn = round_ % len(order)
                    for engine, number in order[turn:] + order[:turn]:
                        seed = 1000 * start + 100 * at + round_ + 2  # prompts that no cache has
                        figures = engine.run(part.sequences, seed, together=part.together)
                        if round_ >= 0:
                            batches[number].append(figures)
            for engine, _ in order:
                print("\n".join(engine.stop()), flush=True)


def report(part: Rounds, kinds: list[str], runs: list[list[Figures]]) -> None:
    """Print what was found in some rounds: for each kind, its batches in the order of starts and rounds."""
    rounds = part.rounds
    print(f"{f'{part}, n={len(runs[0])}':26}" + "".join(f"{kind:>32}" for kind in kinds))
    untraced = [found for kind, found in zip(kinds, runs, strict=True) if kind == kinds[0]]
    for name in [name for name in runs[0][0] if name not in APART]:
        base = [statistics.mean(run[name] for run in round_) for round_ in zip(*untraced, strict=True)]
        cells, by_start = [], []
        for found in runs:
            values = [run[name] for run in found]
            ratios = [value / other for value, other in zip(values, base, strict=True)]
            spread = f"{statistics.median(ratios):.4f} ({min(ratios):.3f}-{max(ratios):.3f})"
            cells.append(f"{statistics.median(values):10.2f}{spread:>22}")
            starts = [ratios[first : first + rounds] for first in range(0, len(ratios), rounds)]
            by_start.append(" ".join(f"{statistics.median(start):.4f}" for start in starts))
        print(f"{'':5}{name:21}" + "".join(cells))
        if len(runs[0]) > rounds:
            print(
                f"{'':8}by start: " + ", ".join(f"{kind} {found}" for kind, found in zip(kinds, by_start, strict=True))
            )
    pooled = [p99([gap for run in found for gap in run["gaps"]]) for found in runs]
    usual_p99 = statistics.mean(value for kind, value in zip(kinds, pooled, strict=True) if kind == kinds[0])
    said = (f"{kind} {value:.2f} {value / usual_p99:.4f}" for kind, value in zip(kinds, pooled, strict=True))
    print(f"{'':5}inter-token p99 of all batches, ms: {', '.join(said)}")
    steps = min(len(run["steps"]) for found in runs for run in found)
    usual = [statistics.median(run["steps"][step] for found in untraced for run in found) for step in range(steps)]
    for kind, found in zip(kinds, runs, strict=True):
        later = [statistics.median(run["steps"][step] for run in found) - usual[step] for step in range(steps)]
        telling = sorted(range(steps), key=lambda step: -abs(later[step]))[:MOST_TELLING]
        print(
            f"{'':5}{kind}: ms later, by step: " + ", ".join(f"{step}: {later[step]:+.2f}" for step in sorted(telling))
        )
        print(f"{'':5}{kind}: meanwhile, medians: {usual_meanwhile([run['meanwhile'] for run in found])}")
        for number, run in enumerate(found):
            if run["compiled"]:
                print(f"{'':5}{kind}: compiled in batch {number}: {', '.join(run['compiled'])}")
    told = [[{name: value for name, value in run.items() if name != "gaps"} for run in found] for found in runs]
    print(json.dumps({"sequences": part.sequences, "together": part.together, "kinds": kinds, "runs": told}))


def usual_meanwhile(batches: list[dict[str, Any]]) -> str:
    """Say what `Meanwhile` told of batches, in the median: the busiest threads first."""
    threads: dict[str, list[list[float | None]]] = {}
    for number, told in enumerate(batches):
        for name, times in told["threads"].items():
            threads.setdefault(name, [[0.0, 0.0] for _ in batches])[number] = times
    busiest = sorted(threads, key=lambda name: -statistics.median(ran_ms or 0 for ran_ms, _ in threads[name]))
    said = [f"{name} {_usual(threads[name], 0)} + {_usual(threads[name], 1)} ms" for name in busiest[:MOST_TELLING]]
    machine = [f"{_usual([[told.get(count)] for told in batches], 0)} {says}" for count, says in COUNTS.items()]
    return f"{', '.join(said)} (ran + waited for a processor); {', '.join(machine)}"


def _usual(rows: list[list[float | None]], place: int) -> str:
    values = [row[place] for row in rows]
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0f}" if len(known) == len(values) else "?"


if __name__ == "__main__":
    main()
