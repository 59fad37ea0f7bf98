"""The emulated worker that a replay's settings need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.drive import predecessors
from kvtrace.lab.replay.policies import prefetch_policy
from kvtrace.lab.replay.recording import Recording
from kvtrace.lab.replay.settings import Settings
from kvtrace.lab.replay.tiers.copies import OffloadingCopies, SimpleCpuCopies
from kvtrace.lab.replay.tiers.prefetch import Prefetcher
from kvtrace.lab.replay.timing import TimeModel, Work


def emulated_worker(
    scheduler: Any, recording: Recording, settings: Settings, model: TimeModel | None, clock: VirtualClock
) -> Callable[[Any, int], Any] | None:
    """Make what `Drive` calls with each step's output and number; None for a scheduler without a connector.

    Args:
        scheduler: vLLM's, built with `settings`.
        settings: With the connector, the tier and the prefetch policy.
        recording: With the bytes of a block, and the gaps between a session's turns.
        model: Time model of the replay, for scores; None with recorded times.
        clock: The replay's.
    """
    engine = recording.engine
    block_bytes = (engine.block_bytes or 0) * settings.block_size // engine.block_size
    reported = recording.transfers if model is None else None
    if settings.tier:
        tier = scheduler.connector
        tier.set_up(settings.tier, block_bytes, clock)
        if settings.prefetch:
            policy = prefetch_policy(settings.prefetch.get("name", "none"), settings.prefetch)
            tier.prefetcher = Prefetcher(tier, policy, _gaps_s(recording), _prefill_s(model))
        made: Callable[[Any, int], Any] = tier
        return made
    if settings.cpu_bytes_to_use:
        kind = SimpleCpuCopies if settings.connector == "simple-cpu-offload" else OffloadingCopies
        return kind(block_bytes, settings.load_gb_per_s, settings.store_gb_per_s, clock, reported)
    return None


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
