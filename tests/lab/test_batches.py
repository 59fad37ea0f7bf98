"""Batches on a real engine, several workloads one after another, and the same predicted."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from kvtrace.lab.results import Result
from kvtrace.lab.sources import load_results
from kvtrace.queries import Trace
from tests.vllm.conftest import kvtrace

from .cells import table
from .test_sweep import PATIENCE_S, lab

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MATRIX = """
name = "batches"
[cell]
model = "tiny"
kv_tokens = 8192
block_size = 32
max_num_seqs = 16
max_num_batched_tokens = 512
engine = { gpu_memory_utilization = 0.1 }
prefix_caching = false
rounds = 2
phases = ["prefill", "decode", "mixed"]
[workloads]
prefill = { kind = "fixed", jobs = 8, prompt = 64, output = 1, arrival = "batch" }
decode = { kind = "fixed", jobs = 4, prompt = 16, output = 20, arrival = "batch" }
mixed = { kind = "listed", lengths = [[300, 9], [20, 30], [400, 4], [90, 12], [250, 17]], arrival = "batch" }
"""


@pytest.fixture(scope="module")
def swept(warm_replays: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm")
    directory = tmp_path_factory.mktemp("batches")
    (directory / "batches.toml").write_text(MATRIX)
    command = ("run", directory / "batches.toml", "-o", directory)
    measured = lab(*command, "--warm", timeout=PATIENCE_S)
    predicted = kvtrace("lab", *command, "--replay")
    for done in (measured, predicted):
        assert done.returncode == 0, done.stdout + done.stderr
    return directory


def passes(result: Result) -> list[list[int]]:
    """Tokens of the forward passes of each phase."""
    with Trace(result.place / "run" / "trace.duckdb") as trace:
        return [
            trace.sql(
                "SELECT scheduled_tokens AS tokens FROM step WHERE scheduled_tokens > 0 "
                f"AND start_ns BETWEEN {phase['start_ns']} AND {phase['end_ns']} ORDER BY step"
            )["tokens"].tolist()
            for phase in result.facts["phases"]
        ]


def test_a_batch_is_whole_before_its_first_pass(swept: Path) -> None:
    measured, _ = sorted(load_results(swept), key=lambda result: result.made)
    found = passes(measured)
    assert found[0] == [8 * 64]
    assert found[1] == [4 * 16] + [4] * 19
    # 1,060 prompt tokens: two prompts are whole after the first pass, two more after the second
    assert found[2][:3] == [512, 2 + 510, (1060 - 512 - 510) + 4]
    assert sum(found[2]) == 1060 + (9 + 30 + 4 + 12 + 17) - 5
    assert found[3:] == found[:3]  # the second round


def test_a_prediction_has_the_passes_of_the_engine(swept: Path) -> None:
    measured, predicted = sorted(load_results(swept), key=lambda result: result.made)
    assert (measured.made, predicted.made) == ("measured", "predicted")
    assert passes(predicted) == passes(measured)


def test_what_is_kept_of_passes_and_of_time_is_that_of_the_trace(swept: Path) -> None:
    measured, predicted = sorted(load_results(swept), key=lambda result: result.made)
    for result in (measured, predicted):
        assert [phase.first_passes_tokens for phase in result.phases] == [found[:20] for found in passes(result)]
        decode = result.phases[1]
        # four requests of 16 to 36 tokens: one block of 32 each, then two, of 256
        assert all(1.5 < percent < 3.2 for percent in decode.kv_cache_percent[1:-1] if percent is not None)
        assert decode.running[5] == 4
        assert len(decode.running) == len(decode.kv_cache_percent) == 10


def test_the_report_tells_of_forward_passes(swept: Path) -> None:
    made = lab("report", swept, timeout=PATIENCE_S)
    assert made.returncode == 0, made.stderr
    text = (swept / "report" / "report.md").read_text()
    rows = [row for row in table(text, "Forward passes") if row["made"] == "measured"]
    assert [(row["workload"], row["runs"], row["passes"]) for row in rows] == [
        ("prefill", "2", "1"),
        ("decode", "2", "20"),
        ("mixed", "2", "30"),
    ]
    assert [row["tok/s of decode"] == "-" for row in rows] == [True, False, False]
    measured, _ = sorted(load_results(swept), key=lambda result: result.made)
    with Trace(measured.place / "run" / "trace.duckdb") as trace:
        start_ns, end_ns = (measured.facts["phases"][1][end] for end in ("start_ns", "end_ns"))
        (row,) = trace.sql(
            "SELECT (sum(decode_tokens) / sum(interval_ns) * 1e9)::DOUBLE AS rate FROM step "
            f"WHERE decode_tokens = 4 AND start_ns BETWEEN {start_ns} AND {end_ns}"
        ).itertuples()
    assert measured.phases[1].figures["decode_tokens_per_s"] == pytest.approx(row.rate)
    # latencies count from when the engine might begin, so a batch of one pass takes as long as its pass
    assert measured.phases[0].figures["late_ms_max"] == 0


def test_traces_of_an_earlier_kvtrace_have_the_same_figures(swept: Path) -> None:
    """Views come without a new trace version."""
    before = load_results(swept)
    for result in before:
        with duckdb.connect(str(result.place / "run" / "trace.duckdb")) as trace:
            trace.execute("DROP VIEW step_time")

    after = load_results(swept)

    assert [(result.warnings, result.steps, [phase.figures for phase in result.phases]) for result in after] == [
        (result.warnings, result.steps, [phase.figures for phase in result.phases]) for result in before
    ]
    assert all(any(phase.figures["decode_tokens_per_s"] for phase in result.phases) for result in after)
