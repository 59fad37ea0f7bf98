"""On two GPUs: are ranks told apart? Records engines at TP=2, DP=2 and DCP=2, and checks every stream.

    python bench/gpu_ranks.py MODEL_DIR [--kinds tp2,dp2,dcp2] [--level layer|tile|host] [--keep DIR]
    python bench/gpu_ranks.py --check DIR       # recordings brought from a machine without DuckDB

Prints a table of checks a kind: what was found, what vLLM's own outputs or the configuration say, and the verdict;
exits with 1 if one failed. Sessions of three turns share a prefix; at DP=2 each session belongs to one engine, and two
requests with one client id run in both. At DCP=2 the ranks share each sequence's KV, and the model has one KV head, as
vLLM demands. `--level tile` uses Triton's attention: each rank also lists its blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SESSIONS, TURNS, SHARED_TOKENS, OUTPUT_TOKENS = 8, 3, 400, 64
TWIN = "twin"  # the client id of one request in each engine
ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "block_size": 32,
    "max_model_len": 768,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "gpu_memory_utilization": 0.5,
}
KINDS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor_parallel_size": 2, "num_gpu_blocks_override": 40},
    "dp2": {"data_parallel_size": 2, "num_gpu_blocks_override": 26},
    "dcp2": {
        "tensor_parallel_size": 2,
        "decode_context_parallel_size": 2,
        "num_gpu_blocks_override": 20,
        "hf_overrides": {"num_key_value_heads": 1},
    },
}


class Check(NamedTuple):
    """A line of the table; `passed` is None for a figure that nothing is expected of."""

    name: str
    found: Any
    expected: Any
    passed: bool | None


def one(kind: str, options: Any) -> None:
    """Run the workload in this process; what vLLM said of each request goes to a file."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    backend = {"attention_backend": "TRITON_ATTN"} if options.level == "tile" else {}
    eager = {"enforce_eager": True} if options.level == "host" else {}
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=options.model, **ENGINE, **KINDS[kind], **backend, **eager)
    )
    try:
        answers = asyncio.run(workload(engine, KINDS[kind].get("data_parallel_size", 1)))
    finally:
        engine.shutdown()
    (Path(options.keep) / f"{kind}.json").write_text(json.dumps(answers))


async def workload(engine: Any, engines: int) -> list[dict[str, Any]]:
    """Sessions side by side, then twins: one request an engine under one client id."""
    from vllm import SamplingParams

    async def ask(external_id: str, prompt: list[int], rank: int) -> tuple[dict[str, Any], list[int]]:
        parameters = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False, temperature=0)
        where = {"data_parallel_rank": rank} if engines > 1 else {}
        async for output in engine.generate({"prompt_token_ids": prompt}, parameters, external_id, **where):
            last = output
        answer = {"external_id": external_id, "rank": rank, "prompt_tokens": len(prompt)}
        answer["output_tokens"] = len(last.outputs[0].token_ids)
        answer["cached_tokens"] = last.num_cached_tokens or 0
        return answer, list(last.outputs[0].token_ids)

    async def session(number: int) -> list[dict[str, Any]]:
        history, answers = [7] * SHARED_TOKENS + [20 + number] * 20, []
        for turn in range(TURNS):
            answer, generated = await ask(f"s{number}t{turn}", history, number % engines)
            answers.append(answer)
            history = [*history, *generated, *[40 + turn] * 10]
        return answers

    answers = [answer for many in await asyncio.gather(*map(session, range(SESSIONS))) for answer in many]
    twins = await asyncio.gather(*(ask(TWIN, [9] * 100, rank) for rank in range(engines)))
    return answers + [answer for answer, _ in twins]


def record(kind: str, options: Any) -> None:
    run = Path(options.keep) / kind
    command = [sys.executable, "-m", "kvtrace", "record", "--force", "-o", str(run), "--kv-level", options.level, "--"]
    command += [sys.executable, __file__, options.model, "--one", kind, "--level", options.level]
    done = subprocess.run([*command, "--keep", options.keep], capture_output=True, text=True, check=False)
    print("\n".join(line for line in done.stderr.splitlines() if line.startswith("kvtrace:")), flush=True)
    if done.returncode:
        raise SystemExit(f"the {kind!r} run failed:\n{done.stdout[-3000:]}\n{done.stderr[-4000:]}")


def check(kind: str, folder: Path) -> bool:
    """Ingest a kind's recording, print its table; whether all checks passed."""
    import kvtrace

    run = folder / kind
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace", "ingest", str(run)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    answers = json.loads((folder / f"{kind}.json").read_text())
    trace = kvtrace.open(run / "trace.duckdb")

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return list(zip(*(column.to_pylist() for column in trace.sql(sql, format="arrow").columns), strict=True))

    checks = list(common(rows, answers, kind))
    checks += data_parallel(rows, answers) if kind == "dp2" else tensor_parallel(rows)
    print(f"\n{kind}")
    for line in checks:
        verdict = {True: "ok", False: "WRONG", None: ""}[line.passed]
        print(
            f"  {line.name:58} {line.found!s:>26} {'' if line.expected is None else line.expected!s:>20} {verdict:>6}"
        )
    return all(line.passed is not False for line in checks)


