"""Pins: holds on KV cache blocks by something else than a running request, from start to end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from kvtrace.capture.recorder import Recorder
from kvtrace.events import PIN_END, PIN_START, PinCause, PinEnd
from kvtrace.probes.vllm_types import Block, Request, Scheduler


class PinnedEngine(Protocol):
    """As much of an `Engine` as its pins need."""

    recorder: Recorder
    scheduler: Scheduler
    holder: Holder | None
    acting_step: int

    def number(self, request_id: str) -> int:
        """The number of a request."""


Key = str | int
"""Names a pin within its cause: a request id, or the id() of a list of blocks."""


class Holder:
    """The holder of references that are taken during a call that is not a request's own.

    `found` are the blocks it touched; None: they are recorded at once, as a connector's references.
    """

    __slots__ = ("ends", "found", "request")

    def __init__(self, request: int, ends: PinEnd, found: list[int] | None = None) -> None:
        self.request = request
        self.ends = ends  # why its references will end
        self.found = found


class Pins:
    """The open pins of one engine."""

    def __init__(self, engine: PinnedEngine) -> None:
        self._engine = engine
        self._emit_starts = engine.recorder.columns(PIN_START)
        self._emit_ends = engine.recorder.columns(PIN_END)
        self._last = 0
        self._unfollowed: set[PinCause] = set()  # nothing sees their ends
        self.opened: dict[tuple[PinCause, Key], tuple[int, list[int]]] = {}  # that have not ended
        self._connector: dict[int, list[tuple[int, PinEnd]]] = {}  # by block: its pins, oldest first
        self.fenced: dict[int, list[Block]] = {}  # behind the fence; kept, so that their id() stays theirs

    def start(self, cause: PinCause, key: Key | None, request: int, blocks: list[int], ttl_ns: int = -1) -> int:
        """Record that blocks are held from now on; `key` and the cause name the pin until it ends."""
        self._last += 1
        if key is not None and cause not in self._unfollowed:
            self.opened[cause, key] = self._last, blocks
        moment, step, pin = time.monotonic_ns(), self._engine.acting_step, self._last
        self._emit_starts(
            len(blocks),
            time_ns=moment,
            step=step,
            pin=pin,
            block_id=blocks,
            cause=cause,
            request=request,
            requested_ttl_ns=ttl_ns,
        )
        return pin

    def end(self, cause: PinCause, key: Key, reason: PinEnd) -> bool:
        """Record that a pin's blocks are let go; False if there is no such pin."""
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

    def fence(self, blocks: list[Block], request: int) -> None:
        """Record that blocks of a request are held until a step that may write them is over."""
        if PinCause.in_flight not in self._unfollowed:
            self.fenced[id(blocks)] = blocks
        self.start(PinCause.in_flight, id(blocks), request, [block.block_id for block in blocks if not block.is_null])

    def is_open(self, cause: PinCause, key: Key) -> bool:
        """Tell if a pin is open."""
        return (cause, key) in self.opened

    def _ended(self, pins: int | list[int], blocks: list[int], reason: PinEnd) -> None:
        now, step = time.monotonic_ns(), self._engine.acting_step
        self._emit_ends(len(blocks), time_ns=now, step=step, pin=pins, block_id=blocks, reason=reason)

    def touched(self, blocks: Iterable[Block]) -> None:
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

    def freed(self, blocks: Iterable[Block]) -> None:
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

    def hold_request(self, cause: PinCause, request: Request) -> None:
        """Record that all blocks of a request's block table are held."""
        blocks = block_ids(self._engine, request.request_id)
        self.start(cause, request.request_id, self._engine.number(request.request_id), blocks)


def block_ids(engine: PinnedEngine, request_id: str) -> list[int]:
    """The blocks of a request's block table, over all KV cache groups, without the null block."""
    groups = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
    return [block for group in groups for block in group if block]
