"""Windows of layers' KV writes and attentions, with any attention backend.

Where the kernels can be rewritten, their programs keep the windows, of all layers in every step. What they do not see,
and all of it with other kernels, has timestamps around it; `model.timing` chooses the layers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tile_options import from_environment
from kvtrace.probes.device.at_exit import at_end
from kvtrace.probes.device.cuda_events import Begin, End, EventRing
from kvtrace.probes.device.drain import WindowDrain
from kvtrace.probes.device.graph_timestamps import (
    ATTENTION_END,
    ATTENTION_START,
    PLACES,
    WRITE_END,
    WRITE_START,
    GraphTimestamps,
)
from kvtrace.probes.device.model import Layers, alike, backend_of, cache_facts, kv_layers, timing
from kvtrace.probes.device.tiles import kernels
from kvtrace.probes.device.tiles.launch import Current
from kvtrace.probes.device.wrap import Ends, stamped
from kvtrace.probes.vllm_types import ModelRunner

_ATTENTION_CALLS = ("forward", "forward_mha", "forward_mqa")

_TELL_NS = 50_000_000
"""So often the drain is told of steps that compiled code enqueues: it takes longer gaps for pauses."""


class LayerRecorder:
    """Wraps the attention implementations of a worker's layers; names steps on the device.

    Args:
        recorder: Where to.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._outside_graphs: list[tuple[object, str, Callable[..., object]]] = []
        self._timestamps: GraphTimestamps | None = None  # where graphs are captured
        self._event_ring: EventRing  # elsewhere
        self._drain: WindowDrain | None = None
        self._undo: list[Callable[[], None]] = []
        self._layers: Layers = []
        self._when: list[str] = []
        self._current: Current | None = None  # of rewritten kernels
        self._kinds: frozenset[str] = frozenset()  # that they observe
        self._restore: list[Callable[[], None]] = []  # vLLM's kernels
        self._alive = True
        self._capturing: Callable[[], bool]
        self._stream: Callable[[], int]

    def attach(self, runner: ModelRunner) -> bool:
        """Put stamps into the model runner's layers. False: there is no CUDA device, or no CuPy."""
        import torch

        if not torch.cuda.is_available() or runner.device.type != "cuda":
            return False
        self._layers = layers = kv_layers(runner)
        named = from_environment(os.environ).layers
        self._when = timing(len(layers), named, alike=alike(runner, layers))
        try:
            self._timestamps, self._event_ring = GraphTimestamps(len(layers)), EventRing()
        except ImportError:
            self._recorder.note("device", state="absent", detail="CuPy is not installed: pip install 'kvtrace[gpu]'")
            return False
        # A draft model's layers have theirs after the step has been published.
        self._event_ring.state.always_stale = getattr(runner, "speculative_config", None) is not None
        self._capturing = torch._C._cuda_isCurrentStreamCapturing
        self._stream = partial(torch._C._cuda_getCurrentRawStream, torch.cuda.current_device())
        try:
            self._observe_in_kernels()
            self._wrap_layers()
        except Exception:
            self._detach()
            raise
        self._recorder.note(
            "device",
            state="recording",
            level="layer",
            name=torch.cuda.get_device_name(),
            backend=backend_of(layers),
            untried=kernels.untried(layers) if self._kinds else "",
            memory_bytes=torch.cuda.get_device_properties(runner.device).total_memory,
        )
        at_end(self.finish)
        return True

    def _observe_in_kernels(self) -> None:
        """Let the layers' own kernels keep their windows, if they can be rewritten."""
        assert self._timestamps is not None
        if set(self._when) == {"never"} or not kernels.keep_windows(self._layers):
            return
        current = Current(None, windows=self._timestamps.windows())
        told = {index: index for index, when in enumerate(self._when) if when != "never"}
        installed = kernels.install(self._layers, told, current, frozenset(kernels.WINDOWS), self._launch_failed)
        self._restore.append(installed.undo)
        if missing := set(kernels.WINDOWS) - installed.kinds - installed.unseen.keys():
            self._restore_kernels(f"{' and '.join(sorted(missing))} kernels: {'; '.join(installed.problems)}")
            return
        self._current, self._kinds = current, frozenset(installed.kinds)
        for index, (_, layer) in enumerate(self._layers):
            if self._when[index] != "never":
                self._restore.append(kernels.follow(layer.impl, index, current, self._kinds, self._unseen))

    def _launch_failed(self, why: str) -> None:
        self._use_stamps(f"a rewritten kernel could not be launched: {why}")

    def _unseen(self, kind: str) -> None:
        self._use_stamps(f"no rewritten kernel of the {kernels.WINDOWS[kind]} was launched")

    def _use_stamps(self, why: str) -> None:
        """Give up on rewritten kernels. Windows of graphs that have been captured with them are observed still."""
        if not self._kinds:
            return
        self._unwrap()
        self._restore_kernels(why)
        self._wrap_layers()

    def _restore_kernels(self, why: str) -> None:
        while self._restore:
            self._restore.pop()()
        self._kinds = frozenset()
        self._recorder.note("device", state="fallback", detail=f"windows by stamps, not in the kernels: {why}")

    def _wrap_layers(self) -> None:
        """Put stamps around what kernels do not observe, and say how each layer is observed."""
        in_kernel = ", ".join(name for kind, name in kernels.WINDOWS.items() if kind in self._kinds)
        for index, (name, layer) in enumerate(self._layers):
            when = self._when[index]
            if when != "never":
                self._wrap(index, layer.impl, in_graphs=when == "always")
            how: dict[str, Any] = {
                "timed": None if self._kinds == set(kernels.WINDOWS) and when != "never" else when,
                "in_kernel": in_kernel if in_kernel and when != "never" else None,
            }
            self._recorder.note("layer", index=index, name=name, **how, **cache_facts(layer))

    def _detach(self) -> None:
        self._unwrap()
        while self._restore:
            self._restore.pop()()
        self._timestamps = None

    def _unwrap(self) -> None:
        self._outside_graphs.clear()
        while self._undo:
            self._undo.pop()()

    def _wrap(self, layer: int, implementation: object, *, in_graphs: bool) -> None:
        between = partial(self._between, implementation, layer, in_graphs=in_graphs)
        writes = hasattr(implementation, "do_kv_cache_update")
        if writes and "write" not in self._kinds:
            between("do_kv_cache_update", WRITE_START, WRITE_END)
        for name in _ATTENTION_CALLS if "read" not in self._kinds else ():
            if callable(getattr(implementation, name, None)):
                # MLA attends to a batch in two calls, for its prefills and for its decodes: one window.
                whole = name == "forward"
                between(name, ATTENTION_START, ATTENTION_END, first=not whole, follows=writes and whole)

    def _between(
        self,
        owner: object,
        layer: int,
        name: str,
        start: int,
        end: int,
        *,
        in_graphs: bool,
        first: bool = False,
        follows: bool = False,
    ) -> None:
        assert self._timestamps is not None
        original = getattr(owner, name)
        around = stamped(
            original,
            Ends(self._timestamps.stamp(layer, start, first=first), self._timestamps.stamp(layer, end)),
            Ends(self._event_ring.mark(PLACES * layer + start), self._event_ring.mark(PLACES * layer + end)),
            self._stream,
            self._capturing,
            self._stop,
            in_graphs=in_graphs,
            follows=follows,
        )
        setattr(owner, name, around)
        self._undo.append(lambda: vars(owner).pop(name, None))
        if not in_graphs:
            self._outside_graphs.append((owner, name, around))

    def _stop(self, error: Exception) -> None:
        if self._alive:
            self._alive = False
            self._event_ring.state.ready = False
            self._event_ring.leave()
            self._recorder.note("device", state="stopped", detail=f"{type(error).__name__}: {error}")

    def turn(self, in_pieces: bool) -> None:
        """Put timestamps around attention, or take them off, as passes turn from or to piecewise CUDA graphs.

        Each microsecond of Python is one of the step there: what would only pass a call on is taken out.
        """
        self._event_ring.state.in_pieces = in_pieces
        for owner, name, around in self._outside_graphs:
            if in_pieces:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, around)

    def other(self) -> None:
        """Forget stamps: the model is about to run for something else than a pass."""
        self._event_ring.state.stale = True

    def around(self, begin: Begin, end: End) -> tuple[Begin, End]:
        """Make the calls around passes of these two, which call `begin` and `end` and do nothing else."""
        quick = self._event_ring.around(begin, end, self._enqueued, _TELL_NS)
        return (quick[0], end) if self._kinds else quick  # windows in kernels are to be published in every step

    def begin(self, step: int, engine_pid: int) -> None:
        """Begin a step: its forward pass is about to be enqueued; 0 for a dummy run."""
        if self._timestamps is None or not self._alive:
            return
        state = self._event_ring.state
        state.step = step
        if step and self._drain is None:  # not before the first real step: graphs are being captured until then
            self._drain = WindowDrain(self._timestamps, self._event_ring, self._recorder, engine_pid)
            self._drain.start()
            state.ready = True
        if state.stale:
            self._timestamps.clear(self._stream())
        state.stale = True
        if step:
            self._event_ring.begin()
        else:
            self._event_ring.leave()

    def end(self) -> None:
        """End the step: its forward pass has been enqueued."""
        if self._timestamps is None or not self._alive:
            return
        state = self._event_ring.state
        if state.step:
            marked = self._event_ring.end(state.step)
            if self._kinds or not marked:  # in kernels, or a graph's
                self._timestamps.publish(state.step, self._stream())
            state.stale = state.always_stale
            self._check_kernels()
            self._enqueued()

    def _check_kernels(self) -> None:
        """Behind the first step: its layers have launched rewritten kernels, or never will."""
        if self._current is not None:
            launched, self._current = self._current.launched, None
            if missing := self._kinds - launched:
                self._unseen(min(missing))

    def _enqueued(self) -> None:
        if self._drain is not None:
            self._drain.schedule.enqueued()

    def finish(self) -> None:
        """Drain what is left on the device."""
        if self._drain is not None and self._drain.is_alive():
            self._drain.finish(5)