def equal(name: str, found: Any, expected: Any) -> Check:
    return Check(name, found, expected, found == expected)


def figure(name: str, found: Any) -> Check:
    return Check(name, found, None, None)


def common(rows: Any, answers: list[dict[str, Any]], kind: str) -> Iterator[Check]:
    """Check what must hold of any number of ranks."""
    size = 2
    engines = size if kind == "dp2" else 1
    yield equal("engines", rows("SELECT count(*) FROM engine")[0][0], engines)
    workers = rows("SELECT dp_rank, tp_rank, pp_rank FROM process WHERE contains(roles, 'worker') ORDER BY ALL")
    expected = [(rank, 0, 0) if kind == "dp2" else (0, rank, 0) for rank in range(size)]
    yield equal("workers' ranks (DP, TP, PP)", workers, expected)
    for key in ("prompt_tokens", "output_tokens"):
        total = sum(answer[key] for answer in answers)
        yield equal(f"{key} of all requests", rows(f"SELECT sum({key}) FROM request")[0][0], total)
    found = rows("SELECT sum(local_cached_tokens) FROM request")[0][0]
    yield equal("cached tokens of all requests", found, sum(answer["cached_tokens"] for answer in answers))
    wrong = rows("SELECT count(*) FROM join_count WHERE unmatched > 0")[0][0]
    yield equal("joins with rows left over", wrong, 0)
    yield equal("streams with losses", rows("SELECT count(*) FROM stream WHERE dropped > 0 OR torn > 0")[0][0], 0)
    yield equal("hooks that failed", rows("SELECT count(*) FROM hook WHERE state = 'disabled'")[0][0], 0)
    steps = rows("SELECT engine_id, count(*) FROM step WHERE scheduled_tokens > 0 GROUP BY 1 ORDER BY 1")
    yield figure("steps with tokens, by engine", [count for _, count in steps])
    passes = rows("""
        SELECT f.process_id, f.engine_id, count(*) FROM forward f JOIN step s USING (engine_id, step)
        WHERE f.tokens = s.scheduled_tokens AND f.requests = s.scheduled_requests AND f.tokens > 0 GROUP BY ALL
        ORDER BY ALL""")
    per_engine = size // engines
    expected = sorted(count for _, count in steps for _ in range(per_engine))
    yield equal("forward passes that agree with their step, by rank", sorted(count for *_, count in passes), expected)
    yield equal("ranks that ran passes of one engine only", len({process for process, *_ in passes}), len(passes))
    layers = dict(rows("SELECT process_id, count(*) FROM kv_layer GROUP BY 1"))
    if not layers:
        yield figure("no GPU was recorded: windows are not checked", "")
        return
    windows = rows("""
        SELECT process_id, engine_id, step, count(*), count(DISTINCT (layer, kind)) FROM kv_window GROUP BY ALL""")
    by_rank: dict[int, int] = {}
    for process, *_ in windows:
        by_rank[process] = by_rank.get(process, 0) + 1
    yield equal("steps with windows, by rank", sorted(by_rank.values()), expected)
    odd = sum((count, distinct) != (2 * layers[process],) * 2 for process, _, _, count, distinct in windows)
    yield equal("steps of a rank without exactly two windows a layer", odd, 0)
    outside = rows("""
        SELECT count(*) FROM kv_window w JOIN step s USING (engine_id, step) JOIN process p USING (process_id)
        WHERE w.start_ns < s.start_ns OR (w.end_ns > s.update_ns AND coalesce(p.tp_rank, 0) = 0)""")[0][0]
    yield equal("windows outside their step (end: first rank only)", outside, 0)
    worst = rows("SELECT process_id, max(uncertainty_ns), count(*) FROM gpu_clock GROUP BY 1 ORDER BY 1")
    yield figure("GPU clocks: worst uncertainty, ns, by rank", [uncertainty for _, uncertainty, _ in worst])


