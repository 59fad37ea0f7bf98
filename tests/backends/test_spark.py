"""Spark, on a cluster of processes, gives DuckDB's answers: over hand-written traces, and over a recording.

The suite asks a few queries that need most translations; `make distributed` sets KVTRACE_DISTRIBUTED and asks all of
them, and those of the recording that KVTRACE_TRACE names.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from kvtrace.errors import KvtraceError
from kvtrace.export.parquet import export_parquet
from kvtrace.queries import Trace, catalogue
from kvtrace.queries.backends.choose import open_with
from kvtrace.queries.backends.lake import Lake
from tests.traces import write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = Path(__file__).parents[1] / "queries"
ALL = bool(os.environ.get("KVTRACE_DISTRIBUTED"))
FEW = ("allocator-waste", "hot-prefixes", "kv-lag", "run-setting")
CASES = sorted(case for case in QUERIES.glob("*/expected*.csv") if ALL or case.parent.name in FEW)
if not ALL:
    CASES = [case for case in CASES if case.name == "expected.csv"]
TRACE = os.environ.get("KVTRACE_TRACE")


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("empty") / "trace.duckdb")


def lake_of(case: Path, empty: Path, folder: Path) -> Path:
    """The exported trace of a hand-written case."""
    shutil.copyfile(empty, folder / "trace.duckdb")
    with duckdb.connect(str(folder / "trace.duckdb")) as connection:
        connection.execute((case.parent / "trace.sql").read_text())
    export_parquet(folder / "trace.duckdb", folder / "lake", run="a")
    return folder / "lake"


def differences(
    names: list[str], trace: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, **params: str
) -> dict[str, str]:
    """Return how Spark's answers and those of DuckDB over Parquet differ from those of the trace itself."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    from same_answers import difference

    found: dict[str, str] = {}
    for engine in ("duckdb", "spark"):
        with Trace(trace) as known, open_with(lake, engine) as asked:
            for name in names:
                wanted = known.query(name, format="arrow", **params)
                if unlike := difference(wanted, asked.query(name, format="arrow", **params)):
                    found[f"{engine} {name}"] = unlike
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_all_engines_give_the_same_answer(
    case: Path, cluster: SparkSession, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, given = case.name.removesuffix(".csv").partition("@")
    params = dict(pair.split("=") for pair in given.split(",")) if given else {}
    lake = lake_of(case, empty, tmp_path)

    assert not differences([case.parent.name], tmp_path / "trace.duckdb", lake, monkeypatch, **params)


@pytest.mark.skipif(not TRACE, reason="KVTRACE_TRACE names no recording")
def test_all_engines_give_the_same_answers_about_a_recording(
    cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_parquet(Path(str(TRACE)), tmp_path / "lake")
    names = [name for name, query in catalogue().items() if not any(param.required for param in query.params)]

    assert not differences(names, Path(str(TRACE)), tmp_path / "lake", monkeypatch)


def test_the_cluster_has_two_workers_and_the_command_line_asks_it(
    cluster: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """GIVEN an export WHEN Spark is asked THEN executors of two processes are there and CSV is the expected file's."""
    case = QUERIES / "kv-reads-writes" / "expected.csv"
    lake = lake_of(case, empty, tmp_path)
    done = CliRunner().invoke(
        app, ["query", "kv-reads-writes", str(lake), "--engine", "spark", "-o", str(tmp_path / "answer.csv")]
    )
    executors = cluster.sparkContext._jsc.sc().statusTracker().getExecutorInfos()

    assert done.exit_code == 0, done.output
    answer, expected = (list(csv.reader(file.open())) for file in (tmp_path / "answer.csv", case))
    assert answer[1:] == expected[1:]
    assert len(executors) == 1 + 2  # the driver's own entry, then the workers'


def test_an_error_of_spark_is_one_of_ours(cluster: SparkSession, empty: Path, tmp_path: Path) -> None:
    lake = lake_of(QUERIES / "kv-reads-writes" / "expected.csv", empty, tmp_path)
    file = next(lake.glob("table=step_request/run=a/**/*.parquet"))
    whole = file.read_bytes()
    with open_with(lake, "spark") as trace:
        footer = 8 + int.from_bytes(whole[-8:-4], "little")
        file.write_bytes(whole[:4] + bytes(len(whole) - footer - 4) + whole[-footer:])
        with pytest.raises(KvtraceError, match="Spark: "):
            trace.query("kv-reads-writes", format="arrow")


def test_an_export_with_a_damaged_file_is_refused_by_name(empty: Path, tmp_path: Path) -> None:
    lake = lake_of(QUERIES / "kv-reads-writes" / "expected.csv", empty, tmp_path)
    next(lake.glob("table=step_request/run=a/**/*.parquet")).write_bytes(b"no Parquet")
    with pytest.raises(KvtraceError, match=r"lake.* cannot be read .*part-00000.parquet"):
        open_with(lake, "duckdb")


@pytest.mark.parametrize("package", ["pyspark", "sqlglot"])
def test_without_the_extra_one_line_says_what_to_install(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    lake = lake_of(QUERIES / "kv-reads-writes" / "expected.csv", empty, tmp_path)
    for module in [
        name for name in sys.modules if name.split(".")[0] == package or name.startswith("kvtrace.queries.backends.")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["query", "kv-reads-writes", str(lake), "--engine", "spark"])
    assert isinstance(done.exception, Exception)
    assert "is not installed" in str(done.exception)
    assert "pip install 'kvtrace[spark]'" in str(done.exception)


def test_a_lake_knows_its_rows(empty: Path, tmp_path: Path) -> None:
    lake = Lake(lake_of(QUERIES / "kv-reads-writes" / "expected.csv", empty, tmp_path))
    assert lake.rows("step_request") == 3
    assert lake.rows("gpu_tile") == 0
