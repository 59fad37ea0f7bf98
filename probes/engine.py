"""The state of a scheduler, its pools and its requests, as the probes follow it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from kvtrace.capture._native import EngineState, PoolState, RequestState
from kvtrace.capture.recorder import Recorder
from kvtrace.events import BlockOp, GroupKind
from kvtrace.probes.hooks import Need
from kvtrace.probes.optional_attributes import OptionalAttributes
from kvtrace.probes.pins import Pins
from kvtrace.probes.vllm_symbols import BLOCK_POOL, KV_CACHE_MANAGER, SCHEDULER
from kvtrace.probes.vllm_types import Block, BlockPool, Request, Scheduler

STEP_ATTRIBUTE = "_kvtrace_step"
"""Set on a SchedulerOutput and on a connector's metadata: (engine's pid, step). It travels to the workers with them."""

_QUEUES = ("kv_holding_waiting", "waiting", "skipped_waiting")
"""Attributes of the scheduler, in the order in which it looks for a request to admit. It has two of them."""

_SIZES = "how many tokens a block holds"
_WAITING = "how many requests wait, and why"
_EXTERNAL = "external hits; lookups, transfers and tiers of KV connectors"
_HASHED = "block hashes of requests"
ENGINE_NEEDS = (
    Need(KV_CACHE_MANAGER, "block_pool"),
    Need(SCHEDULER, "block_size", _SIZES),
    Need(SCHEDULER, "connector", _EXTERNAL),
    Need(SCHEDULER, "waiting skipped_waiting|kv_holding_waiting", _WAITING),
    Need(BLOCK_POOL, "hash_block_size", _HASHED),
)

MOST_REQUESTS = 1 << 12
"""So many requests are followed before those that the scheduler no longer has are looked for."""

NOT_ADMITTED = 1 << 62
"""`LiveRequest.decode_from` of a request that waits: no number of computed tokens reaches it."""

UNCOUNTED = -1 << 40
"""`Pool.cached` once a hook that keeps it up to date is off: what the others add to it leaves it negative."""


Lookup = tuple[int, Request, int, int, Sequence[Any] | None]
"""Time, request, local hit tokens, a limit that the caller set or -1, answers of KV cache groups."""


class LiveRequest(RequestState):
    """A request the scheduler knows."""

    __slots__ = (
        "external_hit",
        "finished",
        "local_hit",
        "lookups",
        "preempted",
        "recompute_until",
        "table",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.decode_from = NOT_ADMITTED  # once it has computed this many tokens, it decodes
        self.preempted = False  # at least once
        self.finished = False
        self.recompute_until = 0  # tokens that a preemption threw away end here
        self.table: list[int] = []  # entries of its block table, by KV cache group
        self.lookups = 0  # prefix lookups since it was queued or last preempted
        self.local_hit = 0
        self.external_hit = 0


class AnswerRecorder(Protocol):
    """Records the answers of KV cache groups to lookups."""

    def take(self) -> Sequence[Any] | None:
        """Hand over the answers to the lookup that is just over; None: nobody was asked."""

    def complete(self, engine: Engine, answers: Sequence[Any]) -> None:
        """Add what only the cache as it is at the lookup tells."""

    def record(self, engine: Engine, moment: int, request: int, answers: Sequence[Any]) -> None:
        """Record the answers to a lookup whose request was admitted."""


class PoolRecorder(Protocol):
    """Records the changes of a block pool that is an offload tier's."""

    def changed(self, op: BlockOp, blocks: Sequence[Block]) -> None:
        """Record allocated, referenced or released blocks."""

    def hashed(self, op: BlockOp, key: bytes, block: Block) -> None:
        """Record a block that can be found by a hash from now on, or not any more."""

    def emptied(self) -> None:
        """Record that the pool was reset."""


class Pool(PoolState):
    """A block pool. `index` 0 is the scheduler's own."""

    def __init__(self, engine: Engine, block_pool: BlockPool, index: int) -> None:
        self.engine = engine
        self.block_pool = block_pool  # kept, so that its id() cannot be given to another
        self.index = index
        self.cached = 0  # hashes that lead to a block
        self.evicted = 0  # hashes taken away since the last NVTX mark
        self.tier: PoolRecorder | None = None  # of a pool that is an offload tier's


