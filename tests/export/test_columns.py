"""Parquet and CSV: every row arrives, runs lie beside each other, and nothing is replaced or left half written."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pyarrow.parquet
import pytest

import kvtrace
from kvtrace.errors import KvtraceError
from kvtrace.export import columns, parquet
from kvtrace.export.columns import export_csv
from kvtrace.export.parquet import NO_HOUR, export_parquet
from kvtrace.export.perfetto import write
from kvtrace.export.perfetto.write import export_perfetto
from kvtrace.queries import Trace

from .conftest import HOSTILE, STEPS

RUN = "20261121T060541Z-41"


def table_rows(trace: Path, name: str) -> list[dict[str, Any]]:
    with kvtrace.open(trace) as opened:
        rows: list[dict[str, Any]] = opened.sql(f"FROM {name}", "arrow").to_pylist()
    return rows


def test_parquet_has_every_row_by_table_and_run(trace: Path, tmp_path: Path) -> None:
    counts = export_parquet(trace, tmp_path / "lake")
    manifest = json.loads((tmp_path / "lake" / f"manifest-{RUN}.json").read_bytes())
    assert manifest["rows"] == counts
    assert "kv_access" not in counts
    for name in ("step_schedule", "gpu_activity", "request", "pin_start", "tier_block"):
        read = pyarrow.dataset.dataset(tmp_path / "lake" / f"table={name}", partitioning="hive").to_table()
        expected = table_rows(trace, name)
        assert len(read) == counts[name] == len(expected)
        assert set(read["run"].to_pylist()) <= {RUN}
        read = read.sort_by("rowid")
        assert read.drop_columns(["run", "hour", "rowid"]).to_pylist() == expected
    part = next((tmp_path / "lake" / "table=request" / f"run={RUN}").glob("hour=*/part-00000.parquet"))
    assert pyarrow.parquet.ParquetFile(part).metadata.row_group(0).column(0).compression == "ZSTD"


def test_parquet_is_partitioned_by_the_hour_of_a_row_or_of_its_step(trace: Path, tmp_path: Path) -> None:
    """GIVEN steps in two hours, one without a time, and a time before 1970 THEN each row is in its hour's folder."""
    second = 1_795_244_400_000_000_000  # 2026-11-21 07:00
    trace = Path(shutil.copy(trace, tmp_path / "own.duckdb"))  # others use that one
    with duckdb.connect(str(trace)) as connection:
        connection.execute(f"UPDATE step_schedule SET start_ns = {second} WHERE step = 2")
        connection.execute("UPDATE step_schedule SET start_ns = NULL WHERE step = 3")
        connection.execute("UPDATE step_schedule SET start_ns = -1 WHERE step = 4")
    export_parquet(trace, tmp_path / "lake", run="a")

    def rows(table: str) -> dict[str, list[int]]:
        folder = tmp_path / "lake" / f"table={table}" / "run=a"
        return {
            hour.name: sorted(set(pyarrow.parquet.read_table(hour, partitioning=None)["step"].to_pylist()))
            for hour in folder.iterdir()
        }

    of_steps = rows("step_schedule")
    assert of_steps == {
        "hour=20261121T06": [1, *range(5, STEPS + 1)],
        "hour=20261121T07": [2],
        f"hour={NO_HOUR}": [3],
        "hour=19691231T23": [4],
    }
    ran = rows("step_request")
    assert {hour: set(steps) <= set(of_steps[hour]) for hour, steps in ran.items()} == dict.fromkeys(of_steps, True)
    assert [path.name for path in (tmp_path / "lake" / "table=engine" / "run=a").iterdir()] == ["part-00000.parquet"]


def test_a_large_table_is_cut_into_parts(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 100)
    monkeypatch.setitem(Trace.sql.__kwdefaults__, "batch_rows", 2048)
    trace = Path(shutil.copy(trace, tmp_path / "own.duckdb"))  # others use that one
    with duckdb.connect(str(trace)) as connection:
        connection.execute("INSERT INTO join_count SELECT 'join', i, 0 FROM range(10_000) t(i)")
    export_parquet(trace, tmp_path / "lake", run="a", most_bytes=1)
    parts = sorted((tmp_path / "lake" / "table=join_count" / "run=a").glob("part-*.parquet"))
    read = [row for part in parts for row in pyarrow.parquet.read_table(part, partitioning=None).to_pylist()]
    assert len(parts) > 1
    assert [row.pop("rowid") for row in read] == list(range(len(read)))
    assert read == table_rows(trace, "join_count")
    assert all(pyarrow.parquet.read_metadata(part).num_rows for part in parts)


def test_runs_lie_beside_each_other_and_are_replaced_only_by_force(trace: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    export_parquet(trace, lake, run="one")
    export_parquet(trace, lake, run="two")
    both = pyarrow.dataset.dataset(lake / "table=step_schedule", partitioning="hive").to_table()
    assert sorted(set(both["run"].to_pylist())) == ["one", "two"]
    assert len(both) == 2 * STEPS
    with pytest.raises(KvtraceError, match="exported here before"):
        export_parquet(trace, lake, run="one")
    stale = lake / "table=step_schedule" / "run=one" / "hour=20261121T06" / "part-00009.parquet"
    shutil.copy(stale.with_name("part-00000.parquet"), stale)
    export_parquet(trace, lake, run="one", force=True)
    assert not stale.exists()
    assert (lake / "manifest-two.json").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 101])
def test_a_run_cannot_be_named_out_of_its_folder(trace: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(KvtraceError, match="--run-id"):
        export_parquet(trace, tmp_path / "lake", run=name)
    assert list(tmp_path.iterdir()) == []


def test_csv_has_every_row_and_hostile_text(trace: Path, tmp_path: Path) -> None:
    counts = export_csv(trace, tmp_path / "out", views=True)
    csv.field_size_limit(100_000)
    for name in ("request", "gpu_call", "step_request", "step"):
        with (tmp_path / "out" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            read = list(csv.DictReader(file))
        expected = table_rows(trace, name)
        assert len(read) == counts[name] == len(expected)
        assert list(read[0]) == list(expected[0])
    with (tmp_path / "out" / "request.csv").open(newline="", encoding="utf-8") as file:
        assert HOSTILE in {row["external_id"] for row in csv.DictReader(file)}
    assert counts["kv_access"] >= 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["rows"] == counts


def test_an_interrupted_export_leaves_what_was_there(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    export_perfetto(trace, tmp_path / "out")
    export_parquet(trace, tmp_path / "lake", run="one")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(write, "write_manifest", interrupt)
    monkeypatch.setattr(columns, "write_manifest", interrupt)
    monkeypatch.setattr(parquet, "write_manifest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_perfetto(trace, tmp_path / "out", force=True)
    with pytest.raises(KeyboardInterrupt):
        export_parquet(trace, tmp_path / "lake", run="one", force=True)
    with pytest.raises(KeyboardInterrupt):
        export_csv(trace, tmp_path / "new")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_only_an_export_is_replaced(trace: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    export_csv(trace, mine)
    with pytest.raises(KvtraceError, match="--force"):
        export_csv(trace, mine)
    export_csv(trace, mine, force=True)
    (mine / "manifest.json").write_text("{}")
    (mine / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(KvtraceError, match="mine"):
            export_csv(trace, mine, force=force)
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_the_trace_is_left_as_it_was(trace: Path, tmp_path: Path) -> None:
    before = trace.read_bytes()
    with pytest.raises(KvtraceError, match="no directory"):
        export_csv(trace, trace, force=True)
    export_csv(trace, tmp_path / "out")
    assert trace.read_bytes() == before
    with Trace(trace):
        pass
