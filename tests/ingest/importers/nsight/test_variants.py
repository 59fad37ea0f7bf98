"""Exports as other versions and tools leave them: odd times, names, tables and processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import EPOCH_NS, Ingested, SmallExport

CALLED = (
    "SELECT activity_id, a.host, c.start_ns - $epoch FROM gpu_activity a JOIN gpu_attribution USING (activity_id) "
    "LEFT JOIN gpu_call c USING (call_id) ORDER BY activity_id"
).replace("$epoch", str(EPOCH_NS))

Ingest = Callable[..., Ingested]


class TestTimes:
    @pytest.mark.parametrize("end", [1_600, 7_446_744_073_709_551_615, 31 * 86_400 * 10**9, -(1 << 62)])
    def test_a_row_whose_times_cannot_be_is_left_out_and_named(
        self, export: SmallExport, ingested: Ingest, end: int
    ) -> None:
        """One bad row refuses no file, and is in no sum; what belongs to the others stays with them."""
        export.epoch()
        for number, (start, ends) in enumerate([(1_000, 1_500), (2_000, end), (3_000, 3_400)], 1):
            export.kernel(start, ends, number, gridX=number).call(start - 300, number)
        found = ingested()
        [warning] = found.summary.warnings
        assert "1 rows of table CUPTI_ACTIVITY_KIND_KERNEL have times that cannot be" in warning
        assert warning.endswith("left out: row 2")
        assert found.ask("SELECT sum(duration_ns) FROM gpu_kernel") == [(900,)]
        assert found.ask(CALLED) == [(1, 1, 700), (3, 1, 2_700)]
        assert found.ask("SELECT rows, imported FROM source_table WHERE target = 'gpu_activity'") == [(3, 2)]

    def test_the_details_of_a_copy_left_out_go_with_it(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().kernel(1, 2, 9)
        for start, end, size in ((10, 20, 1), (30, 25, 2)):
            row = {"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": start}
            export.rows("CUPTI_ACTIVITY_KIND_MEMCPY", [row | {"globalPid": 1 << 48, "bytes": size, "copyKind": 1}])
        row = {"start": 40, "end": 50, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 40}
        export.rows("CUPTI_ACTIVITY_KIND_MEMSET", [row | {"globalPid": 1 << 48, "bytes": 3, "memKind": 2, "value": 0}])
        assert ingested().ask(
            "SELECT kind::VARCHAR, bytes FROM gpu_transfer JOIN gpu_activity USING (activity_id) ORDER BY bytes"
        ) == [("memcpy", 1), ("memset", 3)]

    def test_times_before_the_session_began_are_kept(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().call(-3_000, 1).kernel(1_000, 1_500, 1)
        assert ingested().ask(CALLED) == [(1, 1, -3_000)]

    def test_a_call_that_cannot_be_is_left_out(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().call(10, 1, end=5).call(20, 2).kernel(100, 150, 1).kernel(200, 250, 2)
        assert ingested().ask(CALLED) == [(1, 1, None), (2, 1, 20)]


class TestProcesses:
    def test_one_pid_on_two_hosts_is_two_processes(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch()
        for host, at in ((1, 1_000), (513, 100_000)):
            process = (host << 48) | (1234 << 24)
            export.call(at, 5, globalTid=process | 1234).kernel(at + 10, at + 20, 5, globalPid=process)
        export.rows("PROCESSES", [{"globalPid": (513 << 48) | (1234 << 24), "pid": 1234, "name": "python"}])
        found = ingested()
        assert found.ask(CALLED) == [(1, 1, 1_000), (2, 513, 100_000)]
        assert found.ask("SELECT pid, host FROM profiled_process") == [(1234, 513)]

    def test_correlation_0_joins_nothing(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().call(1, 0).kernel(10, 20, 0).call(30, 7).kernel(40, 50, 7)
        assert ingested().ask(CALLED) == [(1, 1, None), (2, 1, 30)]


class TestNames:
    def test_a_name_that_is_not_there_falls_back_to_the_others(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch()
        for number, short in enumerate(["gemm_a", "attn_b", "gemm_a"], 1):
            export.kernel(number * 10, number * 10 + 5, number, demangledName=0, shortName=export.string(short))
        export.kernel(100, 105, 9, "void known<int>(int)")
        export.kernel(110, 115, 9, demangledName=77, shortName=78)
        found = ingested()
        assert found.ask(
            "SELECT short_name, count(*) FROM gpu_activity JOIN kernel_name USING (kernel_name_id) "
            "GROUP BY ALL ORDER BY ALL"
        ) == [("#78", 1), ("attn_b", 1), ("gemm_a", 2), ("void kno", 1)]
        assert any("StringIds lacks 3 names of kernels" in warning for warning in found.summary.warnings)

    def test_a_calls_name_that_is_not_there_reads_its_id(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().call(1, 1, nameId=99)
        found = ingested()
        assert found.ask("SELECT name FROM gpu_call") == [("#99",)]
        assert any("StringIds lacks 1 names; they read #ID" in warning for warning in found.summary.warnings)


class TestTables:
    @pytest.mark.parametrize("name", ["NVTX_EVENTS_V2", "NVTX_EVENTS_v3", "nvtx_events"])
    def test_a_variant_of_a_tables_name_is_read_and_said(
        self, export: SmallExport, ingested: Ingest, name: str
    ) -> None:
        export.epoch().kvtrace_domain().range("forward", 500, 5_000, 1).kernel(1, 2, 1)
        export.db.execute("ALTER TABLE NVTX_EVENTS RENAME TO renamed")
        export.db.execute(f"ALTER TABLE renamed RENAME TO {name}")
        export.db.commit()
        found = ingested()
        assert found.ask("SELECT name, start_ns FROM nvtx WHERE kind = 'push_pop'") == [("forward", EPOCH_NS + 500)]
        assert found.ask("SELECT count(*) FROM alignment WHERE method = 'utc_epoch'") == [(1,)]
        assert any(f"tables of other names were read: {name} as NVTX_EVENTS" in each for each in found.summary.warnings)

    def test_a_variant_beside_the_table_and_a_view_are_warned_of(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().call(1, 1).kernel(10, 20, 1)
        row: dict[str, Any] = {"start": 1, "end": 2}
        export.rows("CUPTI_ACTIVITY_KIND_KERNEL_V2", [row])
        export.db.execute("CREATE VIEW OSRT_API AS SELECT 1 AS start, 2 AS end")
        export.db.commit()
        found = ingested()
        assert found.ask("SELECT count(*) FROM gpu_activity") == [(1,)]
        assert any("CUPTI_ACTIVITY_KIND_KERNEL_V2, OSRT_API are views" in each for each in found.summary.warnings)

    def test_variants_of_private_tables_are_not_even_counted(self, export: SmallExport, ingested: Ingest) -> None:
        export.epoch().kernel(1, 2, 1).rows("ProcessStreams_V2", [{"filenameId": 1, "contentId": 1}])
        export.rows("ProcessStreams", [{"filenameId": 1, "contentId": 1}])
        assert ingested().ask(
            "SELECT source_table, rows FROM source_table WHERE source_table ILIKE 'ProcessStreams%'"
        ) == [("ProcessStreams", None)]
