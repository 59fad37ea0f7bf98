"""Forward passes, on the worker's host side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from kvtrace.capture import Recorder
from kvtrace.events import FORWARD, GraphMode
from kvtrace.probes.device.batch import BatchOrder
from kvtrace.probes.device.levels import DeviceRecorder, level
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.engine_facts import dp_rank
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.lacks import Lacks
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.owners import PARALLEL_CONFIG, SCHEDULER_OUTPUT

_RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
_GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager"
_PARALLEL = "vllm.distributed.parallel_state"
_LAYERS = (
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


class _Marks:
    """Finds the step that a scheduler's output belongs to: (engine's pid, step)."""

    def __init__(self, recorder: Recorder) -> None:
        self._lacks = Lacks(recorder)
        self._without = 0  # forward passes in a row

    def step(self, scheduler_output: Any) -> tuple[int, int] | None:
        """The mark that the engine put there; None if there is none, which is said if it goes on."""
        found: tuple[int, int] | None = getattr(scheduler_output, STEP_ATTRIBUTE, None)
        if found is not None:
            self._without = 0
            return found
        self._without += 1
        if self._without > _WARM_UP_PASSES:
            self._lacks.tell(scheduler_output, STEP_ATTRIBUTE, _STEPLESS)
        return None


def hooks(recorder: Recorder, ranges: Ranges | None) -> list[Hook]:
    """The hooks on both model runners. CPU runners inherit the first."""
    emit = recorder.stream(FORWARD)
    now = time.monotonic_ns
    layers = DeviceRecorder(recorder, level()) if level() != "host" else None
    mode = [0]  # of the forward pass under way; 0 before it is known
    announced: set[int] = set()
    step_of = _Marks(recorder).step

    def before_forward(args: Args, kwargs: Kwargs) -> int:
        mode[0] = 0
        dummy = argument(args, kwargs, 3, "dummy_run", False)
        start_ns = 0 if dummy else now()
        if layers is not None or ranges is not None:
            scheduler_output = argument(args, kwargs, 1, "scheduler_output")
            step = None if dummy else getattr(scheduler_output, STEP_ATTRIBUTE, None)
            if ranges is not None and step:
                ranges.begin_forward(step[1], start_ns)
            if layers is not None and (dummy or scheduler_output.total_num_scheduled_tokens):  # else nothing runs
                layers.begin(step[1] if step else 0, step[0] if step else 0)
        return start_ns

    def after_forward(start_ns: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        scheduler_output = argument(args, kwargs, 1, "scheduler_output")
        step = step_of(scheduler_output) if start_ns else None
        if step is None:
            return
        scheduled = scheduler_output.num_scheduled_tokens
        tokens = scheduler_output.total_num_scheduled_tokens
        if layers is not None and tokens:
            layers.end()
        if ranges is not None:
            ranges.end_forward()
        emit(start_ns, now(), step[0], step[1], tokens, len(scheduled), mode[0])

    def before_context(args: Args, kwargs: Kwargs) -> None:
        graph_mode = kwargs.get("cudagraph_runtime_mode")
        if graph_mode is not None and not mode[0]:
            mode[0] = _MODES.get(graph_mode.name, 0)

    def before_full_graph(args: Args, kwargs: Kwargs) -> None:
        mode[0] = mode[0] or GraphMode.full

    def after_caches(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        if os.getpid() in announced or argument(args, kwargs, 2, "is_profiling", False):
            return
        announced.add(os.getpid())
        recorder.note("role", opens=True, role="worker")
        recorder.note("rank", **_ranks(args[0]))
        if ranges is not None:
            ranges.start()
        if layers is not None:
            layers.attach(args[0])

    found = []
    for module in _RUNNERS:
        found += [
            Hook(
                f"{module}:GPUModelRunner.execute_model",
                "forward passes",
                before=before_forward,
                after=after_forward,
                needs=(Need(SCHEDULER_OUTPUT, "num_scheduled_tokens total_num_scheduled_tokens"),),
            ),
            Hook(
                f"{module}:GPUModelRunner.initialize_kv_cache",
                "which rank a worker is",
                after=after_caches,
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
                before=before_context,
                needs=(Need("vllm.forward_context:set_forward_context", "cudagraph_runtime_mode", "graph modes"),),
            ),
        ]
    if level() == "tile":
        found += BatchOrder(recorder).hooks()
    found.append(Hook(f"{_GRAPHS}.run_fullgraph", "which forward passes are full graphs", before=before_full_graph))
    return found


def _ranks(runner: Any) -> dict[str, Any]:
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
