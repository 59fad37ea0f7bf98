"""An engine's state as its records tell it: the one that `kvtrace top` and `kvtrace metrics` show."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.events import BlockOp, FinishReason, Limit, Phase, RequestOp
from kvtrace.live.misses import Misses, Verdict
from kvtrace.live.requests import Requests, Seen, State, seen
from kvtrace.live.tail import Rows
from kvtrace.live.window import Durations, Ints, SecondSums

STREAMS = (
    "step_schedule",
    "request_queued",
    "prefix_lookup",
    "request_hash",
    "block_event",
    "step_request",
    "step_update",
    "request_event",
)
"""Streams that are read, `step_schedule` first: a step's records are complete once its row there is written."""

COUNTERS = (
    "lookups",
    "queried_tokens",
    "hit_tokens",
    "external_hit_tokens",
    "resumed_queried_tokens",
    "resumed_hit_tokens",
    "steps",
    "scheduled_tokens",
    "resumed_tokens",
    "prompt_tokens",
    "output_tokens",
    "preemptions",
    "stored_blocks",
    "evicted_blocks",
)
"""Names of counts: since the beginning, and over the window."""

_FINISHED = 256
_STEPS_IN_FLIGHT = 64


class EngineState:
    """State of one engine; its size does not grow with the recording.

    Attributes:
        facts: The engine's line of the journal: model, blocks, block size, limits.
        totals: Counts since the recording began, by name (`COUNTERS`).
        limits: Steps by why the queue's head was not admitted (`Limit`).
        misses: Admitted lookups by verdict (`Verdict`).
        finished: Requests that ended, by reason (`FinishReason`).
        step: The last row of `step_schedule`, or None.
        last_ns: Time of the last record (CLOCK_MONOTONIC).
        recently_finished: The last requests that ended.
    """

    def __init__(self, facts: Mapping[str, Any], offset_ns: int) -> None:
        self.facts = facts
        self.offset_ns = offset_ns
        self.totals = dict.fromkeys(COUNTERS, 0)
        self.limits = np.zeros(max(Limit) + 1, np.int64)
        self.misses = np.zeros(len(Verdict), np.int64)
        self.finished = np.zeros(max(FinishReason) + 1, np.int64)
        self.step: Any = None
        self.last_ns = 0
        self.time_to_first_token = Durations()
        self.inter_token = Durations()
        self.queue_time = Durations()
        self.end_to_end = Durations()
        self.requests = Requests()
        self.recently_finished: deque[Seen] = deque(maxlen=_FINISHED)
        self._judge = Misses(int(facts.get("hash_block_tokens") or facts.get("block_size_tokens") or 16), self.requests)
        self._recent = SecondSums(len(COUNTERS))
        self._recent_limits = SecondSums(len(self.limits))
        self._recent_misses = SecondSums(len(self.misses))
        self._in_flight: dict[int, Rows] = {}

    @property
    def blocks(self) -> int:
        """Blocks that requests can have: vLLM's null block is not among them."""
        return int(self.facts.get("blocks") or 0)

    def recent(self, now_ns: int) -> dict[str, int]:
        """Counts over the window, by name."""
        return dict(zip(COUNTERS, self._recent.total(now_ns).tolist(), strict=True))

    def recent_limits(self, now_ns: int) -> Ints:
        """Steps in the window by `Limit`."""
        return self._recent_limits.total(now_ns)

    def recent_misses(self, now_ns: int) -> Ints:
        """Admitted lookups in the window by `Verdict`."""
        return self._recent_misses.total(now_ns)

    def fold(self, rows: Mapping[str, Rows]) -> None:
        """Take up records: of each stream of `STREAMS`, the rows of the same steps."""
        self._queue(rows["request_queued"])
        self._schedule(rows["step_schedule"])
        self._look_up(rows["prefix_lookup"], rows["request_hash"], rows["block_event"])
        self._share(rows["step_request"])
        self._update(rows["step_update"])
        for event in rows["request_event"]:
            self._turn(event, rows["step_request"])

    def _count(self, name: str, time_ns: Any, amounts: Any) -> None:
        self.totals[name] += int(np.sum(amounts))
        self._recent.add(time_ns, COUNTERS.index(name), amounts)

    def _seen_at(self, times_ns: NDArray[np.int64]) -> None:
        if len(times_ns):
            self.last_ns = max(self.last_ns, int(times_ns[-1]))

    def _queue(self, rows: Rows) -> None:
        places = self.requests.place(rows["request"])
        self.requests["state"][places] = State.waiting
        self.requests["queued_ns"][places] = rows["time_ns"]
        self.requests["arrival_ns"][places] = rows["arrival_ns"] - self.offset_ns
        self.requests["prompt_tokens"][places] = rows["prompt_tokens"]
        self.requests["session"][places] = rows["session"]
        self._seen_at(rows["time_ns"])

    def _schedule(self, rows: Rows) -> None:
        if not len(rows):
            return
        self.step = rows[-1]
        times = rows["scheduled_ns"]
        self._seen_at(times)
        self._count("steps", times, np.ones(len(rows), np.int64))
        scheduled = sum(rows[f"{phase.name}_tokens"].astype(np.int64) for phase in Phase)
        self._count("scheduled_tokens", times, scheduled)
        self._count("resumed_tokens", times, rows["resumed_tokens"])
        self._count("preemptions", times, rows["preempted_requests"])
        limited = rows["admission_limit"] > Limit.none
        self.limits += np.bincount(rows["admission_limit"][limited], minlength=len(self.limits))
        self._recent_limits.add(times[limited], rows["admission_limit"][limited], 1)

    def _look_up(self, lookups: Rows, hashes: Rows, blocks: Rows) -> None:
        used = lookups[lookups["admitted"]]
        for time_ns, verdict in self._judge.judge(used, hashes, blocks):
            self.misses[verdict] += 1
            self._recent_misses.add(time_ns, int(verdict), 1)
        enabled = used[used["enabled"]]
        first, again = enabled[~enabled["resumed"]], enabled[enabled["resumed"]]
        self._count("lookups", used["time_ns"], np.ones(len(used), np.int64))
        self._count("queried_tokens", first["time_ns"], first["queried_tokens"])
        self._count("hit_tokens", first["time_ns"], first["local_hit_tokens"])
        self._count("external_hit_tokens", first["time_ns"], np.maximum(first["external_hit_tokens"], 0))
        self._count("resumed_queried_tokens", again["time_ns"], again["queried_tokens"])
        self._count("resumed_hit_tokens", again["time_ns"], again["local_hit_tokens"])
        pool = blocks[blocks["pool"] == 0]
        for name, op in (("stored_blocks", BlockOp.cache), ("evicted_blocks", BlockOp.evict)):
            times = pool["time_ns"][pool["op"] == op]
            self._count(name, times, np.ones(len(times), np.int64))
        self._seen_at(blocks["time_ns"])

    def _share(self, rows: Rows) -> None:
        rows = rows[self.requests.has_not_ended(rows["request"])]
        places = self.requests.place(rows["request"])
        np.add.at(self.requests["blocks"], places, rows["new_blocks"])
        self.requests["state"][places] = State.running
        begin = 0
        for end in [*(np.flatnonzero(np.diff(rows["step"])) + 1).tolist(), len(rows)]:
            if end > begin:
                self._in_flight[int(rows["step"][begin])] = rows[begin:end]
            begin = end

    def _update(self, rows: Rows) -> None:
        self._seen_at(rows["end_ns"])
        self._count("output_tokens", rows["update_ns"], np.maximum(rows["output_tokens"], 0))
        for row in rows:
            shares = self._in_flight.pop(int(row["step"]), None)
            if shares is not None:
                self._give_tokens(int(row["update_ns"]), shares)
        for step in sorted(self._in_flight)[:-_STEPS_IN_FLIGHT]:  # no result came of these
            del self._in_flight[step]

    def _give_tokens(self, time_ns: int, shares: Rows) -> None:
        """A step's results: its requests whose known tokens are all computed now got a token."""
        table = self.requests
        shares = shares[table.has_not_ended(shares["request"])]
        places = table.place(shares["request"])
        known = table["prompt_tokens"][places] + table["output_tokens"][places]
        done = (shares["phase"] == Phase.decode) | (shares["computed_tokens"] + shares["scheduled_tokens"] >= known)
        places = places[done]
        before = table["last_token_ns"][places]
        self.inter_token.add(np.full(int((before > 0).sum()), time_ns), time_ns - before[before > 0])
        table["last_token_ns"][places] = time_ns
        table["output_tokens"][places] += 1

    def _turn(self, event: Any, shares: Rows) -> None:
        time_ns, op = int(event["time_ns"]), int(event["op"])
        table = self.requests
        (place,) = table.place(event["request"])
        self.last_ns = max(self.last_ns, time_ns)
        if op in (RequestOp.schedule, RequestOp.resume):
            table["state"][place] = State.running
        if op == RequestOp.schedule:  # a resumed request also finds tokens that are not of its prompt
            table["cached_tokens"][place] = max(event["local_cached_tokens"], 0) + max(
                event["external_cached_tokens"], 0
            )
            if table["queued_ns"][place]:
                self.queue_time.add(time_ns, time_ns - table["queued_ns"][place])
        elif op == RequestOp.first_token:
            self._count("prompt_tokens", time_ns, max(int(table["prompt_tokens"][place]), 0))
            table["first_token_ns"][place] = time_ns
            if table["arrival_ns"][place]:
                self.time_to_first_token.add(time_ns, time_ns - table["arrival_ns"][place])
        elif op == RequestOp.preempt:
            later = (shares["request"] == event["request"]) & (shares["step"] > event["step"])
            table["blocks"][place] = shares["new_blocks"][later].sum()
            table["state"][place] = State.running if later.any() else State.preempted
            table["preemptions"][place] += 1
        elif op == RequestOp.finish:
            self._finish(event, int(place))

    def _finish(self, event: Any, place: int) -> None:
        table, time_ns = self.requests, int(event["time_ns"])
        self.finished[event["reason"]] += 1
        if table["arrival_ns"][place]:
            self.end_to_end.add(time_ns, time_ns - table["arrival_ns"][place])
        table["output_tokens"][place] = event["output_tokens"]
        table["blocks"][place] = max(event["blocks"], 0)
        self.recently_finished.append(seen(table.row(place), time_ns))
        table.remove(place)
