"""Pins: holders of KV cache blocks that no running request holds, with their start, their end and its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kvtrace.events import PIN_END, PIN_START, PinCause, PinEnd
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import BLOCK, KV_CACHE_MANAGER, REQUEST, SCHEDULER

_FAILED = "that a load failed"
_STREAMING = "WAITING_FOR_STREAMING_REQ"

if TYPE_CHECKING:
    from kvtrace.probes.engine import Engine
    from kvtrace.probes.engines import Engines


class Holder:
    """Owner of the references taken during a call that is not a request's own.

    `found` are the blocks it touched; None: they are recorded at once, as a connector's references.
    """

    __slots__ = ("ends", "found", "request")

    def __init__(self, request: int, ends: PinEnd, found: list[int] | None = None) -> None:
        self.request = request
        self.ends = ends  # why its references will end
        self.found = found


class Pins:
    """The open pins of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._emit_starts = engine.recorder.columns(PIN_START)
        self._emit_ends = engine.recorder.columns(PIN_END)
        self._last = 0
        self._unfollowed: set[PinCause] = set()  # nothing sees their ends
        self.opened: dict[tuple[PinCause, Any], tuple[int, list[int]]] = {}  # that have not ended
        self._connector: dict[int, list[tuple[int, PinEnd]]] = {}  # by block: its pins, oldest first
        self.fenced: dict[int, list[Any]] = {}  # lists of blocks behind the fence, kept so that their id() stays theirs

    def start(self, cause: PinCause, key: Any, request: int, blocks: list[int], ttl_ns: int = -1) -> int:
        """Record that blocks are held from now on; `key` and the cause name the pin until it ends."""
        self._last += 1
        if key is not None and cause not in self._unfollowed:
            self.opened[cause, key] = self._last, blocks
        moment, step, pin = time.monotonic_ns(), self._engine.acting_step, self._last
        self._emit_starts(len(blocks), moment, step, pin, blocks, cause, request, ttl_ns)
        return pin

    def end(self, cause: PinCause, key: Any, reason: PinEnd) -> bool:
        """Record that a pin's blocks are released; False if there is no such pin."""
        opened = self.opened.pop((cause, key), None)
        if opened is None:
            return False
        self._ended(*opened, reason)
        return True

    def unfollow(self, *causes: PinCause) -> None:
        """Nothing sees pins of these causes end any more: those that are open stay open in the trace."""
        self._unfollowed.update(causes)
        for cause, key in [opened for opened in self.opened if opened[0] in causes]:
            del self.opened[cause, key]
        if PinCause.connector in causes:
            self._connector.clear()
        if PinCause.in_flight in causes:
            self.fenced.clear()

    def fence(self, blocks: list[Any], request: int) -> None:
        """Record that blocks of a request are held until a step that may write them is over."""
        if PinCause.in_flight not in self._unfollowed:
            self.fenced[id(blocks)] = blocks
        self.start(PinCause.in_flight, id(blocks), request, [block.block_id for block in blocks if not block.is_null])

    def is_open(self, cause: PinCause, key: Any) -> bool:
        """Return whether there is such a pin."""
        return (cause, key) in self.opened

    def _ended(self, pins: int | list[int], blocks: list[int], reason: PinEnd) -> None:
        self._emit_ends(len(blocks), time.monotonic_ns(), self._engine.acting_step, pins, blocks, reason)

    def touched(self, blocks: Iterable[Any]) -> None:
        """Blocks got a reference while the engine's `holder` was acting."""
        holder, ids = self._engine.holder, [block.block_id for block in blocks if not block.is_null]
        if holder is None or not ids:
            return
        if holder.found is not None:
            holder.found += ids
            return
        pin = self.start(PinCause.connector, None, holder.request, ids)
        for block in ids if PinCause.connector not in self._unfollowed else ():
            self._connector.setdefault(block, []).append((pin, holder.ends))

    def freed(self, blocks: Iterable[Any]) -> None:
        """Blocks lost a reference while a connector was acting: its own, if it has any."""
        ended: dict[PinEnd, tuple[list[int], list[int]]] = {}
        for block in blocks:
            pins = self._connector.get(block.block_id)
            if pins:
                pin, reason = pins.pop(0)
                numbers, ids = ended.setdefault(reason, ([], []))
                numbers.append(pin)
                ids.append(block.block_id)
                if not pins:
                    del self._connector[block.block_id]
        for reason, (numbers, ids) in ended.items():
            self._ended(numbers, ids, reason)

    def hold_request(self, cause: PinCause, request: Any, ttl_ns: int = -1) -> None:
        """Record that all blocks of a request's block table are held."""
        blocks = block_ids(self._engine, request.request_id)
        self.start(cause, request.request_id, self._engine.number(request.request_id), blocks, ttl_ns)


def block_ids(engine: Engine, request_id: str) -> list[int]:
    """The blocks of a request's block table, over all KV cache groups, without the null block."""
    groups = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
    return [block for group in groups for block in group if block]


