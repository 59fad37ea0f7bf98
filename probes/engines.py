"""All schedulers of this process that are followed, and the hook that begins to follow one."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable

from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT, BlockOp
from kvtrace.probes import ttl_pins
from kvtrace.probes.device.at_exit import at_end
from kvtrace.probes.engine import ENGINE_NEEDS, Engine, Pool, PoolRecorder
from kvtrace.probes.engine_facts import FACT_NEEDS, facts_of
from kvtrace.probes.group_lookups import GroupLookups
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, Patches, catch_up
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.vllm_symbols import SCHEDULER
from kvtrace.probes.vllm_types import BlockPool, Scheduler


class Engines:
    """Finds an `Engine` or `Pool` by the vLLM object at hand."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.optional = OptionalAttributes(recorder)
        self.by_scheduler: dict[int, Engine] = {}
        self.by_manager: dict[int, Engine] = {}
        self.pools: dict[int, Pool] = {}
        self.tiers: dict[int, tuple[BlockPool, PoolRecorder]] = {}  # pools of offload tiers, and what records them
        self.maps: dict[
            int, tuple[object, Pool]
        ] = {}  # from hashes to blocks: kept, so that an id() cannot be another's
        self._without: list[Callable[[Engine], None]] = []
        self._latest: Engine | None = None
        self._last_step = 0  # of engines that are gone
        os.register_at_fork(after_in_child=self._after_fork)

    def add(self, scheduler: Scheduler) -> Engine:
        """Start to follow a scheduler that has just been built.

        An engine that was made after another in the same process goes on with its steps, for it is the same engine in
        the recording, and begins with an empty cache.
        """
        engine = Engine(scheduler, self.recorder, self.optional)
        engine.step = engine.acting_step = max([self._last_step, *(other.step for other in self.by_scheduler.values())])
        if self._latest is not None or self._last_step:
            self.record_reset(engine.step, 0)
        for lose in self._without:
            lose(engine)
        self.by_scheduler[id(scheduler)] = engine
        self.by_manager[id(scheduler.kv_cache_manager)] = engine
        self.pools[id(engine.block_pool)] = engine.pool
        self._latest = engine
        weakref.finalize(scheduler, self._remove, engine, id(scheduler)).atexit = False
        return engine

    def off(self, lose: Callable[[Engine], None]) -> Callable[[], None]:
        """Make the function for a hook that is off: all engines, and later ones, `lose` the state it kept up."""

        def lost() -> None:
            self._without.append(lose)
            for engine in list(self.by_scheduler.values()):
                lose(engine)

        return lost

    def _after_fork(self) -> None:
        """A forked engine's steps are its own, not those of the process it was forked from."""
        for engine in self.by_scheduler.values():
            engine.pid = os.getpid()

    def _remove(self, engine: Engine, scheduler_id: int) -> None:
        """Forget an engine whose scheduler is gone, and every object of vLLM's that is kept for it."""
        self.by_scheduler.pop(scheduler_id, None)
        for key in [key for key, other in list(self.by_manager.items()) if other is engine]:
            del self.by_manager[key]
        for key in [key for key, pool in list(self.pools.items()) if pool.engine is engine]:
            del self.pools[key]
            self.tiers.pop(key, None)
        self.maps.clear()  # the others are found again
        self._last_step = max(self._last_step, engine.step)
        if self._latest is engine:
            self._latest = None

    def record_reset(self, step: int, pool: int) -> None:
        """Record that no block of a pool can be found by its hash any more."""
        self.recorder.stream(BLOCK_EVENT)(
            time_ns=time.monotonic_ns(),
            step=step,
            block_id=-1,
            op=BlockOp.reset,
            ref_count=0,
            request=0,
            block_hash=0,
            kv_group=0,
            pool=pool,
        )

    def pool(self, block_pool: BlockPool) -> Pool | None:
        """The state of a pool; one that is not a scheduler's own belongs to the newest engine."""
        pool = self.pools.get(id(block_pool))
        if pool is None and self._latest is not None:
            index = sum(1 for other in list(self.pools.values()) if other.engine is self._latest)
            pool = self.pools[id(block_pool)] = Pool(self._latest, block_pool, index)
            pool.tier = self.tiers.get(id(block_pool), (None, None))[1]
        return pool


def hooks(
    engines: Engines, patches: Patches, overridable: Callable[[], Iterable[Hook]], added: Callable[[], None]
) -> list[Hook]:
    """The hook that starts to follow a scheduler.

    `overridable` gives the hooks on scheduler methods, which are also put on a `--scheduler-cls` that overrides them.
    `added` is called after the recording knows of the engine.
    """
    group_lookups = GroupLookups(engines.recorder, patches)

    def after_init(_: None, __: None, args: Args, kwargs: Kwargs) -> None:
        scheduler = args[0]
        if id(scheduler) in engines.by_scheduler:
            return
        engine = engines.add(scheduler)
        engines.recorder.note("role", opens=True, role="engine")
        at_end(catch_up)
        engines.recorder.note("engine", **facts_of(scheduler, engine))
        _follow_overrides(type(scheduler), patches, overridable())
        ttl_pins.follow(engine, scheduler, patches)
        group_lookups.follow(engine)
        added()

    needs = (
        Need(SCHEDULER, "kv_cache_manager vllm_config"),
        *ENGINE_NEEDS,
        *FACT_NEEDS,
    )
    return [Hook(f"{SCHEDULER}.__init__", "everything about scheduling and blocks", after=after_init, needs=needs)]


def _follow_overrides(scheduler_class: type, patches: Patches, overridable: Iterable[Hook]) -> None:
    hooks = [hook for hook in overridable if hook.target.startswith(SCHEDULER)]
    for name in dict.fromkeys(hook.path[-1] for hook in hooks):
        declaring = [owner for owner in scheduler_class.__mro__ if name in vars(owner)]
        for owner in declaring:
            if not hasattr(vars(owner)[name], "__wrapped__"):
                for hook in hooks:
                    if hook.path[-1] == name:
                        patches.patch(owner, name, hook)
