"""A connector object under observation, and what an adapter for its kind has to tell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvtrace.capture.recorder import Recorder
from kvtrace.events import Direction, Tier
from kvtrace.probes.engine import Engine
from kvtrace.probes.engines import Engines
from kvtrace.probes.hooks import Args, Hook, Kwargs, Patches
from kvtrace.probes.optional_attributes import Lacks

STEP_ATTRIBUTE = "_kvtrace_step"
"""Set on a connector's metadata: (engine's pid, step). It travels to the workers with it."""

UNKNOWN_STEP = 0, -1

TIER_PLACES = "which blocks of the tier"

_JOB_BITS, _LEVEL_BITS = 40, 6
_NO_KEY = bytes(12)


class Part:
    """A connector, or a part of a MultiConnector, in the scheduler's process or in a worker's.

    Attributes:
        root: The connector vLLM made; a MultiConnector's parts have it in common.
        index: 0 for that one, from 1 for its parts.
        step: The engine's pid and the step whose metadata the worker acts on.
    """

    def __init__(self, engines: Engines, patches: Patches, root: Any, connector: Any, index: int) -> None:
        self.recorder: Recorder = engines.recorder
        self.lacks = engines.lacks
        self.root = root
        self.connector = connector
        self.index = index
        self.name = type(connector).__name__
        self.step = UNKNOWN_STEP
        self._engines = engines
        self._patches = patches
        self._engine: Engine | None = None

    def engine(self) -> Engine | None:
        """The engine whose scheduler asks this connector; None before it is built."""
        if self._engine is None:
            for engine in list(self._engines.by_scheduler.values()):
                if engine.has_connector and engine.scheduler.connector is self.root:
                    self._engine = engine
        return self._engine

    def transfer(self, job: int, direction: Direction, level: int = 0) -> int:
        """The key of a transfer: the connector's own number of the job, its direction and the connector's place.

        The scheduler's process and the workers' make the same key without talking. `level` is 0 for transfers from
        and to the GPU, and the number of the secondary tier for others.
        """
        place = (self.index << _LEVEL_BITS | level) << 1 | (direction is Direction.load)
        return place << _JOB_BITS | job

    def own_tier(self, block_pool: Any, tier: Any) -> None:
        """Have a block pool's changes recorded as a tier's."""
        self._engines.tiers[id(block_pool)] = (block_pool, tier)

    def hook(
        self,
        target: Any,
        declared: Hook,
        before: Any = None,
        after: Any = None,
        off: Callable[[], None] | None = None,
    ) -> bool:
        """Hook a method of one object, which is declared where vLLM declares it, be it in a base class.

        Hooks get the arguments without the object. False: it has no such method, which has been said.
        """
        kind, name = type(target), declared.path[-1]
        where = f"{kind.__module__}:{kind.__qualname__}.{name}"
        hook = declared._replace(target=where, before=before, after=after, off=off)
        return self._patches.patch_object(target, name, hook, declared.target)

    def hook_results(
        self, target: Any, declared: Hook, after: Callable[[list[Any]], None], off: Callable[[], None]
    ) -> None:
        """Hook a method that returns something iterable, which may be a generator: `after` gets the results listed."""
        name = declared.path[-1]
        original = getattr(target, name, None)
        if original is not None:
            setattr(target, name, lambda *args, **kwargs: list(original(*args, **kwargs)))
        self.hook(target, declared, after=lambda _, results, args, kwargs: after(results), off=off)

    def hook_function(self, declared: Hook, before: Any = None, after: Any = None) -> None:
        """Hook a function of a module that has been imported."""
        module = sys.modules.get(declared.module)
        if module is None:
            self._patches.absent(declared)
        elif not hasattr(getattr(module, declared.path[-1], None), "__wrapped__"):
            self._patches.patch_module(module, [declared._replace(before=before, after=after)])


class Planned(NamedTuple):
    """A transfer as the scheduler's side decided it; the lists have an entry a block."""

    transfer: int
    direction: Direction
    requests: list[str]  # ids; empty where it is nobody's
    gpu_blocks: list[int]
    other_blocks: list[int]  # -1: not known


class Adapter:
    """Adapter of a kind of connector. This one knows none: only the connector interface is recorded."""

    def __init__(self, part: Part) -> None:
        self.part = part

    @staticmethod
    def fits(connector: Any) -> bool:
        """Return whether the connector is of this kind."""
        return True

    def attach_scheduler(self) -> dict[str, Any]:
        """Hook what is special on the scheduler's side; facts for the journal."""
        return {}

    def planned(self, metadata: Any, scheduler_output: Any) -> Iterable[Planned]:
        """The transfers that a step's metadata asks the workers for."""
        return ()

    def attach_worker(self) -> bool:
        """Hook what is special on the worker's side; False: it is not there yet, ask again with the next step."""
        return True

    def after_load(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """`start_load_kv` returned."""

    def before_save(self) -> None:
        """`wait_for_save` is about to be called."""

    def after_save(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """`wait_for_save` returned."""

    def after_poll(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """`get_finished` returned."""

    def own(self, name: str) -> Callable[..., None] | None:
        """A method that this kind of adapter has of its own: nothing need be called in a step otherwise."""
        return None if getattr(type(self), name) is getattr(Adapter, name) else getattr(self, name)

    def without_polls(self) -> None:
        """The hook on `get_finished` is off."""


TIERS = {"cpu": Tier.cpu, "disk": Tier.disk, "storage": Tier.disk, "remote": Tier.remote}


def chunks_of(spec: Any, lacks: Lacks) -> list[int]:
    """The places in a tier that a load/store spec addresses; empty if it names them in another way, as files."""
    ids = getattr(spec, "block_ids", None)
    if ids is None and type(spec).__name__ == "CPULoadStoreSpec":
        lacks.tell(spec, "block_ids", TIER_PLACES)
    return [] if ids is None else listed(ids)


def listed(block_ids: Any) -> list[int]:
    """The block ids of one of vLLM's load/store specs: an array, or a list."""
    return block_ids.tolist() if hasattr(block_ids, "tolist") else [int(block) for block in block_ids]


def low_hashes(keys: Iterable[Any]) -> tuple[list[int], list[int]]:
    """The low 64 bits of block hashes with their KV cache groups behind them, and the groups; zeros for None."""
    known = [key or _NO_KEY for key in keys]
    return [int.from_bytes(key[-12:-4], "big") for key in known], [key[-1] for key in known]
