"""Forward passes, on the worker's host side."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kvtrace.capture._native import Forwards
from kvtrace.capture.recorder import Recorder
from kvtrace.events import FORWARD, GraphMode
from kvtrace.probes.device.batch import BatchOrder
from kvtrace.probes.device.cuda_events import Begin, End
from kvtrace.probes.device.levels import DeviceRecorder
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.engine_facts import dp_rank
from kvtrace.probes.hooks import Args, Argument, Hook, Kwargs, Need, argument
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.vllm_symbols import MODEL_RUNNER, PARALLEL_CONFIG, RUNNER_MODULES, SCHEDULER_OUTPUT
from kvtrace.probes.vllm_types import Member, ModelRunner, SchedulerOutput

_GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager"
_PARALLEL = "vllm.distributed.parallel_state"
_LAYERS = (
    Need(
        MODEL_RUNNER,
        "compilation_config device get_model model_config parallel_config vllm_config",
        "KV accesses timed on the GPU",
    ),
    Need("vllm.config.model:ModelConfig", "get_num_layers max_model_len", "KV accesses timed on the GPU"),
    Need("vllm.config.vllm:VllmConfig", "scheduler_config", "KV accesses timed on the GPU"),
    Need(
        "vllm.config.scheduler:SchedulerConfig", "max_num_batched_tokens max_num_seqs", "KV accesses timed on the GPU"
    ),
    Need("vllm.config.compilation:CompilationConfig", "static_forward_context", "KV accesses timed on the GPU"),
    Need(
        "vllm.model_executor.layers.attention.attention:Attention",
        "impl kv_cache",
        "KV accesses timed on the GPU",
    ),
)
_WARM_UP_PASSES = 32
"""vLLM's second model runner warms up with a few passes of its own, which belong to no step."""
_STEPLESS = "forward passes: kvtrace's mark on a step does not reach the worker"
_MODES = {"NONE": GraphMode.eager, "PIECEWISE": GraphMode.piecewise, "FULL": GraphMode.full}


def _mode(graph_mode: Member) -> int:
    return int(_MODES.get(graph_mode.name, 0))


def _forwards(recorder: Recorder) -> Forwards:
    optional = OptionalAttributes(recorder)

    def missing(scheduler_output: SchedulerOutput, in_a_row: int) -> None:
        if in_a_row > _WARM_UP_PASSES:
            optional.tell(scheduler_output, STEP_ATTRIBUTE, _STEPLESS)

    return Forwards(recorder.packer(FORWARD), STEP_ATTRIBUTE, _mode, missing)


def hooks(recorder: Recorder, ranges: Ranges | None, wanted: str) -> list[Hook]:
    """Return the hooks on both model runners, for the wanted level. CPU runners inherit the first."""
    worker = _WorkerHooks(recorder, ranges, wanted)
    found = [hook for module in RUNNER_MODULES for hook in _runner_hooks(module, worker)]
    if wanted == "tile":
        found += BatchOrder(recorder).hooks()
    full_graph = f"{_GRAPHS}.run_fullgraph"
    found.append(Hook(full_graph, "which forward passes are full graphs", before=worker.before_full_graph))
    return found


def _runner_hooks(module: str, worker: _WorkerHooks) -> list[Hook]:
    return [
        Hook(
            f"{module}:GPUModelRunner.execute_model",
            "forward passes",
            before=worker.forwards.before,
            after=worker.forwards.after,
            takes=(Argument(1, "scheduler_output"), Argument(3, "dummy_run", optional=True)),
            needs=(Need(SCHEDULER_OUTPUT, "num_scheduled_tokens total_num_scheduled_tokens"),),
        ),
        Hook(
            f"{module}:GPUModelRunner.initialize_kv_cache",
            "which rank a worker is",
            after=worker.after_caches,
            needs=(
                Need(f"{_PARALLEL}:", "get_tensor_model_parallel_rank"),
                Need(f"{_PARALLEL}:", "get_pp_group", "pipeline parallel ranks"),
                Need(f"{_PARALLEL}:GroupCoordinator", "rank_in_group", "pipeline parallel ranks"),
                Need(f"{module}:GPUModelRunner", "vllm_config", "data parallel ranks"),
                Need("vllm.config.vllm:VllmConfig", "parallel_config", "data parallel ranks"),
                Need(PARALLEL_CONFIG, "data_parallel_index data_parallel_rank", "data parallel ranks"),
                *_LAYERS,
            ),
        ),
        Hook(
            f"{module}:set_forward_context",
            "the graph mode of forward passes",
            before=worker.forwards.context,
            needs=(Need("vllm.forward_context:set_forward_context", "cudagraph_runtime_mode", "graph modes"),),
        ),
    ]


class _WorkerHooks:
    """Functions of the hooks, and what they share: forward passes, timed layers and NVTX ranges."""

    def __init__(self, recorder: Recorder, ranges: Ranges | None, wanted: str) -> None:
        self._recorder, self._ranges = recorder, ranges
        self._layers = DeviceRecorder(recorder, wanted) if wanted != "host" else None
        self._announced: set[int] = set()
        self.forwards = _forwards(recorder)
        if ranges is not None:
            self.forwards.watch(*_with_ranges(ranges, None, None), None, None)

    def before_full_graph(self, args: Args, kwargs: Kwargs) -> None:
        self.forwards.mode = self.forwards.mode or GraphMode.full

    def after_caches(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        if os.getpid() in self._announced or argument(args, kwargs, 2, "is_profiling", False):
            return
        self._announced.add(os.getpid())
        self._recorder.note("role", opens=True, role="worker")
        self._recorder.note("rank", **_ranks(args[0]), **_gpu(args[0]))
        ranges, layers = self._ranges, self._layers
        if ranges is not None:
            ranges.start()
        if layers is not None and layers.attach(args[0]):
            around = layers.around()
            if ranges is not None:
                around = _with_ranges(ranges, *around)
            self.forwards.watch(*around, layers.turn, layers.other)


def _with_ranges(ranges: Ranges, begin: Begin | None, end: End | None) -> tuple[Begin, End]:
    """Add NVTX ranges to functions that are called at the begin and end of a forward pass."""

    def ranged_begin(start_ns: int, dummy: bool, scheduler_output: SchedulerOutput) -> None:
        mark = None if dummy else getattr(scheduler_output, STEP_ATTRIBUTE, None)
        if mark:
            ranges.begin_forward(mark[1], start_ns)
        if begin is not None:
            begin(start_ns, dummy, scheduler_output)

    def ranged_end(tokens: int) -> None:
        if end is not None:
            end(tokens)
        ranges.end_forward()

    return ranged_begin, ranged_end


def _ranks(runner: ModelRunner) -> dict[str, Any]:
    from vllm.distributed import parallel_state

    ranks: dict[str, Callable[[], int]] = {
        "tp_rank": parallel_state.get_tensor_model_parallel_rank,
        "pp_rank": lambda: parallel_state.get_pp_group().rank_in_group,
        "dp_rank": lambda: dp_rank(runner.vllm_config.parallel_config),
    }
    found = {}
    for name, read in ranks.items():
        try:
            found[name] = int(read())
        except Exception:  # the group does not exist in this version or this launch
            continue
    return found


def _gpu(runner: ModelRunner) -> dict[str, Any]:
    """The name of the worker's GPU. Empty on a CPU."""
    device = getattr(runner, "device", None)
    if getattr(device, "type", None) != "cuda":
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name(device)}
