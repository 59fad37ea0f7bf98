"""Each KV cache group's answer to a prefix lookup, in engines where more than missing blocks limits a hit.

vLLM asks its groups one after the other, each up to the length that those before it agreed on, until all agree. The
answers are observed. Where one is shorter than its bound by a rule (alignment, EAGLE's drop) or was asked only up to a
bound, vLLM's own lookup is asked again without that, once the request's allocation is about to succeed: nothing was
stored or evicted since, and a head of the queue that has to wait costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.events import GROUP_LOOKUP, GroupKind
from kvtrace.probes.engine import Engine
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, Patches, argument, what_failed
from kvtrace.probes.vllm_symbols import COORDINATOR, GROUP_MANAGER, HYBRID_COORDINATOR

_FIND = "find_longest_cache_hit"
EACH = "find_longest_cache_hit_per_group"
"""vLLM's lookup for a connector that supplies states: it asks each group alone, and takes full attention's answer."""
EACH_LOST = "which KV cache groups lacked what a connector supplies"
FOR_CONNECTOR = "get_computed_blocks_for_connector"
"""vLLM's method that asks so, since 0.27."""

_LOST = "which KV cache group and rule limited a prefix hit"
GROUP_NEEDS = (
    Need(COORDINATOR, f"{_FIND} single_type_managers eagle_group_ids", _LOST),
    Need(GROUP_MANAGER, f"{_FIND} block_size kv_cache_spec", _LOST),
    Need(
        f"{GROUP_MANAGER}.{_FIND}",
        "block_hashes max_length kv_cache_group_ids drop_eagle_block alignment_tokens",
        _LOST,
    ),
)


class Answer:
    """An answer to a lookup: of what the groups were asked, and what they answered."""

    __slots__ = ("asked", "bound", "hit", "kept", "manager", "own", "stored")

    def __init__(self, manager: Any, asked: Kwargs, bound: int, hit: int) -> None:
        self.manager = manager
        self.asked = asked
        self.bound = bound
        self.hit = hit
        self.stored = self.kept = hit if hit >= bound else -1
        self.own = -1

    def again(self, **instead: Any) -> int:
        """Ask the groups again, with other arguments."""
        return int(getattr(self.manager, _FIND)(**{**self.asked, **instead})[1])