def tensor_parallel(rows: Any) -> Iterator[Check]:
    """Both ranks do the same at almost the same time."""
    blocks = rows("""
        SELECT count(*), count(DISTINCT blocks), count(DISTINCT step) FROM (
            SELECT step, process_id, md5(string_agg(request || ':' || position || ':' || block_id, ','
                ORDER BY request, position)) AS blocks
            FROM (SELECT DISTINCT step, process_id, request, position, block_id FROM kv_access) GROUP BY ALL)
        GROUP BY step""")
    unequal = sum((ranks, tables) != (2, 1) for ranks, tables, _ in blocks)
    yield figure("steps whose accesses were compared", len(blocks))
    yield equal("steps in which the ranks' accesses name other blocks", unequal, 0)
    listed = rows("SELECT count(*) FROM gpu_block_list")[0][0]
    if listed:
        differ = rows("""
            WITH l AS (SELECT process_id, step, row, first_token, kernel_block FROM gpu_block_list)
            SELECT count(*) FROM l WHERE (SELECT count(DISTINCT process_id) FROM l AS o
                WHERE o.step = l.step AND o.row = l.row AND o.first_token = l.first_token
                AND o.kernel_block = l.kernel_block) <> 2
            AND step IN (SELECT step FROM tile_step GROUP BY 1 HAVING count(*) = 2)""")[0][0]
        yield equal(f"of {listed:,} listed blocks, not the same on both ranks", differ, 0)
        heads = rows("SELECT DISTINCT count(DISTINCT head), process_id FROM gpu_program GROUP BY process_id ORDER BY 2")
        yield figure("KV heads of each rank", [count for count, _ in heads])
        yield equal(
            "programs whose blocks were not those listed", rows("SELECT sum(wrong_programs) FROM tile_step")[0][0], 0
        )
    skew = rows("""
        SELECT count(*), quantile_disc(abs(a.start_ns - b.start_ns), [0.5, 0.99, 1.0]) FROM kv_window a JOIN kv_window b
        USING (engine_id, step, layer, kind) WHERE a.process_id < b.process_id AND kind = 'attention'""")[0]
    if skew[0]:
        yield figure("attention starts on both ranks apart, ns: p50, p99, max", skew[1])
        # Between two layers' attention lies an all-reduce: no rank can begin the next before both ended the last.
        early = rows("""
            SELECT count(*), coalesce(max(a.end_ns - b.start_ns), 0) FROM kv_window a JOIN kv_window b
            ON a.engine_id = b.engine_id AND a.step = b.step AND b.layer = a.layer + 1 AND a.process_id <> b.process_id
            AND a.kind = 'attention' AND b.kind = 'attention'
            WHERE b.start_ns + 2 * (SELECT max(uncertainty_ns) FROM gpu_clock) < a.end_ns""")[0]
        yield equal("layers that began before the other rank's layer before (clocks)", early[0], 0)


def data_parallel(rows: Any, answers: list[dict[str, Any]]) -> Iterator[Check]:
    """Two engines that know nothing of each other."""
    where = rows("""
        SELECT external_id, dp_rank FROM request r JOIN process p ON p.process_id = r.engine_id ORDER BY ALL""")
    asked = sorted((answer["external_id"], answer["rank"]) for answer in answers)
    yield Check("requests in the engine they were sent to", len(set(where) & set(asked)), len(asked), where == asked)
    found = rows(f"SELECT count(*), count(DISTINCT engine_id) FROM request WHERE external_id = '{TWIN}'")
    yield equal("requests and engines of the one client id", found, [(2, 2)])
    strangers = rows("""
        SELECT count(*) FROM (
            SELECT engine_id, request FROM step_request UNION ALL SELECT engine_id, request FROM block_table
            UNION ALL SELECT engine_id, request FROM block_event WHERE request IS NOT NULL
            UNION ALL SELECT engine_id, request FROM step_block UNION ALL SELECT engine_id, request FROM kv_access
        ) t JOIN request r USING (request) WHERE r.engine_id <> t.engine_id""")[0][0]
    yield equal("rows of a request under the other engine", strangers, 0)
    ranks = rows("""
        SELECT DISTINCT w.dp_rank, e.dp_rank FROM forward f JOIN process w USING (process_id)
        JOIN process e ON e.process_id = f.engine_id ORDER BY ALL""")
    yield equal("DP ranks of workers and of the engines they worked for", ranks, [(0, 0), (1, 1)])
    both = rows("""
        SELECT count(*) FROM step_schedule a JOIN step_schedule b ON a.step = b.step AND a.engine_id < b.engine_id""")
    yield figure("step numbers that both engines used", both[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--level", choices=["layer", "tile", "host"], default="layer")
    parser.add_argument("--keep", default=None, help="where recordings go and stay")
    parser.add_argument("--check", type=Path, help="check the recordings kept there; record nothing")
    parser.add_argument("--one", choices=list(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if options.one:
        one(options.one, options)
        return
    if options.check is None:
        if options.model is None:
            parser.error("expected MODEL_DIR, or --check DIR")
        options.keep = options.keep or tempfile.mkdtemp()
        Path(options.keep).mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        for kind in kinds:
            record(kind, options)
        try:
            import duckdb  # noqa: F401
        except ImportError:
            print(f"no DuckDB here: bring {options.keep} elsewhere and run bench/gpu_ranks.py --check on it")
            return
    folder = options.check or Path(options.keep)
    found = [kind for kind in kinds if (folder / kind).is_dir()]
    if not found:
        raise SystemExit(f"{folder} holds no recording of {options.kinds}")
    passed = [check(kind, folder) for kind in found]
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