class Engine(EngineState):
    """A scheduler's state as the probes follow it."""

    def __init__(self, scheduler: Scheduler, recorder: Recorder, optional: OptionalAttributes) -> None:
        manager = scheduler.kv_cache_manager
        self.scheduler: Scheduler = weakref.proxy(scheduler)  # recording must not keep a deleted engine alive
        self.optional = optional
        self.block_pool = manager.block_pool
        self.pool = Pool(self, self.block_pool, 0)
        self.recorder = recorder
        self.pid = os.getpid()
        self.depth = 0  # of nested schedule() calls, as of a subclass that calls its parent's
        self.in_range = False  # of NVTX
        self.updating = False  # inside update_from_output(), which may be nested likewise
        self.step = 0  # -1 once it is unknown
        self.acting_step = 0  # the step whose scheduling or results are being processed
        self.holder = None  # what else takes or releases references just now
        self.owner = 0  # number of the request for which blocks change hands; 0: none, or it is not known
        self.preempted = 0  # in this step
        self.finished = 0  # in this update
        self.update_start = 0
        self.requests: dict[str, LiveRequest] = {}
        self._most_requests = MOST_REQUESTS
        self.follows_requests = True  # their ends are seen
        self.follows_lookups = True  # and what becomes of them
        self.awaiting_first_token: dict[str, Request] | None = {}  # None: first tokens are not seen
        self.lookup: Lookup | None = None  # whose hits are not yet used
        self.group_lookups: AnswerRecorder | None = None  # where hits have other limits than missing blocks
        self.group_kinds: list[GroupKind] = []
        self.need_blocks = -1  # of the last allocation that was sized
        self.group_needs: list[int] = []  # of each KV cache group, where there are several
        self.refused: tuple[str, int, int, int] | None = None  # request, blocks needed, free, kept free
        self.deferred = -1, ""  # step, and the request whose connector put it off then
        self.block_size = int(optional.read(scheduler, "block_size", _SIZES, 0) or 0)
        hashed = optional.read(self.block_pool, "hash_block_size", _HASHED, 0)
        self.hash_block_size = int(self.block_size if hashed is None else hashed)
        self.hash_lookahead = int(getattr(self.block_pool, "num_hash_lookahead_tokens", 0))  # behind a hash's block
        self.has_connector = optional.read(scheduler, "connector", _EXTERNAL) is not None
        self.queues = [name for name in _QUEUES if hasattr(scheduler, name)]
        if "waiting" not in self.queues or len(self.queues) < 2:
            optional.tell(scheduler, "waiting" if "waiting" not in self.queues else "|".join(_QUEUES[::2]), _WAITING)
            self.queues.clear()
        self.pins = Pins(self)

    def request(self, request_id: str) -> LiveRequest:
        """The state of a request, made when it is first seen."""
        live = self.requests.get(request_id)
        if live is None:
            if not self.follows_requests:
                raise RuntimeError("requests cannot be followed: nothing sees their ends")
            if len(self.requests) >= self._most_requests:
                self._forget_gone()
            live = self.requests[request_id] = LiveRequest(self.recorder.intern(request_id))
        return live

    def _forget_gone(self) -> None:
        """Forget requests whose end was not seen: the hook that sees it may have failed."""
        known = self.scheduler.requests
        for request_id in [request_id for request_id in self.requests if request_id not in known]:
            self.forget(request_id)
        self._most_requests = max(MOST_REQUESTS, 2 * len(self.requests))

    def forget(self, request_id: str) -> None:
        """Let go of what is known of a request."""
        self.requests.pop(request_id, None)
        if self.awaiting_first_token is not None:
            self.awaiting_first_token.pop(request_id, None)
        self.recorder.forget(request_id)

    def number(self, request_id: str) -> int:
        """The number of a request that may have been forgotten; it is not taken up again."""
        live = self.requests.get(request_id)
        if live is not None:
            return live.number
        (number,) = self.recorder.intern_once(request_id)
        return number

    def acts_for(self, request: Request) -> None:
        """Blocks change hands for this request from now on, until `owner` is 0 again."""
        live = self.requests.get(request.request_id)
        if live is None and self.follows_requests:
            live = self.request(request.request_id)
        self.owner = 0 if live is None else live.number

    def waiting(self) -> int:
        """Requests in all waiting queues, or -1. The queue objects may be replaced, so they are looked up by name."""
        scheduler, found = self.scheduler, 0 if self.queues else -1
        for name in self.queues:
            found += len(getattr(scheduler, name))
        return found

    def head(self) -> Request | None:
        """The request at the head of the waiting queues, or None."""
        for name in self.queues:
            queue = getattr(self.scheduler, name)
            if queue:
                head: Request = queue.peek_request()
                return head
        return None

    def without_steps(self) -> None:
        """Nothing counts steps any more, nor settles lookups at their ends."""
        self.step = self.acting_step = -1
        self.refused = None
        self.without_lookups()
        self.without_first_tokens()

    def without_lookups(self) -> None:
        """Nothing tells any more what becomes of lookups, or for whom blocks are allocated."""
        self.follows_lookups = False
        self.lookup, self.owner = None, 0

    def without_first_tokens(self) -> None:
        """Nothing looks for first tokens any more."""
        self.awaiting_first_token = None

    def without_ends(self) -> None:
        """Nothing sees requests end any more."""
        self.follows_requests = False
        for request_id in list(self.requests):
            self.forget(request_id)
        self.without_lookups()
        self.without_first_tokens()

    def without_hashes(self) -> None:
        """Nothing counts the blocks that can be found any more."""
        self.pool.cached = UNCOUNTED
