"""A prefix cache that lives at random and judges its own misses, event by event, without SQL.

Requests draw their blocks from a tree of few branches, so prefixes are shared, lost and computed at the same time. They
store a block or two a turn, as chunked prefill does; some have a salt.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import NamedTuple

from .traces import BLOCK_TOKENS, Events

Path = tuple[int, ...]


class Verdict(NamedTuple):
    """Expected row of prefix_miss."""

    verdict: str
    known_tokens: int
    other: int | None
    lost_ns: int | None


class Live:
    """An admitted request: its blocks so far, and the hashes it has still to store."""

    def __init__(self, number: int, salt: int, path: Path) -> None:
        self.number = number
        self.salt = salt
        self.path = path
        self.blocks: list[int] = []
        self.stored = 0

    def key(self, length: int, *, salt: int | None = None) -> tuple[int, Path]:
        return (self.salt if salt is None else salt, self.path[:length])


class CacheModel:
    """Runs, records into a trace, and keeps the verdicts by the time of the lookup."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.trace = Events()
        self.expected: dict[int, Verdict] = {}
        self.now = 100
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, 13))
        self.hash_of: dict[int, tuple[int, Path]] = {}
        self.stored: set[tuple[int, Path]] = set()  # ever
        self.lost: dict[tuple[int, Path], tuple[str, int, int | None]] = {}
        self.admitted: list[tuple[int, Live]] = []
        self.live: list[Live] = []

    def run(self, turns: int) -> None:
        """Admit, continue and finish requests at random."""
        for _ in range(turns):
            self.now += 10
            choice = self.random.random()
            if choice < 0.3:
                self._admit()
            elif choice < 0.8 and self.live:
                self._continue(self.random.choice(self.live))
            elif choice < 0.99 and self.live:
                self._finish(self.random.choice(self.live))
            elif not self.live:
                self._reset()

    def _findable(self, key: tuple[int, Path]) -> list[int]:
        return [block for block, name in self.hash_of.items() if name == key]

    def _admit(self) -> None:
        path = tuple(self.random.randrange(2) for _ in range(self.random.randint(1, 4)))
        request = Live(len(self.admitted) + 1, self.random.choice([0, 0, 0, 1, 2]), path)
        extra = self.random.choice([0, 5])
        hits: list[int] = []
        most = len(path) if extra else len(path) - 1
        while len(hits) < most and (found := self._findable(request.key(len(hits) + 1))):
            hits.append(found[0])
        if len(self.free) < len(path) + 1:
            return
        self.expected[self.now] = self._judge(request, len(hits), most)
        chain = [self._hash(request.key(n)) for n in range(len(hits) + 1, len(path) + 1)]
        plain = (
            [self._hash(request.key(n, salt=0)) for n in range(len(hits) + 1, len(path) + 1)] if request.salt else []
        )
        if request.salt:
            key = {"salt_key": request.salt, "prompt_embeds": False}
            self.trace.add("request_key", engine_id=1, step=self.now, request=request.number, **key)
        tokens, hit = len(path) * BLOCK_TOKENS + extra, len(hits) * BLOCK_TOKENS
        self.trace.lookup(self.now, request.number, tokens, hit, chain=chain, plain=plain)
        self.admitted.append((self.now, request))
        self.live.append(request)
        self.now += 1
        for block in hits:
            self.free.pop(block, None)
            request.blocks.append(block)
        request.stored = len(hits)

    @staticmethod
    def _hash(key: tuple[int, Path]) -> int:
        return hash(("block", *key)) % (1 << 63) + 1

    def _judge(self, request: Live, hits: int, most: int) -> Verdict:
        known = hits
        while known < len(request.path) and any(
            other.salt == request.salt and other.path[: known + 1] == request.path[: known + 1]
            for _, other in self.admitted
        ):
            known += 1
        tokens = known * BLOCK_TOKENS
        if hits == len(request.path):
            return Verdict("shorter_than_block", tokens, None, None)
        missing = request.key(hits + 1)
        if self._findable(missing):
            return Verdict("last_token", tokens, None, None)
        holders = [
            (at, other) for at, other in self.admitted if other.key(hits + 1) == missing and hits < len(other.path)
        ]
        named = [(at, other) for at, other in holders if self._named_at(at, other, hits)]
        lost = self.lost.get(missing)
        if named and named[-1][1] in self.live and named[-1][0] > (lost[1] if lost else 0):
            return Verdict("not_finished_storing", tokens, named[-1][1].number, None)
        if lost:
            return Verdict(lost[0], tokens, lost[2], lost[1])
        return self._another_key(request, hits) or Verdict("never_stored", tokens, None, None)

    def _named_at(self, at: int, other: Live, position: int) -> bool:
        """Return whether the other's admission recorded the hash at a position: it records from its first miss on."""
        [(hit,)] = self.trace.rows(f"SELECT local_hit_tokens FROM prefix_lookup WHERE time_ns = {at}")
        return bool(hit // BLOCK_TOKENS <= position)

    def _another_key(self, request: Live, hits: int) -> Verdict | None:
        """The request that last gave these tokens another name, by each name's first appearance."""
        first: dict[int, tuple[int, Live]] = {}
        for at, other in self.admitted:
            if other.path[: hits + 1] == request.path[: hits + 1] and self._named_at(at, other, hits):
                first.setdefault(other.salt, (at, other))
        if not first:
            return None
        salt, (_, other) = max(first.items(), key=lambda item: item[1][0])
        if salt == request.salt:
            return None
        known = hits
        while known < len(request.path) and any(
            other.path[: known + 1] == request.path[: known + 1] for _, other in self.admitted
        ):
            known += 1
        return Verdict("different_key", known * BLOCK_TOKENS, other.number, None)

    def _continue(self, request: Live) -> None:
        for _ in range(self.random.randint(1, 2)):
            if request.stored < len(request.path) and self.free:
                block = next(iter(self.free))
                del self.free[block]
                self._take(block, request)

    def _take(self, block: int, request: Live) -> None:
        old = self.hash_of.pop(block, None)
        if old is not None:
            self.trace.block(self.now, "evict", block, self._hash(old), request.number)
            if not self._findable(old):
                self.lost[old] = ("evicted", self.now, request.number)
        self.now += 1
        request.stored += 1
        key = request.key(request.stored)
        self.trace.block(self.now, "cache", block, self._hash(key), request.number, ref_count=1)
        self.hash_of[block] = key
        self.stored.add(key)
        self.lost.pop(key, None)
        request.blocks.append(block)

    def _finish(self, request: Live) -> None:
        self.live.remove(request)
        self.trace.turn(self.now, "finish", request.number)
        held = {block for other in self.live for block in other.blocks}
        for block in reversed(request.blocks):
            if block not in held and block not in self.free:
                self.trace.block(self.now, "free", block)
                self.free[block] = None

    def _reset(self) -> None:
        self.trace.block(self.now, "reset", None)
        for key in self.hash_of.values():
            self.lost[key] = ("reset", self.now, None)
        self.hash_of.clear()
