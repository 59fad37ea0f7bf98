"""Small exports with every attribution written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources

from .conftest import EPOCH_NS, OTHER_TID, PID, Ingested, SmallExport

ATTRIBUTED = "SELECT start_ns - {0}, step, attribution::VARCHAR FROM gpu_kernel ORDER BY start_ns"


def steps(found: Ingested) -> list[tuple[int, int | None, str | None]]:
    return found.ask(ATTRIBUTED.format(EPOCH_NS))


class TestByNvtx:
    def test_a_kernel_gets_the_step_of_the_range_around_its_launch(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        """The forward of step 1 launches at 110; its kernel runs at 500, when the thread is at step 2 already."""
        export.epoch().kvtrace_domain().range("forward", 100, 200, 1).range("forward", 300, 400, 2)
        export.call(110, 1).call(310, 2).kernel(500, 600, 1).kernel(600, 700, 2)
        assert steps(ingested()) == [(500, 1, "nvtx_forward"), (600, 2, "nvtx_forward")]

    def test_the_innermost_range_counts(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        export.epoch().kvtrace_domain().range("step", 100, 900, 4)
        export.range("forward", 200, 300, 3).range("sample", 400, 500, 3)
        for number, at in enumerate((50, 150, 250, 350, 450, 550, 950), 1):
            export.call(at, number).kernel(1000 + at, 1000 + at + 1, number)
        assert steps(ingested()) == [
            (1050, None, None),
            (1150, 4, "nvtx_step"),
            (1250, 3, "nvtx_forward"),
            (1350, 4, "nvtx_step"),
            (1450, 3, "nvtx_sample"),
            (1550, 4, "nvtx_step"),
            (1950, 4, "after_range"),
        ]

    def test_launches_after_a_range_and_of_other_threads_are_told_apart(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        export.epoch().kvtrace_domain().range("forward", 100, 200, 1).range("forward", 300, 400, 2)
        export.call(250, 1).call(320, 2, tid=OTHER_TID).call(50, 3, tid=OTHER_TID)
        export.kernel(1000, 1010, 1).kernel(1020, 1030, 2).kernel(1040, 1050, 3)
        assert steps(ingested()) == [(1000, 1, "after_range"), (1020, 2, "other_thread"), (1040, None, None)]

    def test_ranges_of_other_domains_mean_nothing(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        export.epoch().kvtrace_domain().range("forward", 100, 200, 1, domain=9)
        export.call(110, 1).kernel(500, 600, 1)
        assert steps(ingested()) == [(500, None, None)]

    def test_all_nodes_of_a_graph_belong_to_its_launch(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        export.epoch().kvtrace_domain().range("forward", 100, 200, 7)
        export.call(150, 5, name="cudaGraphLaunch_v10000")
        for node in range(4):
            export.kernel(1000 + 10 * node, 1005 + 10 * node, 5, graphNodeId=(2 << 32) + node)
        found = ingested()
        assert found.ask("SELECT DISTINCT step, attribution::VARCHAR FROM gpu_kernel") == [(7, "nvtx_forward")]
        assert found.ask("SELECT activities, step, gpu_end_ns - gpu_start_ns FROM gpu_graph_launch") == [(4, 7, 35)]


class TestCalls:
    def test_records_that_repeat_a_correlation_are_kept_but_not_joined(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        export.epoch().call(100, 1).call(90, 1, name="backtrace", eventClass=67).kernel(200, 210, 1)
        found = ingested()
        assert found.ask("SELECT c.name FROM gpu_kernel JOIN gpu_call c USING (call_id)") == [
            ("cudaLaunchKernel_v7000",)
        ]
        assert found.ask("SELECT count(*) FROM gpu_call") == [(2,)]

    def test_two_calls_with_one_correlation_do_not_double_a_kernel(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        export.epoch().call(100, 1).call(105, 1, eventClass=1).kernel(200, 210, 1).kernel(220, 230, 1)
        found = ingested()
        assert found.ask(
            "SELECT k.start_ns - c.start_ns FROM gpu_kernel k JOIN gpu_call c USING (call_id) ORDER BY 1"
        ) == [
            (100,),
            (120,),
        ]

    def test_correlations_of_two_processes_are_two_things(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        export.epoch()
        for pid in (1, 2):
            export.call(100 * pid, 1, globalTid=(1 << 48) | (pid << 24) | 5)
            export.kernel(1000 * pid, 1000 * pid + 1, 1, globalPid=(1 << 48) | (pid << 24))
        found = ingested()
        assert found.ask(
            f"SELECT k.pid, c.start_ns - {EPOCH_NS} FROM gpu_kernel k JOIN gpu_call c USING (call_id) ORDER BY 1"
        ) == [(1, 100), (2, 200)]

    def test_kernels_without_a_process_belong_to_the_only_one(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        """Some writers drop `globalPid`."""
        export.epoch().call(100, 1)
        export.rows("CUPTI_ACTIVITY_KIND_KERNEL", [{"start": 200, "end": 210, "correlationId": 1, "shortName": 1}])
        found = ingested()
        assert found.ask("SELECT pid, call_id, device, demangled_name FROM gpu_kernel") == [
            (PID, 1, None, "cudaLaunchKernel_v7000")
        ]
        assert any("deviceId" in warning for warning in found.summary.warnings)


ATTENTION = "void flash::flash_fwd_kernel<int>(T1)"
COMBINE = "void flash::flash_fwd_splitkv_combine_kernel<int>(T1)"
WRITE = "void vllm::reshape_and_cache_flash_kernel<int>(T1)"


class TestLayers:
    def layers(self, found: Ingested) -> list[tuple[str, int | None, str | None]]:
        return found.ask(
            "SELECT layer_role::VARCHAR, layer, layer_method::VARCHAR FROM gpu_kernel "
            "WHERE layer_role IS NOT NULL ORDER BY start_ns"
        )

    def run(self, export: SmallExport, names: list[str], *, step: int | None = 1, graph: bool = False) -> None:
        export.epoch().kvtrace_domain()
        if step is not None:
            export.range("forward", 0, 100, step)
        export.call(10, 1)
        for number, name in enumerate(names):
            export.kernel(1000 + number * 10, 1005 + number * 10, 1, name, graphNodeId=number + 1 if graph else None)

    def test_kernels_of_a_step_are_counted(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        self.run(export, [WRITE, ATTENTION, COMBINE, "void gemm()", WRITE, ATTENTION, COMBINE])
        assert self.layers(ingested()) == [
            ("kv_write", 0, "step_order"),
            ("attention", 0, "step_order"),
            ("attention_combine", 0, "step_order"),
            ("kv_write", 1, "step_order"),
            ("attention", 1, "step_order"),
            ("attention_combine", 1, "step_order"),
        ]

    def test_two_attention_kernels_a_layer(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        self.run(export, [WRITE, ATTENTION, ATTENTION, WRITE, ATTENTION, ATTENTION])
        assert [layer for _, layer, _ in self.layers(ingested())] == [0, 0, 0, 1, 1, 1]

    def test_counts_that_do_not_fit_give_no_layer(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        self.run(export, [WRITE, ATTENTION, ATTENTION, WRITE, ATTENTION])
        assert [layer for role, layer, _ in self.layers(ingested()) if role == "attention"] == [None, None, None]

    def test_without_steps_a_graph_launch_is_counted(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        self.run(export, [WRITE, ATTENTION, WRITE, ATTENTION], step=None, graph=True)
        assert self.layers(ingested()) == [
            ("kv_write", 0, "graph_order"),
            ("attention", 0, "graph_order"),
            ("kv_write", 1, "graph_order"),
            ("attention", 1, "graph_order"),
        ]

    def test_neither_step_nor_graph_gives_none(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        self.run(export, [WRITE, ATTENTION], step=None)
        assert [layer for _, layer, _ in self.layers(ingested())] == [None, None]


def test_launch_shapes_are_read_on_request(export: SmallExport, tmp_path: Path) -> None:
    export.epoch().kernel(1, 2, 1, gridX=3, blockX=128, registersPerThread=40).kernel(3, 4, 2, gridX=5)
    shapes = (
        "SELECT k.start_ns - {0}, s.grid_x, s.block_x, s.registers "
        "FROM gpu_launch_shape s JOIN gpu_kernel k USING (activity_id) ORDER BY 1"
    )
    for asked, expected in ((True, [(1, 3, 128, 40), (3, 5, None, None)]), (False, [])):
        sources = Sources(nsight=(export.path,), options=Options(launch_shapes=asked))
        found = Ingested(ingest(None, tmp_path / "trace.duckdb", sources=sources))
        assert found.ask(shapes.format(EPOCH_NS)) == expected


class TestStepGpu:
    def test_overlapping_work_is_busy_once(self, export: SmallExport, ingested: Callable[..., Ingested]) -> None:
        """Step 1: 1000-1100 and 1050-1150 on two streams, then 1200-1210; step 2 begins at 1300."""
        export.epoch().kvtrace_domain().range("forward", 0, 100, 1).range("forward", 200, 300, 2)
        export.call(10, 1).call(20, 2).call(30, 3, name="cudaMemcpyAsync_v3020").call(210, 4)
        export.kernel(1000, 1100, 1, "void gemm()").kernel(1050, 1150, 2, ATTENTION, streamId=8)
        copy = {"start": 1200, "end": 1210, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 3}
        copy |= {"globalPid": (1 << 48) | (PID << 24), "bytes": 500, "copyKind": 1, "srcKind": 1, "dstKind": 2}
        export.rows("CUPTI_ACTIVITY_KIND_MEMCPY", [copy]).kernel(1300, 1400, 4, "void other()")
        found = ingested()
        assert found.ask(
            "SELECT step, busy_ns, idle_ns, launch_gap_ns, kernels, kernel_ns, gemm_ns, attention_ns, other_ns, "
            "memcpy_ns FROM step_gpu ORDER BY step"
        ) == [(1, 160, 50, None, 2, 200, 100, 100, 0, 10), (2, 100, 0, 90, 1, 100, 0, 0, 100, 0)]
        assert found.ask(
            "SELECT direction::VARCHAR, source_memory::VARCHAR, bytes, bytes_per_s, step FROM gpu_copy"
        ) == [("host_to_device", "pinned", 500, 5e10, 1)]
