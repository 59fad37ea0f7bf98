"""Counts the figures of a replay while it runs, where no trace of it is wanted."""

from __future__ import annotations

from array import array
from typing import Any

from kvtrace.lab.replay.check import Outcome, summary
from kvtrace.lab.replay.recording import RecordedRequest

_WHOLE = ("stop", "length")


class _Life:
    """A request that has not ended: what vLLM made of it, and when its first token came."""

    __slots__ = ("arrival_ns", "first_ns", "hit_tokens", "request", "session")

    def __init__(self, request: Any, session: str | None, arrival_ns: int) -> None:
        self.request, self.session, self.arrival_ns = request, session, arrival_ns
        self.first_ns: int | None = None
        self.hit_tokens = 0


class Tally:
    """Figures of a replay, as `check.outcome` takes them from a trace.

    Memory grows by a few numbers a request and a session, so that a million requests fit.

    Args:
        scheduler: vLLM's; its block pool's evictions are counted.
    """

    def __init__(self, scheduler: Any) -> None:
        self._lives: dict[str, _Life] = {}
        self._evictions = self._hit_tokens = self._prompt_tokens = self._output_tokens = self._preemptions = 0
        self._first_arrival_ns, self._last_end_ns = 1 << 62, 0
        self._ttft_ms, self._tpot_ms, self._request_ms = array("d"), array("d"), array("d")
        self._sessions: dict[str, tuple[int, int]] = {}
        self._count_evictions(scheduler.kv_cache_manager.block_pool)

    def _count_evictions(self, pool: Any) -> None:
        evict = pool._maybe_evict_cached_block

        def counted(block: Any) -> bool:
            evicted: bool = evict(block)
            self._evictions += evicted
            return evicted

        pool._maybe_evict_cached_block = counted

    def arrived(self, recorded: RecordedRequest, request: Any) -> None:
        """Note a request that is queued."""
        arrival_ns = int(request.arrival_time * 1e9)  # as kvtrace's hooks take it
        self._lives[recorded.internal_id] = _Life(request, recorded.session, arrival_ns)
        self._prompt_tokens += recorded.prompt_tokens

    def told(self, result: Any, now_ns: int) -> None:
        """Note vLLM's output of a request for its client."""
        life = self._lives.get(result.request_id)
        if life is None:
            return
        if result.prefill_stats is not None:
            life.hit_tokens = result.prefill_stats.num_cached_tokens
        if life.first_ns is None and result.new_token_ids:
            life.first_ns = now_ns
            self._ttft_ms.append((now_ns - life.arrival_ns) / 1e6)
        if result.finish_reason is not None:
            self.ended(result.request_id, str(result.finish_reason), now_ns)

    def ended(self, request_id: str, reason: str, now_ns: int) -> None:
        """Note the end of a request."""
        life = self._lives.pop(request_id, None)
        if life is None:
            return
        self._add(life)
        output = life.request.num_output_tokens
        self._first_arrival_ns = min(self._first_arrival_ns, life.arrival_ns)
        self._last_end_ns = max(self._last_end_ns, now_ns)
        if life.session is not None:
            begin, end = self._sessions.get(life.session, (life.arrival_ns, now_ns))
            self._sessions[life.session] = (min(begin, life.arrival_ns), max(end, now_ns))
        if reason in _WHOLE:
            self._request_ms.append((now_ns - life.arrival_ns) / 1e6)
            if output > 1 and life.first_ns is not None:
                self._tpot_ms.append((now_ns - life.first_ns) / 1e6 / (output - 1))

    def _add(self, life: _Life) -> None:
        request = life.request
        untold = request.prefill_stats  # of a request that ended before its first output
        if untold is None:
            self._hit_tokens += life.hit_tokens
        elif request.num_computed_tokens or request.num_preemptions:  # a lookup alone is no hit: blocks may be refused
            self._hit_tokens += untold.num_cached_tokens
        self._output_tokens += life.request.num_output_tokens
        self._preemptions += life.request.num_preemptions

    def outcome(self, steps: int) -> Outcome:
        """The figures so far. `steps` is how many were scheduled."""
        for life in self._lives.values():
            self._add(life)
        jobs = [(end - begin) / 1e6 for begin, end in self._sessions.values()]
        values = {"ttft": self._ttft_ms, "tpot": self._tpot_ms, "request": self._request_ms, "job": jobs}
        span = max(self._last_end_ns - self._first_arrival_ns, 0)
        return Outcome(
            steps,
            self._hit_tokens,
            self._prompt_tokens,
            self._evictions,
            self._preemptions,
            self._output_tokens,
            span / 1e9,
            {key: summary(each) for key, each in values.items() if len(each)},
        )
