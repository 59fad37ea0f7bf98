"""Forward passes, on the worker's host side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.stream import compiled
from kvtrace.events import FORWARD, GraphMode
from kvtrace.probes.device.batch import BatchOrder
from kvtrace.probes.device.cuda_events import Begin, End
from kvtrace.probes.device.levels import DeviceRecorder, level
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.engine_facts import dp_rank
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.nvtx import Ranges
from kvtrace.probes.optional_attributes import Lacks
from kvtrace.probes.vllm_symbols import PARALLEL_CONFIG, SCHEDULER_OUTPUT

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


Turn = Callable[[bool], None]
"""Called when passes turn to piecewise CUDA graphs, or to something else, before the model runs."""
Other = Callable[[], None]
"""Called when the model is about to run for something else than a pass, such as a dummy beside other ranks."""


class Forwards:
    """Hooks around a forward pass: record it.

    Args:
        recorder: Where to.
        missing: Called with a scheduler's output that has no mark, and how many had none in a row.
    """

    def __init__(self, recorder: Recorder, missing: Callable[[Any, int], None]) -> None:
        self._emit = recorder.stream(FORWARD)
        self._begin: Begin | None = None
        self._end: End | None = None
        self._turn: Turn | None = None
        self._other: Other | None = None
        self._in_pieces = False
        self._missing = missing
        self._without = 0  # forward passes in a row without a mark
        self.mode = 0  # graph mode of the pass under way; 0 before it is known

    def watch(self, begin: Begin, end: End, turn: Turn | None, other: Other | None) -> None:
        """Call these from now on."""
        self._begin, self._end, self._turn, self._other = begin, end, turn, other

    def before(self, args: Args, kwargs: Kwargs) -> int:
        """Return when it begins; 0: it is a dummy."""
        self.mode = 0
        dummy = bool(argument(args, kwargs, 3, "dummy_run", False))
        start_ns = 0 if dummy else time.monotonic_ns()
        if self._begin is not None:
            self._begin(start_ns, dummy, argument(args, kwargs, 1, "scheduler_output"))
        return start_ns

    def after(self, start_ns: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        """Record it, if it belongs to a step: its mark is (engine's pid, step)."""
        if not start_ns:
            return
        output = argument(args, kwargs, 1, "scheduler_output")
        mark = getattr(output, STEP_ATTRIBUTE, None)
        if mark is None:
            self._without += 1
            self._missing(output, self._without)
            return
        self._without = 0
        tokens = output.total_num_scheduled_tokens
        if self._end is not None:
            self._end(tokens)
        self._emit(start_ns, time.monotonic_ns(), *mark, tokens, len(output.num_scheduled_tokens), self.mode)

    def context(self, args: Args, kwargs: Kwargs) -> None:
        """Before `set_forward_context`, whose arguments name the graph mode."""
        graph_mode = kwargs.get("cudagraph_runtime_mode")
        if self.mode:
            if self._other is not None:
                self._other()
        elif graph_mode is not None:
            self.mode = _mode(graph_mode)
            if self._turn is not None and self._in_pieces != (self.mode == GraphMode.piecewise):
                self._in_pieces = not self._in_pieces
                self._turn(self._in_pieces)


def _mode(graph_mode: Any) -> int:
    return int(_MODES.get(graph_mode.name, 0))


def _forwards(recorder: Recorder) -> Forwards:
    """`Forwards`, in compiled code where there is some."""
    native, packer, lacks = compiled(), recorder.packer(FORWARD), Lacks(recorder)

    def missing(scheduler_output: Any, in_a_row: int) -> None:
        if in_a_row > _WARM_UP_PASSES:
            lacks.tell(scheduler_output, STEP_ATTRIBUTE, _STEPLESS)

    if native is None:
        return Forwards(recorder, missing)
    made: Forwards = native.Forwards(packer, STEP_ATTRIBUTE, _mode, missing, GraphMode.piecewise)
    return made


def hooks(recorder: Recorder, ranges: Ranges | None) -> list[Hook]:
    """The hooks on both model runners. CPU runners inherit the first."""
    forwards = _forwards(recorder)
    announced: set[int] = set()

    layers = DeviceRecorder(recorder, level()) if level() != "host" else None

    def with_ranges(begin: Begin | None, end: End | None) -> tuple[Begin, End]:
        assert ranges is not None

        def ranged_begin(start_ns: int, dummy: bool, scheduler_output: Any) -> None:
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

    if ranges is not None:
        forwards.watch(*with_ranges(None, None), None, None)

    def before_full_graph(args: Args, kwargs: Kwargs) -> None:
        forwards.mode = forwards.mode or GraphMode.full

    def after_caches(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        if os.getpid() in announced or argument(args, kwargs, 2, "is_profiling", False):
            return
        announced.add(os.getpid())
        recorder.note("role", opens=True, role="worker")
        recorder.note("rank", **_ranks(args[0]))
        if ranges is not None:
            ranges.start()
        if layers is not None and layers.attach(args[0]):
            around = layers.around()
            forwards.watch(*(with_ranges(*around) if ranges is not None else around), layers.turn, layers.other)

    found = []
    for module in _RUNNERS:
        found += [
            Hook(
                f"{module}:GPUModelRunner.execute_model",
                "forward passes",
                before=forwards.before,
                after=forwards.after,
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
                before=forwards.context,
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
