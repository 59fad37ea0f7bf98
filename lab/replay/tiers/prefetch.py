"""Brings the KV of sessions back from a tier before their next turn comes, when a policy says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kvtrace.lab.replay.policies.base import Movement, Prefetch, Turn


class TierSide(Protocol):
    """Part of the tier's connector that prefetching uses."""

    pool: Any
    block_size: int

    def waits_s(self, tokens: int, now_ns: int) -> float:
        """Seconds until a copy of so many tokens from the tier would have ended."""

    def present(self, request: Any) -> list[Any]:
        """Return the request's leading blocks that are on the GPU, or None where only the tier has one."""

    def start_load(self, request: Any, positions: list[int], now_ns: int) -> tuple[int, list[bytes]]:
        """Queue the copy of blocks from the tier. Return when it ends, and its chunks."""

    def end_load(self, chunks: list[bytes]) -> None:
        """Let the tier evict the chunks of a load again."""

    def tier_share(self) -> float:
        """Share of the tier's bytes in use."""


class _Ended(NamedTuple):
    turn: Turn
    request: Any


@dataclass
class _Flight:
    """A copy under way. `blocks` are held until it ends; those at `positions` get their content by it."""

    end_ns: int
    request: Any
    blocks: list[Any]
    positions: list[int]
    chunks: list[bytes]


@dataclass
class Counts:
    """Prefetches by what became of them; `late` ones had not begun when their turn came."""

    planned: int = 0
    begun: int = 0
    late: int = 0
    refused: int = 0
    blocks: int = 0

    def __str__(self) -> str:
        return (
            f"{self.planned} prefetches planned, {self.begun} begun (of {self.blocks} blocks), {self.late} too late, "
            f"{self.refused} without free blocks"
        )


class Prefetcher:
    """Carries a policy out. Copies begin and land between steps, or while the engine is idle.

    Args:
        tier: The connector.
        policy: Says when and whether.
        gaps_s: Recorded seconds from a request's end to its session's next turn, by internal id.
        prefill_s: Time to compute so many tokens, s.
        tools_told: The recording names tools: a turn without one was its session's last. Else any may be.
    """

    def __init__(
        self,
        tier: TierSide,
        policy: Prefetch,
        gaps_s: Mapping[str, float],
        prefill_s: Callable[[int], float],
        *,
        tools_told: bool,
    ) -> None:
        self._tier, self.policy, self._gaps_s, self._prefill_s = tier, policy, gaps_s, prefill_s
        self._tools_told = tools_told
        self._lead_s = float(policy.options.get("lead_s", 0.02))
        self._ended: dict[str, _Ended] = {}
        self._due: list[tuple[int, int, str, Any]] = []
        self._numbers = itertools.count()
        self._flights: dict[str, _Flight] = {}
        self.counts = Counts()

    def turn_ended(self, request: Any, session: str, tool: str, tokens: int, now_ns: int) -> bool:
        """Plan the session's return. Return True if its KV should be stored now, as that of a last turn is."""
        if self._tools_told and not tool:
            return True
        turn = Turn(session, tool, now_ns / 1e9, tokens, self._gaps_s.get(request.request_id))
        self._ended[session] = _Ended(turn, request)
        gap_s = self.policy.gap_s(turn)
        if gap_s is not None:
            ahead_s = self._tier.waits_s(tokens, now_ns) + self._lead_s
            due = now_ns + max(int((gap_s - ahead_s) * 1e9), 0)
            heapq.heappush(self._due, (due, next(self._numbers), session, request))
            self.counts.planned += 1
        return self.policy.stores(turn)

    def turn_came(self, session: str, now_ns: int) -> None:
        """Drop the plan of a session whose next turn is here, and let the policy learn."""
        ended = self._ended.pop(session, None)
        if ended is not None:
            self.policy.saw(ended.turn, now_ns / 1e9 - ended.turn.ended_s)
            self.counts.late += any(session == due for _, _, due, _ in self._due)

    def in_flight(self, session: str) -> bool:
        """Return True while a copy of the session's KV is under way."""
        return session in self._flights

    def advance(self, now_ns: int, *, idle: bool) -> None:
        """Land copies that have ended, and begin those that are due.

        Args:
            now_ns: The time.
            idle: The engine has run no step since the last call: copies began when they were due.
        """
        while idle and self._due and self._due[0][0] <= now_ns:
            one = heapq.heappop(self._due)
            self._land(one[0])
            self._begin([one], one[0])
        self._land(now_ns)
        due = []
        while self._due and self._due[0][0] <= now_ns:
            due.append(heapq.heappop(self._due))
        if due:
            self._begin(due, now_ns)

    def _begin(self, due: list[tuple[int, int, str, Any]], now_ns: int) -> None:
        ranked = []
        for _, number, session, request in due:
            ended = self._ended.get(session)
            if ended is None or ended.request is not request or session in self._flights:
                continue
            blocks = self._tier.present(request)
            score = self.policy.score(ended.turn, self._movement(blocks, now_ns))
            ranked.append((-score, number, session, request))
        for score, _, session, request in sorted(ranked, key=lambda each: each[:2]):
            if score < 0:
                self._fetch(session, request, now_ns)

    def _movement(self, blocks: list[Any], now_ns: int) -> Movement:
        missing = sum(block is None for block in blocks)
        tokens = missing * self._tier.block_size
        free = self._tier.pool.get_num_free_blocks()
        share = missing / free if free else 1.0
        waits = self._tier.waits_s(tokens, now_ns)
        queue = self._tier.waits_s(0, now_ns)
        return Movement(tokens, self._prefill_s(tokens), waits, queue, share, self._tier.tier_share())

    def _fetch(self, session: str, request: Any, now_ns: int) -> None:
        pool, blocks = self._tier.pool, self._tier.present(request)
        positions = [place for place, block in enumerate(blocks) if block is None]
        here = [block for block in blocks if block is not None]
        pool.touch(here)
        if len(positions) > pool.get_num_free_blocks():  # never at the cost of running requests
            pool.free_blocks(reversed(here))
            self.counts.refused += 1
            return
        # The copy first: a block that makes room on the GPU may take room in the tier, but not that of these chunks.
        end_ns, chunks = self._tier.start_load(request, positions, now_ns) if positions else (now_ns, [])
        for place, block in zip(positions, pool.get_new_blocks(len(positions)), strict=True):
            blocks[place] = block
        self._flights[session] = _Flight(end_ns, request, blocks, positions, chunks)
        self.counts.begun += 1
        self.counts.blocks += len(positions)

    def _land(self, now_ns: int) -> None:
        for session in [session for session, flight in self._flights.items() if flight.end_ns <= now_ns]:
            flight = self._flights.pop(session)
            for place in flight.positions:
                self._tier.pool.cache_full_blocks(
                    flight.request, flight.blocks, place, place + 1, self._tier.block_size, 0
                )
            self._tier.pool.free_blocks(reversed(flight.blocks))  # the prefix's beginning is evicted last
            self._tier.end_load(flight.chunks)
