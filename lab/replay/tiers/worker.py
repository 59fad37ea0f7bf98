"""The emulated worker that a replay's settings need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.drive import HostTime, Worker
from kvtrace.lab.replay.loops import predecessors
from kvtrace.lab.replay.policies import prefetch_policy
from kvtrace.lab.replay.recording import Recording
from kvtrace.lab.replay.settings import ASSUMED, ASSUMED_TIER_LOOKUP_US, Settings
from kvtrace.lab.replay.tiers.copies import OffloadingCopies, SimpleCpuCopies
from kvtrace.lab.replay.tiers.prefetch import Prefetcher
from kvtrace.lab.replay.tiers.rows import CopyRows
from kvtrace.lab.replay.timing import TimeModel, Work


def emulated_worker(
    scheduler: Any,
    recording: Recording,
    settings: Settings,
    model: TimeModel | None,
    clock: VirtualClock,
    rows: CopyRows | None = None,
) -> Worker | None:
    """Make what `Drive` tells of each step's launch and results; None for a scheduler without a connector.

    Args:
        scheduler: vLLM's, built with `settings`.
        settings: With the connector, the tier and the prefetch policy.
        recording: With the bytes of a block, and the gaps between a session's turns.
        model: Time model of the replay, for scores; None with recorded times.
        clock: The replay's.
        rows: Writes copies into the trace, where there is one.
    """
    engine = recording.engine
    block_bytes = (engine.block_bytes or 0) * settings.block_size // engine.block_size
    reported = recording.transfers if model is None else None
    begin_ns = int(settings.copy_begin_us * 1000)
    made: Worker
    if settings.tier:
        made = tier = scheduler.connector
        tier.set_up(settings.tier, block_bytes, begin_ns, clock, rows)
        if settings.prefetch:
            policy = prefetch_policy(settings.prefetch.get("name", "none"), settings.prefetch)
            tools = any(request.tool for request in recording.requests)
            tier.prefetcher = Prefetcher(tier, policy, _gaps_s(recording), _prefill_s(model), tools_told=tools)
    elif settings.cpu_bytes_to_use:
        kind = SimpleCpuCopies if settings.connector == "simple-cpu-offload" else OffloadingCopies
        made = kind(block_bytes, settings.load_gb_per_s, settings.store_gb_per_s, begin_ns, clock, reported, rows)
    else:
        return None
    lookup_us = settings.connector_lookup_us
    if lookup_us is None:
        lookup_us = ASSUMED_TIER_LOOKUP_US if settings.tier else ASSUMED[settings.connector].connector_lookup_us
    once = settings.tier.get("name") == "lmcache"
    return _Asked(scheduler.connector, made, int(lookup_us * 1000), settings.block_size, once=once)


class _Asked:
    """A worker, with the time that a step's questions to the connector took before it.

    Args:
        connector: Is asked.
        worker: Its own.
        lookup_ns: Time for a block of the request.
        block_size: Tokens of a block.
        once: Only the first question about a request takes time, as of LMCache, which keeps its answers.
    """

    def __init__(self, connector: Any, worker: Worker, lookup_ns: int, block_size: int, *, once: bool) -> None:
        self._worker, self._lookup_ns, self._block_size, self._blocks = worker, lookup_ns, block_size, 0
        self._once, self._known = once, WeakSet[Any]()  # requests that live
        self._ask = connector.get_num_new_matched_tokens
        connector.get_num_new_matched_tokens = self._counted

    def _counted(self, request: Any, *arguments: Any) -> Any:
        if request not in self._known:
            self._blocks += request.num_tokens // self._block_size
        if self._once:
            self._known.add(request)
        return self._ask(request, *arguments)

    def begin(self, output: Any) -> HostTime:
        asked_ns, self._blocks = self._blocks * self._lookup_ns, 0
        host = self._worker.begin(output)
        return host._replace(before_ns=host.before_ns + asked_ns)

    def __call__(self, output: Any, step: int = 0) -> Any:
        return self._worker(output, step)


def _gaps_s(recording: Recording) -> dict[str, float]:
    """Recorded time from a request's end to its session's next turn, s, by internal id."""
    by_number = recording.by_number
    return {
        before.internal_id: (by_number[number].arrival_ns - before.finished_ns) / 1e9
        for number, before in predecessors(recording).items()
        if before.finished_ns is not None
    }


def _prefill_s(model: TimeModel | None) -> Callable[[int], float]:
    """Time that a step takes longer with so many tokens to compute, s."""
    if model is None:
        return lambda tokens: float("inf") if tokens else 0.0
    base = model.step_ns(Work(0, 1, 0, 1))
    return lambda tokens: (model.step_ns(Work(0, tokens, 0, tokens * (tokens + 1) // 2)) - base) / 1e9
