"""Runs side by side: numbers, pairs, warnings, and what is written."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.ingest.schema.trace import TRACE_VERSION
from kvtrace.queries import find
from kvtrace.reports.compare import Comparison, Row, compare, verdict
from kvtrace.reports.metrics import METRICS
from kvtrace.reports.side_by_side import write_comparison

from .conftest import HOSTILE, MakeTrace, run_sql


@pytest.fixture(scope="module")
def slower(make_trace: MakeTrace) -> Path:
    return make_trace(run_sql(slower_ms=25, blocks=80), "slower")


@pytest.fixture(scope="module")
def comparison(base: Path, slower: Path) -> Comparison:
    return compare([base, slower, base])


def row(comparison: Comparison, name: str) -> Row:
    return next(row for row in comparison.rows if row.metric.name == name)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_a_querys_column(metric: object) -> None:
    assert set(metric.columns) <= {column.name for column in find(metric.query).columns}  # type: ignore[attr-defined]


def test_every_run_has_its_numbers(comparison: Comparison) -> None:
    """40 requests: TTFT is 10 to 49 ms, and 25 ms more in the slower run."""
    assert row(comparison, "TTFT, mean").values == (29.5, 54.5, 29.5)
    assert row(comparison, "TTFT, p50").values == (29.0, 54.0, 29.0)
    assert row(comparison, "TTFT, p95").values == (47.0, 72.0, 47.0)
    assert row(comparison, "request latency, p95").values == (137.0, 162.0, 137.0)
    assert row(comparison, "inter-token time, p50").values == (10.0, 10.0, 10.0)
    hits, looked_up = sum(range(40)), sum(range(100, 140))
    assert row(comparison, "prefix hit rate").values[0] == pytest.approx(hits / looked_up)
    # 400 tokens from the first arrival at 1 s to the last end at 4.9 + 0.139 s.
    assert row(comparison, "output throughput").values[0] == pytest.approx(400 / 4.039)
    assert row(comparison, "KV utilisation, mean").values == (0.2, 0.25, 0.2)


def test_differences_are_over_pairs_and_sessions(comparison: Comparison) -> None:
    slow, same = row(comparison, "TTFT, mean").differences
    assert slow is not None
    assert slow.interval is not None
    assert (slow.value, slow.pairs, slow.interval.units) == (25.0, 40, 10)
    assert (slow.interval.low, slow.interval.high) == (pytest.approx(25), pytest.approx(25))
    assert verdict(slow, "lower") == "worse"
    assert verdict(slow, "higher") == "better"
    assert verdict(slow, None) == "higher"
    assert same is not None
    assert verdict(same, "lower") == "same"
    throughput = row(comparison, "output throughput").differences[0]
    assert throughput is not None
    assert throughput.interval is None
    assert verdict(throughput, "higher") == ""
    assert comparison.repeats == (False, True)


def test_an_interval_with_zero_in_it_is_unclear(base: Path, make_trace: MakeTrace) -> None:
    mixed = run_sql() + "UPDATE request SET first_token_ns = first_token_ns + (request % 3 - 1) * 20e6"
    found = row(compare([base, make_trace(mixed)]), "TTFT, mean").differences[0]
    assert found is not None
    assert verdict(found, "lower") == "unclear"


UNFAIR = {
    "UPDATE engine SET model = 'n'": "Different model: A m, B n",
    "UPDATE engine SET block_size_tokens = 32": "Different block size in tokens: A 16, B 32",
    "UPDATE engine SET blocks = 99": "Different KV blocks of an engine: A 100, B 99",
    "UPDATE run SET value = '0.33.0' WHERE key = 'vllm_version'": "Different vLLM version: A 0.32.0, B 0.33.0",
    "UPDATE run SET value = '2' WHERE key = 'kvtrace_version'": "Different kvtrace version: A 1, B 2",
    "INSERT INTO run VALUES ('gpu', 'NVIDIA H200')": "Different GPU: A -, B NVIDIA H200",
    "INSERT INTO hook VALUES (1, 'f', 'installed', NULL)": "Different installed hooks: A #1, B #2",
    "INSERT INTO stream VALUES (1, 'request_event', 1, 10, 0, 3)": "B: 3 records were lost",
    "UPDATE request SET finished_ns = NULL WHERE request = 7": "B: 1 requests did not end in the recording",
    "UPDATE request SET prompt_tokens = prompt_tokens + 5 WHERE request <= 4": (
        "A and B: 4 of 39 pairs have prompts of different length (4,641 against 4,661 tokens)"
    ),
    "UPDATE request SET output_tokens = 9 WHERE request = 1": (
        "A and B: 1 of 39 pairs have outputs of different length (390 against 389 tokens)"
    ),
    "DELETE FROM request WHERE request = 40": "A and B: 40 requests against 39",
    "SELECT 1": "A and B: 1 requests of the larger run have no partner and count in no difference",
}
"""Changes to a run, and what is said of each."""


def test_what_is_not_fair_is_said_and_nothing_else(base: Path, make_trace: MakeTrace) -> None:
    found = compare([base, make_trace(run_sql() + ";".join(UNFAIR))])
    assert set(found.warnings) == set(UNFAIR.values())


def test_other_settings_are_listed_without_a_warning(base: Path, make_trace: MakeTrace) -> None:
    """The same model from another folder is the same model."""
    found = compare([base, make_trace(run_sql() + "UPDATE engine SET max_num_seqs = 5, model = '/home/me/m'")])
    assert found.warnings == ()
    assert [(setting.name, setting.values, setting.unfair) for setting in found.settings] == [
        ("max_num_seqs", ("-", "5"), False)
    ]


def test_the_terminal_gets_a_table_a_run(base: Path, slower: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(base), str(slower)])
    assert done.exit_code == 0
    line = next(line for line in done.stdout.splitlines() if line.startswith("TTFT, mean"))
    assert line.split()[2:] == ["ms", "lower", "29.5", "54.5", "+25", "+84.7%", "+25", "..", "+25", "40", "worse"]
    assert "B against A: 40 pairs from 10 sessions by session and turn, of 40 and 40 requests" in done.stdout
    assert "may be unfair: Different KV blocks" in done.stderr


def test_the_page_the_markdown_and_the_csv_say_the_same(comparison: Comparison, tmp_path: Path) -> None:
    page = write_comparison(comparison, tmp_path / "out").read_text()
    markdown = (tmp_path / "out" / "compare.md").read_text()
    with (tmp_path / "out" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(comparison.rows)
    mean = next(row for row in rows if (row["metric"], row["run"]) == ("TTFT, mean", "B"))
    assert (mean["value"], mean["difference"], mean["pairs"], mean["verdict"]) == ("54.5", "25.0", "40", "worse")
    assert '<td class="worse">worse</td>' in page
    assert "| TTFT, mean | ms | lower | 29.5 | 54.5 | +25 | +84.7% | +25 .. +25 | 40 | worse |" in markdown
    assert "C has A's command and settings" in page
    assert "C has A's command and settings" in markdown
    assert (tmp_path / "out" / "plots" / "B.svg").read_bytes().startswith(b"<?xml")


def test_names_and_commands_are_inert(base: Path, make_trace: MakeTrace, tmp_path: Path) -> None:
    text = HOSTILE.replace("'", "''")
    kept = f"UPDATE run SET value = '{TRACE_VERSION}'"
    hostile = make_trace(run_sql(tag=HOSTILE) + f"UPDATE run SET value = '{text}'; {kept} "
                         "WHERE key = 'trace_version'; UPDATE engine SET model = '" + text + "'", "a<b>")  # fmt: skip
    page = write_comparison(compare([base, hostile]), tmp_path / "out").read_text()
    assert not re.search(r"<(?!/?(?:\w))|<(script|img(?! src=\"data:))", page.split("</style>")[1])
    assert "onerror=alert" not in re.sub(r"&#?\w+;[^<]*", "", page)
    markdown = (tmp_path / "out" / "compare.md").read_text()
    assert "\x1b" not in page + markdown
    done = CliRunner().invoke(app, ["compare", str(base), str(hostile)])
    assert "\x1b" not in done.stdout + done.stderr


def test_runs_without_anything_in_common_compare_to_nothing(base: Path, make_trace: MakeTrace) -> None:
    found = compare([base, make_trace()])
    assert all(row.values[1] is None and row.differences == (None,) for row in found.rows)


@pytest.mark.parametrize("count", [1, 27])
def test_a_wrong_number_of_runs_is_refused(count: int, base: Path) -> None:
    with pytest.raises(KvtraceError, match="takes 2 to 26 traces"):
        compare([base] * count)
