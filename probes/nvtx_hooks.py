"""Hooks that only NVTX needs: the end of an iteration, sampling, copies to and from offload tiers, the shutdown."""

from __future__ import annotations

from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.vllm_symbols import RUNNER_MODULES

_CORE = "vllm.v1.engine.core:EngineCore"
_COPIERS = (
    "vllm.v1.simple_kv_offload.copy_backend:DmaCopyBackend",
    "vllm.v1.simple_kv_offload.disk_backend:DiskBackend",
)
_SHUTDOWNS = (f"{_CORE}.shutdown", "vllm.v1.worker.gpu_worker:Worker.shutdown")
_OFFLOADER = "vllm.v1.kv_offload.cpu.gpu_worker:CPUOffloadingWorker"


def hooks(engines: Engines, ranges: Ranges) -> list[Hook]:
    """The hooks; they are installed only where NVTX ranges are wanted."""

    def after_iteration(_: None, __: object, args: Args, kwargs: Kwargs) -> None:
        engine = engines.by_scheduler.get(id(args[0].scheduler))
        if engine is not None:
            ranges.end_step(engine)

    def before_sample(args: Args, kwargs: Kwargs) -> bool:
        return ranges.begin_sample()

    def after_sample(is_open: bool, _: object, args: Args, kwargs: Kwargs) -> None:
        if is_open:
            ranges.end_sample()

    def before_copy(args: Args, kwargs: Kwargs) -> None:
        blocks = len(argument(args, kwargs, 1, "src_blocks"))
        ranges.offloaded(blocks if argument(args, kwargs, 3, "is_store") else -blocks)

    def before_store(args: Args, kwargs: Kwargs) -> None:
        ranges.offloaded(len(argument(args, kwargs, 2, "src_spec").block_ids))

    def before_load(args: Args, kwargs: Kwargs) -> None:
        ranges.offloaded(-len(argument(args, kwargs, 3, "dst_spec").block_ids))

    def before_shutdown(args: Args, kwargs: Kwargs) -> None:
        ranges.flush()

    iteration, marks = "where NVTX step ranges end", "NVTX marks of offload copies"
    engine = (Need(_CORE, "scheduler"),)
    return [
        Hook(f"{_CORE}.step", iteration, after=after_iteration, needs=engine),
        Hook(f"{_CORE}.step_with_batch_queue", iteration, after=after_iteration, needs=engine),
        *(
            Hook(
                f"{module}:GPUModelRunner.sample_tokens",
                "NVTX ranges of sampling",
                before=before_sample,
                after=after_sample,
            )
            for module in RUNNER_MODULES
        ),
        *(Hook(f"{copier}.launch_copy", marks, before=before_copy) for copier in _COPIERS),
        *(Hook(shutdown, "the profile's last steps", before=before_shutdown) for shutdown in _SHUTDOWNS),
        Hook(f"{_OFFLOADER}.submit_store", marks, before=before_store),
        Hook(f"{_OFFLOADER}.submit_load", marks, before=before_load),
    ]
