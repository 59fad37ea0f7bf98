"""The choice of a worker's device recorder, by the wanted level and by the model's kernels."""

from __future__ import annotations

from collections.abc import Mapping

from kvtrace.capture.recorder import Recorder
from kvtrace.format.layout import KV_LEVEL_VARIABLE
from kvtrace.probes.device.cuda_events import Begin, End
from kvtrace.probes.device.layers import LayerRecorder
from kvtrace.probes.device.model import in_microbatches
from kvtrace.probes.device.tiles.level import TileRecorder
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.vllm_types import ModelRunner, SchedulerOutput

_MICROBATCHES = "vLLM runs steps in microbatches (--enable-dbo, --ubatch-size); what each did cannot be told apart"


def level(environment: Mapping[str, str]) -> str:
    """Read the wanted recording level: `host`, `layer` or `tile`; the last two need a GPU."""
    return environment.get(KV_LEVEL_VARIABLE, "layer")


class DeviceRecorder:
    """Records at the wanted level; at `layer` where `tile` is not possible.

    Args:
        recorder: Where to.
        wanted: The level.
    """

    def __init__(self, recorder: Recorder, wanted: str) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._active: LayerRecorder | TileRecorder | None = None

    def attach(self, runner: ModelRunner) -> bool:
        """Choose a recorder by the model runner's layers, and attach it. False: there is no device."""
        if self._active is not None:
            return True
        if in_microbatches(runner):  # a layer is called for each of them, with the requests counted from its first
            self._recorder.note("device", state="absent", detail=_MICROBATCHES)
            return False
        if self._wanted == "tile":
            tiles = TileRecorder(self._recorder)
            if tiles.attach(runner):
                self._active = tiles
                return True
        layers = LayerRecorder(self._recorder)
        if layers.attach(runner):
            self._active = layers
        return self._active is not None

    def around(self) -> tuple[Begin, End]:
        """Make the calls around passes."""
        if isinstance(self._active, LayerRecorder):
            return self._active.around(self.begin, self.end)
        return self.begin, self.end

    def begin(self, _: int, dummy: bool, scheduler_output: SchedulerOutput) -> None:
        """Begin a forward pass: it is about to be enqueued."""
        step = None if dummy else getattr(scheduler_output, STEP_ATTRIBUTE, None)
        if not dummy and not scheduler_output.total_num_scheduled_tokens:  # nothing runs, or vLLM's own dummy
            self.other()
        elif self._active is not None:
            self._active.begin(step[1] if step else 0, step[0] if step else 0)

    def end(self, tokens: int) -> None:
        """End a forward pass of so many tokens: it has been enqueued."""
        if tokens and self._active is not None:
            self._active.end()

    def turn(self, in_pieces: bool) -> None:
        """Tell the recorder if the model runs piecewise CUDA graphs, from the pass under way on."""
        if isinstance(self._active, LayerRecorder):
            self._active.turn(in_pieces)

    def other(self) -> None:
        """Tell the recorder that the model is about to run for something else than a pass."""
        if isinstance(self._active, LayerRecorder):
            self._active.other()
