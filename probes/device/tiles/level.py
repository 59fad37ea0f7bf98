"""The `tile` level of a worker: rewritten kernels, their ring, and the steps that are recorded in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tile_options import TileOptions, from_environment
from kvtrace.probes.device.at_exit import at_end
from kvtrace.probes.device.model import Layers, backend_of, cache_facts, first_of_groups, kv_layers
from kvtrace.probes.device.tiles.kernels import LISTS_SHIFT, WINDOWS, follow, install, unfit, untried
from kvtrace.probes.vllm_types import ModelRunner

if TYPE_CHECKING:
    from kvtrace.probes.device.tiles.drain import TileDrain


class TileRecorder:
    """Lets the layers' kernels record their tiles, where `attach` finds that possible."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._options: TileOptions = from_environment(os.environ)
        self._undo: list[Callable[[], None]] = []
        self._drain: TileDrain | None = None
        self._step = 0
        self._opened = False
        self._alive = False

    def attach(self, runner: ModelRunner) -> bool:
        """Put the rewritten kernels in place. False, with the reason in the journal, where they cannot be."""
        import torch

        if not torch.cuda.is_available() or runner.device.type != "cuda":
            return False
        layers = kv_layers(runner)
        if why := unfit(layers):
            self._fall_back(why)
            return False
        try:
            self._install(layers, runner)
        except ImportError:
            self._fall_back("CuPy is not installed: pip install 'kvtrace[gpu]'")
            return False
        except RuntimeError as error:
            self._fall_back(str(error))
            return False
        return self._alive

    def _install(self, layers: Layers, runner: ModelRunner) -> None:
        import torch

        from kvtrace.probes.device.tiles.drain import RateLimit
        from kvtrace.probes.device.tiles.launch import Current
        from kvtrace.probes.device.tiles.ring import Ring

        options = self._options
        ring_bytes = (options.ring_mb or _ring_mb(runner, layers, options)) << 20
        free, _ = torch.cuda.mem_get_info()
        if ring_bytes > free // 2:
            raise RuntimeError(
                f"the ring of {ring_bytes >> 20} MB would take more than half of the {free >> 20} MB that are free: "
                "lower --gpu-memory-utilization or give --ring-mb"
            )
        self._ring = Ring(ring_bytes)
        self._limit = RateLimit(options.max_mb_per_s)
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._device = torch.cuda.current_device()
        self._current = Current(self._ring.control, options.head_bits)
        kinds = frozenset(options.kinds)
        told = _told(layers, options, first_of_groups(runner, layers, options.layers))
        installed = install(layers, told, self._current, kinds, self._failed)
        unseen = {kind: why for kind, why in installed.unseen.items() if kind in kinds}
        missing = kinds - installed.kinds
        if installed.kinds:
            missing -= unseen.keys()
        if missing:
            installed.undo()
            reasons = "; ".join([*installed.problems, *unseen.values()])
            self._fall_back(f"{' and '.join(sorted(missing))} kernels cannot be rewritten: {reasons}")
            return
        self._undo.append(installed.undo)
        in_kernel = ", ".join(name for kind, name in WINDOWS.items() if kind in installed.kinds)
        for index, (name, layer) in enumerate(layers):
            if index in told and not installed.finds_layers:
                self._undo.append(follow(layer.impl, told[index], self._current, frozenset(installed.kinds)))
            self._recorder.note(
                "layer", index=index, name=name, in_kernel=in_kernel if index in told else None, **cache_facts(layer)
            )
        self._alive = True
        self._recorder.note(
            "device",
            state="recording",
            level="tile",
            name=torch.cuda.get_device_name(),
            backend=backend_of(layers),
            unseen="; ".join(unseen.values()),
            untried=untried(layers),
            memory_bytes=torch.cuda.get_device_properties(runner.device).total_memory,
            ring_bytes=ring_bytes,
        )
        at_end(self.finish)

    def _failed(self, why: str) -> None:
        self._recorder.note("device", state="stopped", detail=f"a rewritten kernel could not be launched: {why}")

    def _fall_back(self, why: str) -> None:
        self._recorder.note("device", state="fallback", detail=f"no tiles: {why}")

    def begin(self, step: int, engine_pid: int) -> None:
        """Begin a step: its forward pass is about to be enqueued; 0 for a dummy run."""
        if not self._alive:
            return
        self._step = step
        wanted = False
        if step:
            if self._drain is None:  # not before the first real step: graphs are being captured until then
                self._drain = self._start_drain(engine_pid)
            wanted = self._options.wants(step) and self._limit.allows(self._drain.rate_bytes)
            if not wanted:
                self._drain.filtered += 1  # the device does not hear of it
        self._current.left_out = bool(step) and not wanted
        if wanted or self._opened:  # between steps there is no room in the ring, and nobody records
            self._ring.open(self._stream(self._device), enabled=wanted)
        self._opened = wanted

    def _start_drain(self, engine_pid: int) -> TileDrain:
        from kvtrace.probes.device.tiles.drain import TileDrain

        drain = TileDrain(self._ring, self._recorder, engine_pid, {"level": "tile"})
        drain.start()
        return drain

    def end(self) -> None:
        """Close the step: the forward pass has been enqueued."""
        if self._alive and self._opened and self._drain is not None:
            self._opened = False
            self._ring.close(self._step, self._stream(self._device), filtered=self._drain.filtered)

    def finish(self) -> None:
        """Drain what is left on the device."""
        if self._drain is not None and self._drain.is_alive():
            self._drain.finish(30)


def _told(layers: Layers, options: TileOptions, lists_blocks: set[int]) -> dict[int, int]:
    """Make what the kernels of each layer to record are told: `rewrite.PARAMETERS`."""
    first_head = min(options.heads, default=0)
    return {
        index: index | (first_head + 1) << 8 | ((first_head + 1) << LISTS_SHIFT if index in lists_blocks else 0)
        for index in range(len(layers))
        if not options.layers or index in options.layers
    }


def _ring_mb(runner: ModelRunner, layers: Layers, options: TileOptions) -> int:
    """Choose the ring's size: four of the largest steps of ordinary length, between 128 MB and 2 GB.

    The largest step computes the most tokens, in blocks of a few queries, each reading a prompt's tiles up to itself. A
    step that is larger still (prompts of tens of thousands of tokens) is dropped whole and counted.
    """
    config = runner.vllm_config
    tokens = config.scheduler_config.max_num_batched_tokens
    length = min(config.model_config.max_model_len, 8192)
    heads = len(options.heads) or getattr(layers[0][1], "num_kv_heads", 8)
    programs = tokens / 4 + config.scheduler_config.max_num_seqs
    step_bytes = (len(options.layers) or len(layers)) * heads * programs * (24 + 2.5 * length / 64)
    return int(min(2048, max(128, 4 * step_bytes / 2**20)))