def hooks(engines: Engines) -> list[Hook]:
    """The hooks on the scheduler's own ways to keep blocks of requests that do not run."""
    schedulers = engines.by_scheduler

    def found(args: Args, kwargs: Kwargs) -> tuple[Engine | None, Any]:
        return schedulers.get(id(args[0])), argument(args, kwargs, 1, "request")

    def before_free_request(args: Args, kwargs: Kwargs) -> None:
        engine = schedulers.get(id(args[0]))
        if engine is not None and engine.pins.opened:
            engine.pins.end(PinCause.streaming, argument(args, kwargs, 1, "request").request_id, PinEnd.released)

    def after_free_request(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        engine, request = found(args, kwargs)
        if engine is None or request.request_id not in args[0].requests:
            return
        if engine.pins.is_open(PinCause.delayed_free, request.request_id):  # by a subclass's call of its parent's
            return
        engine.pins.end(PinCause.async_load, request.request_id, PinEnd.aborted)
        engine.pins.hold_request(PinCause.delayed_free, request)

    def after_free_blocks(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        engine = schedulers.get(id(args[0]))
        if engine is None or not engine.pins.opened:
            return
        request = argument(args, kwargs, 1, "request")
        engine.pins.end(PinCause.async_load, request.request_id, PinEnd.aborted)
        engine.pins.end(PinCause.delayed_free, request.request_id, PinEnd.saved)

    def before_fence(args: Args, kwargs: Kwargs) -> int:
        return len(args[0].deferred_frees)

    def after_fence(entries: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        deferred = args[0].deferred_frees
        engine = schedulers.get(id(args[0])) if len(deferred) > entries else None
        if engine is None:
            return
        number = engine.number(argument(args, kwargs, 1, "request").request_id)
        for entry in list(deferred)[entries:]:
            engine.pins.fence(entry[1], number)

    def after_drain(_: Any, __: Any, args: Args, kwargs: Kwargs) -> None:
        engine = schedulers.get(id(args[0]))
        if engine is None or not engine.pins.fenced:
            return
        left = {id(entry[1]) for entry in args[0].deferred_frees}
        for key in [key for key in engine.pins.fenced if key not in left]:
            del engine.pins.fenced[key]
            engine.pins.end(PinCause.in_flight, key, PinEnd.drained)

    def before_loaded(args: Args, kwargs: Kwargs) -> PinEnd:
        failed = engines.lacks.read(args[0], "failed_recving_kv_req_ids", _FAILED)
        if failed is None:
            return PinEnd.released  # or failed
        return PinEnd.failed if argument(args, kwargs, 1, "request").request_id in failed else PinEnd.loaded

    def after_loaded(reason: PinEnd, _: Any, args: Args, kwargs: Kwargs) -> None:
        engine, request = found(args, kwargs)
        if engine is not None:
            engine.pins.end(PinCause.async_load, request.request_id, reason)

    def after_stopped(_: None, finished: bool, args: Args, kwargs: Kwargs) -> None:
        engine = None if finished else schedulers.get(id(args[0]))
        if engine is not None and (request := argument(args, kwargs, 1, "request")).status.name == _STREAMING:
            engine.pins.hold_request(PinCause.streaming, request)

    def before_session(args: Args, kwargs: Kwargs) -> None:
        engine, session = schedulers.get(id(args[0])), argument(args, kwargs, 1, "session")
        if engine is not None:
            engine.pins.end(PinCause.streaming, session.request_id, PinEnd.used)

    def unfollow(*causes: PinCause) -> Callable[[], None]:
        return engines.off(lambda engine: engine.pins.unfollow(*causes))

    request, tables = Need(REQUEST, "request_id"), Need(KV_CACHE_MANAGER, "get_block_ids")
    fence = Need(SCHEDULER, "deferred_frees")
    return [
        Hook(
            f"{SCHEDULER}._free_request",
            "delayed frees",
            before=before_free_request,
            after=after_free_request,
            needs=(request, tables, Need(SCHEDULER, "requests")),
            off=unfollow(PinCause.streaming),
        ),
        Hook(
            f"{SCHEDULER}._free_blocks",
            "the end of delayed frees",
            after=after_free_blocks,
            needs=(request,),
            off=unfollow(PinCause.delayed_free),
        ),
        Hook(
            f"{SCHEDULER}._free_request_blocks",
            "frees put off",
            before=before_fence,
            after=after_fence,
            needs=(request, fence, Need(BLOCK, "block_id is_null")),
            since="0.26.0",
        ),
        Hook(
            f"{SCHEDULER}._drain_deferred_frees",
            "the end of frees put off",
            after=after_drain,
            needs=(fence,),
            off=unfollow(PinCause.in_flight),
            since="0.26.0",
        ),
        Hook(
            f"{SCHEDULER}._update_waiting_for_remote_kv",
            "the end of asynchronous loads",
            before=before_loaded,
            after=after_loaded,
            off=unfollow(PinCause.async_load),
            needs=(request, Need(SCHEDULER, "failed_recving_kv_req_ids", _FAILED)),
        ),
        Hook(
            f"{SCHEDULER}._handle_stopped_request",
            "streaming sessions that wait",
            after=after_stopped,
            needs=(Need(REQUEST, "request_id status"), tables),
        ),
        Hook(f"{SCHEDULER}._update_request_as_session", "their next input", before=before_session, needs=(request,)),
    ]
