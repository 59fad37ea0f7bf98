"""Workloads that were never recorded, and the cells of a matrix, on the demo's engine in virtual time."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import kvtrace as package
from kvtrace.errors import KvtraceError
from kvtrace.lab.cell import load_cell
from kvtrace.lab.matrix import read_matrix
from kvtrace.lab.replay.cell import figures_of
from kvtrace.lab.replay.check import outcome
from kvtrace.lab.replay.sweep import _times
from kvtrace.lab.replay.workload import read_workload
from kvtrace.lab.sources import load_results
from tests.lab.cells import small_matrix
from tests.lab.replay.conftest import HERE, kvtrace
from tests.traces import write_trace

BLOCK = 32
MATRIX = small_matrix(
    '"fcfs"',
    '{ name = "ttl-pin", ttl_s = 0.5 }',
    '{ name = "hf-generate", batch = 2 }',
    '{ name = "offloading", host_gib = 1 }',
    '{ name = "lmcache", host_gib = 1, chunk_tokens = 64 }',
)


def lru_hits(requests: list[tuple[list[int], int]], capacity: int) -> int:
    """Hit tokens of a prefix cache that evicts the least recently used block; requests come one after another.

    Args:
        requests: Hash ids of the full blocks of each prompt, and its tokens.
        capacity: Blocks.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks, tokens in requests:
        found = 0
        for block in blocks[: (tokens - 1) // BLOCK]:  # the last token is always computed
            if block not in cache:
                break
            found += 1
        hits += found * BLOCK
        for block in reversed(blocks):  # a prefix's beginning is evicted last
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def test_a_request_trace_hits_what_a_prefix_cache_that_forgets_nothing_would(demo: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    lines, asked = [], []
    for number in range(40):
        family, depth = rng.randrange(4), rng.randrange(1, 7)
        ids = [family * 100 + at for at in range(depth)] + [10_000 + number]
        tokens = len(ids) * BLOCK - rng.randrange(BLOCK)
        lines.append({"timestamp": number * 10_000, "input_length": tokens, "output_length": 3, "hash_ids": ids})
        asked.append((ids[: tokens // BLOCK], tokens))
    source, trace, out = tmp_path / "moon.jsonl", tmp_path / "moon.duckdb", tmp_path / "replayed.duckdb"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kvtrace("ingest", "--requests", source, "--block-size", BLOCK, "-o", trace)
    done = kvtrace("replay", trace, "--time-from", demo, "--set", "num_gpu_blocks=1000", "-o", out, "--json")
    told = json.loads(done.stdout)
    expected = lru_hits(asked, 999)
    assert told["outcomes"]["what if"]["hit_tokens"] == expected > 1000
    assert told["outcomes"]["what if"]["evictions"] == 0
    assert told["never_recorded"]
    with package.open(out) as replayed:
        facts = dict(replayed.sql("SELECT key, value FROM run").itertuples(index=False))
    assert (facts["source"], facts["replayed"]) == ("replay", "moon.duckdb")
    assert facts["replay_unrecorded"] == "a workload that was never recorded"


def test_what_does_not_fit_an_engine_says_what_to_do(demo: Path, tmp_path: Path) -> None:
    asked = {"timestamp": 0, "input_length": 20, "output_length": 100_000, "hash_ids": [1]}
    (tmp_path / "long.jsonl").write_text(json.dumps(asked) + "\n")
    kvtrace("ingest", "--requests", tmp_path / "long.jsonl", "--block-size", BLOCK, "-o", tmp_path / "long.duckdb")
    done = kvtrace("replay", tmp_path / "long.duckdb", "--time-from", demo, code=1)
    assert "generates 100000 tokens" in done.stderr
    assert "--time-from a trace that had more" in " ".join(done.stderr.split())


def test_prefetching_is_refused_for_a_request_trace_without_sessions(demo: Path, tmp_path: Path) -> None:
    asked = {"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1]}
    (tmp_path / "moon.jsonl").write_text(json.dumps(asked) + "\n")
    kvtrace("ingest", "--requests", tmp_path / "moon.jsonl", "--block-size", BLOCK, "-o", tmp_path / "moon.duckdb")
    options = ["--time-from", demo, "--set", "tier=host", "--set", "prefetch=average"]
    done = kvtrace("replay", tmp_path / "moon.duckdb", *options, code=1)
    assert "no request of this recording has a session tag" in done.stderr
    assert "what if" not in done.stdout


def test_a_matrix_is_replayed_with_the_jobs_of_its_cells(tmp_path: Path) -> None:
    """Its seed and rate are a cell's own there, too; a workload's own seed comes first."""
    path = tmp_path / "small.toml"
    for seeds in ("", "seed = 9", "seed = 9\nrate = 3.0"):
        path.write_text(MATRIX.replace("rate = 20.0", "rate = 20.0\nseed = 21") + seeds + "\n")
        (cell, *_) = read_matrix(path).cells
        (cells,), replayed = cell.make_workloads(), read_workload(path)
        assert [job.turns for job in replayed.jobs] == [job.turns for job in cells.jobs]
        assert replayed.arrivals_s == cells.arrivals_s


@pytest.fixture(scope="module")
def predicted(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted")
    (folder / "small.toml").write_text(MATRIX)
    kvtrace("lab", "run", folder / "small.toml", "-o", folder, "--replay", "--time-from", demo, code=3)
    return folder


def test_a_predicted_cell_is_the_replay_of_its_settings(demo: Path, predicted: Path) -> None:
    (place,) = predicted.glob("cells/fcfs-*-predicted")
    changes = ("num_gpu_blocks=49", "max_num_seqs=6", "max_num_batched_tokens=256")
    options = [option for change in changes for option in ("--set", change)]
    done = kvtrace("replay", predicted / "small.toml", "--time-from", demo, *options, "--json")
    replayed = json.loads(done.stdout)["outcomes"]["what if"]
    cell = outcome(place / "run" / "trace.duckdb")
    assert {**vars(cell)} == {name: replayed[name] for name in vars(cell)}
    assert cell.hit_tokens > 0
    assert cell.evictions > 0


def test_step_times_are_of_the_given_trace_and_copies_of_a_measured_cell(
    demo: Path, predicted: Path, tmp_path: Path
) -> None:
    """Of the same connector: how fast LMCache copies is known only where it was recorded."""
    (alike,) = predicted.glob("cells/lmcache-*-predicted")
    measured = tmp_path / "cells" / "measured"
    (measured / "run").mkdir(parents=True)
    for name, text in (("cell.json", (alike / "cell.json").read_text()), ("result.json", '{"status": "ok"}')):
        (measured / name).write_text(text)
    write_trace(
        measured / "run" / "trace.duckdb",
        "INSERT INTO engine (engine_id, block_size_tokens, blocks, max_num_batched_tokens, max_num_seqs, max_model_len,"
        " prefix_caching, connector) VALUES (1, 32, 47, 256, 6, 512, true, 'LMCacheConnectorV1')",
        "INSERT INTO request (request, engine_id, internal_id, prompt_tokens, max_tokens, output_tokens, arrival_ns, "
        "queued_ns) VALUES (1, 1, 'a', 40, 8, 8, 5, 6)",
        "INSERT INTO step_schedule (engine_id, step, start_ns, decode_requests, decode_tokens) VALUES (1, 1, 10, 0, 0)",
        "INSERT INTO transfer_rate VALUES (1, 'store', 'host', 9, 9, 9, 17e9)",
    )
    (tmp_path / "small.toml").write_text(MATRIX)
    only = ["--only", "policy lmcache", "--replay", "--time-from", demo]
    done = kvtrace("lab", "run", tmp_path / "small.toml", "-o", tmp_path, *only)
    assert f"{demo.name}, copies of measured" in done.stdout
    (place,) = tmp_path.glob("cells/lmcache-*-predicted")
    facts = json.loads((place / "facts.json").read_text())["predicted"]
    assert facts["time_from"] == f"{demo.name}, copies of measured"
    assert "host copies at 60 and 17 GB/s, of which nobody measured those from the host" in facts["notes"]


def test_a_model_of_its_tier_stands_for_a_recorded_lmcache(predicted: Path, tmp_path: Path) -> None:
    """Here the recording is such a model's own, so nothing departs; step times can be had of it, too."""
    (place,) = predicted.glob("cells/lmcache-*-predicted")
    trace = place / "run" / "trace.duckdb"
    refused = kvtrace("replay", trace, code=1).stderr
    assert "--recorded tier=lmcache" in refused
    told = [f"--recorded=tier{setting}" for setting in ("=lmcache", "_bytes=1GiB", "_chunk_tokens=64")]
    said = json.loads(kvtrace("replay", trace, "--check", "--json", *told).stdout)
    assert said["agreement"] == {"identical_steps": 1, "identical_blocks": 1, "departs": None}
    assert said["outcomes"]["repeated"]["hit_tokens"] > 0
    (tmp_path / "small.toml").write_text(MATRIX)
    kvtrace("replay", tmp_path / "small.toml", "--time-from", trace, "--set", "tier=none", *told)


def test_step_times_are_of_the_same_connector_but_for_lmcache(predicted: Path) -> None:
    """LMCache's copies are part of its steps, so a measured FCFS cell comes first."""
    cells = {name: load_cell(next(predicted.glob(f"cells/{name}-*"))) for name in ("fcfs", "offloading", "lmcache")}
    measured = [(cell, Path(name)) for name, cell in cells.items()]
    times = {name: str(_times(cell, measured)) for name, cell in cells.items()}
    assert times == {"fcfs": "fcfs", "offloading": "offloading", "lmcache": "fcfs"}
    assert _times(cells["lmcache"], measured[1:]) == Path("lmcache")
    with pytest.raises(KvtraceError, match="--time-from"):
        _times(cells["fcfs"], measured[1:])


def test_predicted_cells_are_read_like_measured_ones(demo: Path, predicted: Path) -> None:
    kvtrace("lab", "report", predicted)
    text = (predicted / "report" / "report.md").read_text()
    assert "Not measured but predicted by replay: 4 of 5 cells ended, 1 failed." in text
    assert "policy hf-generate batch=2 cannot be replayed" in text
    assert f"step times of {demo.name} (4 of 4 cells)" in text
    (place,) = predicted.glob("cells/ttl-pin-*-predicted")
    rows = kvtrace("query", "client-latency", place / "run" / "trace.duckdb", "--format", "json").stdout
    assert len(json.loads(rows)) > 0
    pins = kvtrace("sql", place / "run" / "trace.duckdb", "SELECT count(*) FROM pin_start", "--format", "csv").stdout
    assert int(pins.split()[-1]) > 0


@pytest.mark.parametrize(
    ("policy", "chunk_blocks", "latency_ns", "load_gb_per_s"),
    [("offloading", 1, 0, 50.0), ("lmcache", 2, 10_000, 60.0)],
)
def test_the_trace_of_a_predicted_cell_has_its_copies(
    policy: str, chunk_blocks: int, latency_ns: int, load_gb_per_s: float, predicted: Path
) -> None:
    (place,) = predicted.glob(f"cells/{policy}-*-predicted")
    with package.open(place / "run" / "trace.duckdb") as trace:
        (loaded,) = trace.sql(
            "SELECT (sum(blocks) * 32)::BIGINT AS tokens, sum(device_ns)::DOUBLE AS ns, "
            "sum(bytes)::BIGINT AS bytes, count(*) AS loads, "
            "count(*) FILTER (finished_ns < submitted_ns OR started_ns < submitted_ns) AS early, "
            "(SELECT sum(external_cached_tokens) FROM request) AS hit, "
            "(SELECT block_bytes FROM engine) AS block_bytes, "
            "(SELECT max(end_ns) FROM step) AS end_ns, max(finished_ns) AS last_ns "
            "FROM transfer WHERE direction = 'load'",
            format="arrow",
        ).to_pylist()
        planned = trace.sql(
            "SELECT t.transfer FROM transfer t LEFT JOIN transfer_block b USING (engine_id, transfer) "
            "GROUP BY ALL HAVING count(b.transfer) <> any_value(t.blocks)",
            format="arrow",
        )
        (stored,) = trace.sql("SELECT sum(blocks) AS blocks FROM transfer WHERE direction = 'store'").itertuples()
        (tier,) = trace.query("tier-hits", format="arrow").to_pylist()
    assert loaded["tokens"] == loaded["hit"] > 0
    assert loaded["bytes"] == loaded["tokens"] // 32 * loaded["block_bytes"]
    copied_ns = loaded["ns"] - loaded["loads"] * latency_ns
    assert loaded["bytes"] / copied_ns == pytest.approx(load_gb_per_s, rel=0.01)  # what no recording told
    assert (loaded["early"], planned.num_rows) == (0, 0)
    assert loaded["last_ns"] <= loaded["end_ns"]
    assert tier["stored_blocks"] * chunk_blocks == stored.blocks
    assert tier["hit_requests"] > 0


ROOMY = """
[cell]
model = "tiny"
block_size = 32
kv_tokens = 8192
max_num_seqs = 6
max_num_batched_tokens = 256
"""
PHASES = (
    ROOMY
    + """
phases = ["families", "late", "families", "pairs"]
[axes]
reset_between = [false, true]
[workloads]
families = { kind = "shared-prefix", families = 2, members = 2, size = 256, output = 4 }
late = { kind = "fixed", jobs = 4, prompt = 64, output = 4, rate = 50.0 }
pairs = { kind = "evict-pair", evicted = 512, rounds = 2 }
"""
)


def test_phases_of_a_predicted_cell_follow_each_other(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "phases.toml").write_text(PHASES)
    arguments = ("lab", "run", tmp_path / "phases.toml", "-o", tmp_path, "--replay", "--time-from", demo)
    kvtrace(*arguments)
    for result in load_results(tmp_path):
        windows = [(phase["start_ns"], phase["end_ns"]) for phase in result.facts["phases"]]
        assert [phase.workload["name"] for phase in result.phases] == ["families", "late", "families", "pairs"]
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(windows))
        assert [phase.figures["jobs_done"] for phase in result.phases] == [4, 4, 4, 4]
        cold, _, warm, _ = (phase.figures["cached_share"] for phase in result.phases)
        assert cold is not None
        assert warm is not None
        if result.cell.reset_between:  # the second time is as cold as the first
            assert warm == cold > 0
        else:
            assert warm > 0.8 > cold
        # a job of several turns in the last phase is not taken for one of the first
        with package.open(result.place / "run" / "trace.duckdb") as trace:
            (joined,) = trace.sql(
                "SELECT count(*) AS requests, count(DISTINCT c.phase) AS phases FROM client_request c "
                "JOIN request r ON r.external_id = c.request_id"
            ).itertuples()
        assert (joined.requests, joined.phases) == (18, 4)
    done = kvtrace(*arguments[:-3], "--replay", "--time-from", demo, "--draws", "8", code=3)
    assert "4 phases on one engine: draws are of cells with one" in done.stdout


POOL = (
    ROOMY
    + """
phases = ["first", "second"]
[axes]
concurrency = [1, 3]
[workloads]
first = { kind = "agent", jobs = 7, turns = 3, scale = 0.05, tool_scale = 0.1, arrival = "closed" }
second = { kind = "shared-prefix", families = 3, members = 3, size = 256, output = 8, arrival = "closed" }
"""
)


def test_jobs_of_a_closed_loop_take_slots_as_they_come_free(demo: Path, tmp_path: Path) -> None:
    """Each job begins when another ends, in the order of the jobs; as many as there are slots begin at once."""
    (tmp_path / "pool.toml").write_text(POOL)
    kvtrace("lab", "run", tmp_path / "pool.toml", "-o", tmp_path, "--replay", "--time-from", demo)
    for result in load_results(tmp_path):
        slots = int(result.cell.axes["concurrency"])
        sent = [json.loads(line) for line in (result.place / "run" / "client.jsonl").read_text().splitlines()]
        ended_ns = 0
        for phase, jobs in enumerate((7, 9)):
            records: dict[str, list[dict[str, Any]]] = {}
            for record in (record for record in sent if record["phase"] == phase):
                records.setdefault(record["session"], []).append(record)
            begins = [min(record["due_ns"] for record in turns) for turns in records.values()]
            ends = sorted(max(record["last_token_ns"] for record in turns) for turns in records.values())
            assert len(begins) == jobs
            assert begins[slots - 1] - begins[0] < 1000
            assert begins == sorted(begins)
            assert begins[0] >= ended_ns - 1000
            assert all(abs(begin - end) < 1000 for begin, end in zip(begins[slots:], ends, strict=False))
            ended_ns = ends[-1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "chunked_prefill = false",
            "vLLM would not start with these settings: max_num_batched_tokens (256) is smaller",
        ),
        ("kv_tokens = 64", "requests could never be scheduled with these settings"),
    ],
)
def test_a_cell_that_no_engine_could_run_is_not_predicted(
    demo: Path, tmp_path: Path, setting: str, message: str
) -> None:
    axis, size = ("", setting) if "kv_tokens" in setting else ("kv_tokens = [1536]", setting)
    text = MATRIX.replace("kv_tokens = [1536]", axis).replace("rate = 20.0", f"rate = 20.0\n{size}")
    (tmp_path / "small.toml").write_text(text)
    command = ("lab", "run", tmp_path / "small.toml", "-o", tmp_path, "--replay", "--time-from", demo)
    done = kvtrace(*command, "--only", "policy fcfs", code=3)
    assert message in done.stdout


def test_arguments_of_the_scheduler_are_those_of_the_replay(demo: Path, tmp_path: Path) -> None:
    text = MATRIX.replace("kv_tokens = [1536]", "engine = [{}, { watermark = 0.4 }]").replace(
        "rate = 20.0", "rate = 20.0\nkv_tokens = 1536"
    )
    (tmp_path / "small.toml").write_text(text)
    kvtrace("lab", "run", tmp_path / "small.toml", "-o", tmp_path, "--replay", "--time-from", demo, "--only", "fcfs,")
    plain, careful = sorted(load_results(tmp_path), key=lambda result: len(result.cell.engine))
    assert careful.cell.engine == {"watermark": 0.4}
    changes = ("num_gpu_blocks=49", "max_num_seqs=6", "max_num_batched_tokens=256", "watermark=0.4")
    options = [option for change in changes for option in ("--set", change)]
    done = kvtrace("replay", tmp_path / "small.toml", "--time-from", demo, *options, "--json")
    replayed = json.loads(done.stdout)["outcomes"]["what if"]
    found = [vars(outcome(result.place / "run" / "trace.duckdb")) for result in (plain, careful)]
    assert found[1] == {name: replayed[name] for name in found[1]} != found[0]


SHAPES = """
name = "shapes"
[cell]
block_size = 32
kv_tokens = 1536
max_num_seqs = 6
max_num_batched_tokens = 256
policy = { name = "offloading", host_gib = 8 }
[axes]
model = ["opt-13b", "gemma-3-12b"]
[workloads.agents]
kind = "agent"
jobs = 8
turns = 4
scale = 0.05
tool_scale = 0.1
rate = 20.0
"""


def test_a_cell_of_another_model_has_its_own_bytes_and_says_whose_times_it_has(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "shapes.toml").write_text(SHAPES)
    command = ("lab", "run", tmp_path / "shapes.toml", "-o", tmp_path, "--replay", "--time-from", demo)
    done = kvtrace(*command, code=3)
    assert "steps of " in done.stdout
    assert "are of another model, and gemma-3-12b keeps other things by layer" in done.stdout
    (place,) = tmp_path.glob("cells/opt-13b-*-predicted")
    notes = json.loads((place / "facts.json").read_text())["predicted"]["notes"]
    assert "steps take as long as those of tiny-llama: of opt-13b, believe counts only" in notes
    with package.open(place / "run" / "trace.duckdb") as trace:
        (row,) = trace.sql(
            "SELECT (SELECT block_bytes FROM engine) AS block_bytes, sum(bytes)::BIGINT AS bytes, "
            "sum(blocks)::BIGINT AS blocks FROM transfer"
        ).itertuples()
    assert row.block_bytes == 40 * 2 * 5120 * 2 * 32  # layers, K and V, hidden size, bytes, tokens
    assert row.bytes == row.blocks * row.block_bytes > 0


def test_draws_of_a_cell_are_those_of_its_replay(demo: Path, predicted: Path, tmp_path: Path) -> None:
    [cell] = predicted.glob("cells/fcfs-*-predicted")
    matrix, folder = predicted / "small.toml", tmp_path / "drawn"
    shutil.copytree(cell, folder / "cells" / cell.name)
    arguments = ("lab", "run", matrix, "-o", folder, "--replay", "--time-from", demo, "--only", "fcfs")
    assert "1 of 1 cells are predicted already" in kvtrace(*arguments).stdout
    assert "draws" not in facts_of(folder)["predicted"]
    # GIVEN a cell that was predicted without draws THEN it is predicted again, and the second time it stays
    kvtrace(*arguments, "--draws", "8")
    told = facts_of(folder)["predicted"]["draws"]
    assert "1 of 1 cells are predicted already" in kvtrace(*arguments, "--draws", "8").stdout
    assert "1 of 1 cells are predicted already" in kvtrace(*arguments).stdout
    changes = ("num_gpu_blocks=49", "max_num_seqs=6", "max_num_batched_tokens=256")
    options = [option for change in changes for option in ("--set", change)]
    done = kvtrace("replay", matrix, "--time-from", demo, *options, "--draws", "8", "--json")
    spreads = json.loads(done.stdout)["over_draws"]["what if"]
    for name, figure, unit in (
        ("jct_s_mean", "job_mean", 1e3),
        ("ttft_ms_mean", "ttft_mean", 1),
        ("cached_share", "hit_share", 1),
        ("output_tokens_per_s", "tokens_per_s", 1),
        ("evicted_blocks", "evictions", 1),
    ):
        assert sum(each[name] for each in told) / 8 == pytest.approx(spreads[figure]["mean"] / unit, rel=1e-6), name
    assert len({each["jct_s_mean"] for each in told}) > 1
    (result,) = load_results(folder)
    # what the lab calls a figure is what draws have under that name
    steady = figures_of(outcome(result.place / "run" / "trace.duckdb"))
    assert {name: pytest.approx(value, rel=1e-6) for name, value in steady.items()} == {
        name: result.phases[0].figures[name] for name in steady
    }


def facts_of(folder: Path) -> Any:
    (path,) = folder.glob("cells/*-predicted/facts.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--replay", "--draws", "3"), "3 draws: an interval needs at least 8"),
        (("--draws", "8"), "--draws is for --replay; `repeats` of a matrix measures cells again"),
        (("--time-from", "t.duckdb"), "--time-from is for --replay; a measured cell has its own times"),
        (("--replay", "--engines", "2"), "--engines is for measured cells; --at-once predicts cells side by side"),
        (
            ("--replay", "--time-limit", "1"),
            "--time-limit is for measured cells; stop predicting with Ctrl-C, and go on later",
        ),
    ],
)
def test_options_that_a_sweep_would_ignore_are_refused(
    predicted: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = kvtrace("lab", "run", predicted / "small.toml", "-o", tmp_path / "none", *options, code=1)
    assert done.stderr == message


def test_what_was_predicted_stays_so(demo: Path, predicted: Path) -> None:
    arguments = ("lab", "run", predicted / "small.toml", "-o", predicted, "--replay", "--time-from", demo)
    assert "5 of 5 cells are predicted already" in kvtrace(*arguments).stdout


def test_draws_of_step_times_tell_how_far_two_runs_of_the_same_differ(demo: Path) -> None:
    done = kvtrace("replay", demo, "--set", "num_gpu_blocks=2x", "--draws", "8", "--json")
    told = json.loads(done.stdout)
    assert "paces" not in told["time_model"]
    spreads = told["over_draws"]
    assert list(spreads) == ["fitted", "what if"]
    hits = spreads["what if"]["hit_share"]
    assert 0 < hits["change_interval"][0] <= hits["change"] + 1e-9
    for name in spreads:
        low, high = spreads[name]["job_mean"]["interval"]
        single = told["outcomes"][name]["latency_ms"]["job"][0]
        assert 0 < low < high < 2 * low
        assert 0.7 * low < single < 1.3 * high  # the model itself is near its own draws


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_draws_without_a_change_are_of_the_recorded_settings_alone(demo: Path, options: tuple[str, ...]) -> None:
    said = kvtrace("replay", demo, "--draws", "8", *options).stdout
    assert "8 draws of step times: mean, 95% interval\nfitted       hit_share" in said
    assert "what if" not in said


def test_options_for_another_kind_of_source_are_refused(demo: Path) -> None:
    matrix = HERE.parents[2] / "examples" / "studies" / "h100-replay.toml"
    assert "--workload names one of a matrix" in kvtrace("replay", demo, "--workload", "w", code=1).stderr
    for option in (("--engine", "1"), ("--check",), ("--time", "recorded")):
        assert "was never recorded" in kvtrace("replay", matrix, "--time-from", demo, *option, code=1).stderr


def test_a_check_of_other_settings_is_refused(demo: Path) -> None:
    message = "--check replays with the recorded settings: leave out --set and --rate"
    assert message in kvtrace("replay", demo, "--check", "--set", "num_gpu_blocks=2x", code=1).stderr
    assert message in kvtrace("replay", demo, "--check", "--rate", "2x", code=1).stderr


def test_too_few_draws_are_refused(demo: Path) -> None:
    assert "needs at least 8" in kvtrace("replay", demo, "--draws", "3", code=1).stderr


def test_resampled_jobs_give_intervals(demo: Path) -> None:
    done = kvtrace("replay", demo, "--set", "num_gpu_blocks=2x", "--seeds", "8", "--json")
    spread = json.loads(done.stdout)["over_seeds"]["what if"]["hit_share"]
    low, high = spread["change_interval"]
    assert 0 < low < spread["change"] < high


def test_the_study_of_prefetching_says_what_its_cells_do(
    lmcache_h200: Path, warm_python: list[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    command = [
        *warm_python, "-m", "kvtrace.lab.replay.prefetch_study", lmcache_h200, "--workload", "agent", "--jobs", "6",
        "--seeds", "2", "--kv-tokens", "14000", "--spread", "0", "--policy", "none", "oracle", "--rows", rows,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = [json.loads(line) for line in rows.read_text().splitlines()]
    times = {(cell["policy"], cell["seed"]): cell["ttft_s"] for cell in cells}
    saved = [1e3 * (times["none", seed] - times["oracle", seed]) for seed in (1, 2)]
    assert all(saved)
    workload, tokens, spread, policy, told, *_ = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert (workload, tokens, spread, policy) == ("agent", "14,000", "0", "oracle")
    assert float(told.partition(" ± ")[0]) == pytest.approx(sum(saved) / 2, abs=0.06)

    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.stdout == done.stdout
    assert len(rows.read_text().splitlines()) == len(cells) == 4  # known cells are not run again