class GroupLookups:
    """Observes the lookups of engines with several groups, without full attention, or with a draft model's KV."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches
        self._emit = recorder.stream(GROUP_LOOKUP)
        self._patched: set[type] = set()
        self._open: list[Answer] | None = None  # of the lookup that is under way
        self._bound = 0
        self._each = False  # the groups are asked one by one, not each up to the answer of the one before
        self._latest: list[Answer] | None = None  # of the last one that is over
        self._alive = True

    def follow(self, engine: Engine) -> None:
        """Observe an engine's lookups, if they can end for more than one reason."""
        self._guarded(self._follow, engine)

    def take(self) -> list[Answer] | None:
        """Hand over the answers to the lookup that is just over; None: nobody was asked."""
        taken, self._latest = self._latest, None
        return taken

    def complete(self, engine: Engine, answers: Sequence[Answer]) -> None:
        """Fill in what the answers would have been without a rule, and without the others' bounds."""
        self._guarded(self._complete, engine, answers)

    def record(self, engine: Engine, moment: int, request: int, answers: Sequence[Answer]) -> None:
        """Record the answers to a lookup whose request was admitted."""
        self._guarded(self._record, engine, moment, request, answers)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do a part of this; if it fails, the rest of the recording goes on without."""
        if not self._alive:
            return
        try:
            work(*arguments)
        except Exception as error:
            self._alive = False
            detail = f"{what_failed(error)}; lost: {_LOST}"
            self._recorder.note("hook", inherited=True, hook=f"{COORDINATOR}.{_FIND}", state="disabled", detail=detail)

    def _off(self) -> None:
        self._alive, self._open, self._latest = False, None, None

    def _follow(self, engine: Engine) -> None:
        manager = engine.scheduler.kv_cache_manager
        if not manager.enable_caching:
            return
        coordinator: Any = manager.coordinator
        groups = coordinator.single_type_managers
        kinds = [GroupKind.of(base.__name__ for base in type(group.kv_cache_spec).__mro__) for group in groups]
        if kinds == [GroupKind.full] and not coordinator.eagle_group_ids:
            return
        engine.group_kinds = kinds
        engine.group_lookups = self
        for declaring in {_declaring(type(group)) for group in groups} - self._patched:
            target = f"{declaring.__module__}:{declaring.__qualname__}.{_FIND}"
            self._patches.patch(declaring, _FIND, Hook(target, _LOST, after=self.after_answer, off=self._off))
            self._patched.add(declaring)
        hook = Hook(f"{COORDINATOR}.{_FIND}", _LOST, before=self.before_lookup, after=self.after_lookup, off=self._off)
        self._patches.patch_object(coordinator, _FIND, hook)
        if not hasattr(coordinator, EACH):
            if engine.has_connector and len(groups) > 1 and hasattr(manager, FOR_CONNECTOR):
                engine.optional.tell(coordinator, EACH, EACH_LOST)
        else:
            target = f"{HYBRID_COORDINATOR}.{EACH}"
            hook = Hook(target, _LOST, before=self.before_each, after=self.after_each, off=self._off)
            self._patches.patch_object(coordinator, EACH, hook)

    def before_each(self, args: Args, kwargs: Kwargs) -> None:
        """Collect answers to a lookup for a connector until `after_each`."""
        self.before_lookup(args, kwargs)
        self._each = True

    def after_each(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        """Let full attention's answer, the first, be the hit: a load brings what the other groups lack."""
        self._each, answers, self._open = False, self._open or [], None
        for answer in answers[1:]:
            answer.own, answer.bound = answer.hit, answers[0].hit
            answer.hit = answer.stored = answer.kept = answer.bound
        self._latest = answers or None

    def before_lookup(self, args: Args, kwargs: Kwargs) -> None:
        """Collect answers until `after_lookup`."""
        self._open, self._bound = [], argument(args, kwargs, 1, "max_cache_hit_length")

    def after_lookup(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        """Collect no more answers."""
        self._latest, self._open = self._open, None

    def after_answer(self, _: None, found: tuple[object, int], args: Args, kwargs: Kwargs) -> None:
        """Note an answer to the lookup under way. Lookups of others, as of an offload tier, are left alone."""
        if self._open is not None:
            hit = found[1]
            self._open.append(Answer(args[0], kwargs, self._bound, hit))
            if not self._each:
                self._bound = hit

    def _complete(self, engine: Engine, answers: Sequence[Answer]) -> None:
        met = set()
        for answer in answers:
            asked, drop = answer.asked, answer.asked["drop_eagle_block"]
            group = asked["kv_cache_group_ids"][0]
            unit, alignment = _unit(engine, answer), asked["alignment_tokens"]
            if answer.hit < answer.bound:
                answer.stored = answer.kept = answer.hit
                if drop and alignment == unit and answer.hit and engine.group_kinds[group] is GroupKind.full:
                    answer.stored += unit  # a drop is one unit: asking would go over all blocks once more
                elif drop or alignment != unit:
                    answer.stored = answer.kept = answer.again(drop_eagle_block=False, alignment_tokens=unit)
                if drop and answer.stored != answer.hit:
                    answer.kept = answer.hit if alignment == unit else answer.again(alignment_tokens=unit)
            if group not in met and answer.own < 0:
                met.add(group)
                answer.own = answer.hit
                if answer.bound < answers[0].bound:
                    longest = len(asked["block_hashes"]) * engine.hash_block_size
                    limit = asked["max_length"] + answers[0].bound - answer.bound
                    answer.own = answer.again(max_length=min(limit, longest))

    def _record(self, engine: Engine, moment: int, request: int, answers: Sequence[Answer]) -> None:
        for place, answer in enumerate(answers):
            groups = answer.asked["kv_cache_group_ids"]
            self._emit(
                time_ns=moment,
                step=engine.step,
                request=request,
                place=min(place, 255),
                kv_group=groups[0],
                kv_groups=len(groups),
                kind=engine.group_kinds[groups[0]],
                bound_tokens=answer.bound,
                hit_tokens=answer.hit,
                stored_tokens=answer.stored,
                kept_tokens=answer.kept,
                own_tokens=answer.own,
                unit_tokens=_unit(engine, answer),
                alignment_tokens=answer.asked["alignment_tokens"],
                eagle=bool(answer.asked["drop_eagle_block"]),
            )


def _declaring(manager: type) -> type:
    return next(base for base in manager.__mro__ if _FIND in vars(base))


def _unit(engine: Engine, answer: Answer) -> int:
    """Tokens of the smallest thing that the groups find: a block, or a hash where they find parts of blocks."""
    coordinator: Any = engine.scheduler.kv_cache_manager.coordinator
    block = coordinator.single_type_managers[answer.asked["kv_cache_group_ids"][0]].block_size
    return int(min(block, answer.asked["alignment_tokens"]))
