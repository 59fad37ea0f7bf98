"""Real exports of nsys 2021 to 2026: everything arrives, and nothing that should stay behind."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtrace.ingest.importers.nsight.export import PRIVATE
from kvtrace.ingest.importers.nsight.tables import IMPORTS
from kvtrace.queries import Trace, catalogue

from .conftest import DATA, Ingested, ingest_export, real_exports

EXPORTS = real_exports()
H200 = next((path for path in EXPORTS if "h200" in path.name), None)
needs_data = pytest.mark.skipif(not EXPORTS, reason=f"no exports in {DATA}; KVTRACE_NSIGHT_DATA names their folder")


@pytest.fixture(scope="module", params=EXPORTS, ids=lambda path: path.name[:24])
def real(
    request: pytest.FixtureRequest, unpack: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[sqlite3.Connection, Ingested]:
    path = unpack(request.param)
    source = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    source.text_factory = bytes
    return source, ingest_export(path, tmp_path_factory.mktemp("trace") / "trace.duckdb")


def tables_of(source: sqlite3.Connection) -> set[str]:
    return {name.decode() for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@needs_data
class TestEveryExport:
    def test_every_table_has_as_many_rows_as_sqlite_counts(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        source, found = real
        expected: Counter[str] = Counter()
        for what in IMPORTS:
            if what.table in tables_of(source) and not what.optional:
                expected[what.target] += source.execute(f"SELECT count(*) FROM {what.table}").fetchone()[0]
        for target, rows in expected.items():
            assert found.ask(f"SELECT count(*) FROM {target}") == [(rows,)], target
        assert found.ask("SELECT count(*) FROM source_table WHERE imported <> rows") == [(0,)]

    def test_kernels_keep_their_names_times_and_durations(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        source, found = real
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables_of(source):
            pytest.skip("no kernels")
        kernels = (
            "SELECT s.value, count(*), sum(k.end - k.start), min(k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1"
        )
        epoch = found.ask("SELECT coalesce(session_start_ns, 0) FROM source")[0][0]
        expected = {
            (name.decode("utf-8", "replace"), count, total, first + epoch)
            for name, count, total, first in source.execute(kernels)
        }
        ours = "SELECT demangled_name, count(*), sum(duration_ns)::BIGINT, min(start_ns) FROM gpu_kernel GROUP BY 1"
        assert set(found.ask(ours)) == expected

    def test_activities_have_the_call_of_their_correlation(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        source, found = real
        if not {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= tables_of(source):
            pytest.skip("no kernels or no calls")
        starts = {
            (tid >> 24, correlation): start
            for tid, correlation, start in source.execute(
                "SELECT globalTid, correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass IN (0, 1)"
            )
        }
        epoch = found.ask("SELECT coalesce(session_start_ns, 0) FROM source")[0][0]
        expected = Counter(
            (start + epoch, starts[pid >> 24, correlation] + epoch if (pid >> 24, correlation) in starts else None)
            for start, pid, correlation in source.execute(
                "SELECT start, globalPid, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL"
            )
        )
        ours = "SELECT k.start_ns, c.start_ns FROM gpu_kernel k LEFT JOIN gpu_call c USING (call_id)"
        assert Counter(found.ask(ours)) == expected

    def test_every_activity_is_attributed_once(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        _, found = real
        everything = found.ask("SELECT count(*), count(DISTINCT activity_id) FROM gpu_activity")
        assert found.ask("SELECT count(*), count(DISTINCT activity_id) FROM gpu_attribution") == everything

    def test_times_are_unix_times(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        _, found = real
        ((epoch, applied),) = found.ask(
            "SELECT session_start_ns, method::VARCHAR FROM source JOIN alignment USING (source_id) WHERE applied"
        )
        assert applied == ("utc_epoch" if epoch else "none")
        assert bool(epoch) != any("does not say when" in warning for warning in found.summary.warnings)

    def test_environment_and_output_stay_behind(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        source, found = real
        trace = found.trace.read_bytes()
        for table in set(PRIVATE) & tables_of(source):
            assert found.ask(f"SELECT rows, imported FROM source_table WHERE source_table = '{table}'") == [
                (None, None)
            ]
            if table == "META_DATA_CAPTURE":
                for (value,) in source.execute(
                    f"SELECT value FROM {table} WHERE name LIKE '%ENV%' AND length(value) > 12"
                ):
                    assert value not in trace

    def test_queries_answer(self, real: tuple[sqlite3.Connection, Ingested]) -> None:
        _, found = real
        with Trace(found.trace) as trace:
            for name in catalogue():
                trace.query(name, format="arrow")
            assert trace.query("nsight-alignment", format="arrow").num_rows == 1


@pytest.fixture(scope="module")
def found(unpack: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    assert H200 is not None
    return ingest_export(unpack(H200), tmp_path_factory.mktemp("h200") / "trace.duckdb")


@pytest.mark.skipif(H200 is None, reason=f"no export of vLLM on an H200 in {DATA}")
class TestVllmOnAnH200:
    def test_every_kernel_has_its_demangled_name(self, found: Ingested) -> None:
        assert found.ask("SELECT count(*), count(demangled_name) FROM gpu_kernel") == [(198_294, 198_294)]

    def test_kernel_time_by_category_adds_up_to_the_total(self, found: Ingested) -> None:
        by_category = dict(found.ask("SELECT category::VARCHAR, sum(duration_ns)::BIGINT FROM gpu_kernel GROUP BY 1"))
        assert None not in by_category
        assert sum(by_category.values()) == 3_762_371_037
        assert by_category["other"] / 3_762_371_037 < 0.05

    def test_graph_nodes_belong_to_their_launches(self, found: Ingested) -> None:
        assert found.ask("SELECT count(*), count(call_id) FROM gpu_kernel WHERE graph_node IS NOT NULL") == [
            (171_807, 171_807)
        ]
        assert found.ask("SELECT count(*), sum(activities)::BIGINT FROM gpu_graph_launch") == [(415, 172_189)]

    def test_each_layer_runs_once_in_each_graph_of_the_whole_model(self, found: Ingested) -> None:
        layers = (
            "SELECT DISTINCT count(*), count(DISTINCT layer), min(layer), max(layer) FROM gpu_kernel "
            "WHERE graph_node IS NOT NULL AND layer_role = '{}' GROUP BY call_id"
        )
        for role in ("attention", "kv_write", "attention_combine"):
            assert found.ask(layers.format(role)) == [(32, 32, 0, 31)], role

    def test_a_layer_writes_its_kv_before_it_attends(self, found: Ingested) -> None:
        out_of_order = """
            SELECT count(*) FROM gpu_kernel w JOIN gpu_kernel a USING (call_id, layer)
            WHERE w.layer_role = 'kv_write' AND a.layer_role = 'attention' AND w.end_ns > a.start_ns
        """
        assert found.ask(out_of_order) == [(0,)]
