"""A connector object under observation, and helpers for reading vLLM's load/store specs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.events import Direction, Tier
from kvtrace.probes.engine import Engine, PoolRecorder
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import After, Args, Hook, Kwargs, Patches
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.vllm_types import BlockPool

UNKNOWN_STEP = 0, -1

TIER_PLACES = "which blocks of the tier"

_JOB_BITS, _LEVEL_BITS = 40, 6
_NO_KEY = bytes(12)


Before = Callable[[Args, Kwargs], object]
"""A hook's `before`, as `kvtrace.probes.hooks.Hook` calls it."""


class Part:
    """A connector, or a part of a MultiConnector, in the scheduler's process or in a worker's.

    Attributes:
        root: The connector vLLM made; a MultiConnector's parts have it in common.
        index: 0 for that one, from 1 for its parts.
        step: The engine's pid and the step whose metadata the worker acts on.
    """

    def __init__(self, engines: Engines, patches: Patches, root: object, connector: object, index: int) -> None:
        self.recorder: Recorder = engines.recorder
        self.optional = engines.optional
        self.root = root
        self.connector: Any = connector  # an adapter knows its attributes
        self.index = index
        self.name = type(connector).__name__
        self.step = UNKNOWN_STEP
        self._engines = engines
        self._patches = patches
        self._engine: Engine | None = None

    def engine(self) -> Engine | None:
        """Find the engine whose scheduler asks this connector; None before it is built."""
        if self._engine is None:
            for engine in list(self._engines.by_scheduler.values()):
                if engine.has_connector and engine.scheduler.connector is self.root:
                    self._engine = engine
        return self._engine

    def transfer(self, job: int, direction: Direction, level: int = 0) -> int:
        """Make the key of a transfer, of the connector's own job number, the direction and the connector's place.

        The scheduler's process and the workers' make the same key without talking. `level` is 0 for transfers from
        and to the GPU, and the number of the secondary tier for others.
        """
        place = (self.index << _LEVEL_BITS | level) << 1 | (direction is Direction.load)
        return place << _JOB_BITS | job

    def own_tier(self, block_pool: BlockPool, tier: PoolRecorder) -> None:
        """Record a block pool's changes as a tier's."""
        self._engines.tiers[id(block_pool)] = (block_pool, tier)

    def hook(
        self,
        target: object,
        declared: Hook,
        before: Before | None = None,
        after: After | None = None,
        off: Callable[[], None] | None = None,
    ) -> bool:
        """Hook a method of one object. Its hooks get the arguments without the object.

        Args:
            target: The object.
            declared: Where vLLM declares the method, which may be in a base class, and what is lost without it.
            before: As in `Hook`.
            after: As in `Hook`.
            off: As in `Hook`.

        Returns:
            False if the object has no such method; the summary says so.
        """
        kind, name = type(target), declared.path[-1]
        where = f"{kind.__module__}:{kind.__qualname__}.{name}"
        hook = declared._replace(target=where, before=before, after=after, off=off)
        return self._patches.patch_object(target, name, hook, declared.target)

    def hook_results(
        self, target: object, declared: Hook, after: Callable[[list[Any]], None], off: Callable[[], None]
    ) -> None:
        """Hook a method that returns an iterable, which may be a generator; `after` gets its items as a list."""
        name = declared.path[-1]
        original = getattr(target, name, None)
        if original is not None:
            setattr(target, name, lambda *args, **kwargs: list(original(*args, **kwargs)))
        self.hook(target, declared, after=lambda _, results, args, kwargs: after(results), off=off)

    def hook_function(self, declared: Hook, before: Before, after: After) -> None:
        """Hook a function of an imported module."""
        module = sys.modules.get(declared.module)
        if module is None:
            self._patches.absent(declared)
        elif not hasattr(getattr(module, declared.path[-1], None), "__wrapped__"):
            self._patches.patch_module(module, [declared._replace(before=before, after=after)])


TIERS = {"cpu": Tier.cpu, "disk": Tier.disk, "storage": Tier.disk, "remote": Tier.remote}


def chunks_of(spec: object, optional: OptionalAttributes) -> list[int]:
    """List the blocks of a tier that a load/store spec addresses; empty if it names files or the like instead."""
    ids = getattr(spec, "block_ids", None)
    if ids is None and type(spec).__name__ == "CPULoadStoreSpec":
        optional.tell(spec, "block_ids", TIER_PLACES)
    return [] if ids is None else listed(ids)


def listed(block_ids: Any) -> list[int]:
    """Convert the block ids of a load/store spec, an array or a list, to a list."""
    return block_ids.tolist() if hasattr(block_ids, "tolist") else [int(block) for block in block_ids]


def low_hashes(keys: Iterable[bytes | None]) -> tuple[list[int], list[int]]:
    """Split block keys into the low 64 bits of the hash and the KV cache group behind it; zeros for None."""
    known = [key or _NO_KEY for key in keys]
    return [int.from_bytes(key[-12:-4], "big") for key in known], [key[-1] for key in known]
