"""Replays that are repeated with something else drawn, so that their figures get intervals.

`over_seeds` draws jobs with replacement; the arrival process stays as it is. `over_draws` keeps the jobs and draws what
varies by itself from run to run: times of steps. `kvtrace replay --seeds` and `--draws` call them; anything that
replays what-ifs can.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.loops import clients_of
from kvtrace.lab.replay.recording import RecordedRequest, Recording
from kvtrace.queries.statistics import FEWEST_UNITS, Interval, replicate_difference, replicate_interval

if TYPE_CHECKING:
    from kvtrace.lab.replay.check import Outcome
    from kvtrace.lab.replay.run import Job

_MIX = 0x9E37_79B9_7F4A_7C15
_ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Spread:
    """A figure over seeds or draws.

    Attributes:
        mean: Its mean.
        interval: 95% interval of the figure; None below `FEWEST_UNITS` of them.
        change: (figure - base's figure) / base's figure; for shares, the difference. Over seeds the mean of each
            seed's, over draws that of the means.
        change_interval: 95% interval of that. Over draws it is that of two single runs, one of each setting: two runs
            have no step times in common, so draws are no pairs.
    """

    mean: float
    interval: Interval | None
    change: float | None = None
    change_interval: Interval | None = None

    def to_json(self) -> dict[str, Any]:
        """The spread as JSON."""
        return {
            "mean": self.mean,
            "interval": _ends(self.interval),
            "change": self.change,
            "change_interval": _ends(self.change_interval),
        }


def _ends(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def jobs_of(recording: Recording) -> list[list[RecordedRequest]]:
    """The requests of each session, in their order; a request without one is a job of its own. By arrival."""
    found: dict[Any, list[RecordedRequest]] = {}
    for request in recording.requests:
        found.setdefault(request.session or (request.number,), []).append(request)
    return sorted(found.values(), key=lambda job: min(request.arrival_ns for request in job))


def resampled(recording: Recording, seed: int) -> Recording:
    """As many jobs, drawn with replacement. Each comes when the job arrived whose place it takes.

    A job that is drawn again shares with others what they shared. What only it had is not the first one's: these hashes
    are made unique.
    """
    jobs = jobs_of(recording)
    holders = Counter(block for job in jobs for block in {h for request in job for h in request.chain.values()})
    drawn = random.Random(seed).choices(range(len(jobs)), k=len(jobs))
    starts = [min(request.arrival_ns for request in job) for job in jobs]
    copies: Counter[int] = Counter()
    requests: list[RecordedRequest] = []
    for place, number in enumerate(drawn):
        copy, shift = copies[number], starts[place] - starts[number]
        copies[number] += 1
        chains: dict[int, dict[int, int]] = {}
        for request in jobs[number]:
            if id(request.chain) not in chains:
                chains[id(request.chain)] = _own(request.chain, holders, copy)
            requests.append(_moved(request, len(requests) + 1, place, shift, chains[id(request.chain)]))
    requests.sort(key=lambda request: (request.queued_ns, request.number))
    places = [(len(each.requests), each.at_once, each.gaps_ns, each.after_ns) for each in clients_of(recording)]
    return replace(recording, requests=requests, resets_ns=[], places=places)


def _own(chain: dict[int, int], holders: Counter[int], copy: int) -> dict[int, int]:
    if not copy:
        return chain
    return {at: block if holders[block] > 1 else (block ^ copy * _MIX) & _ALL_BITS for at, block in chain.items()}


def _moved(request: RecordedRequest, number: int, place: int, shift: int, chain: dict[int, int]) -> RecordedRequest:
    return replace(
        request,
        number=number,
        internal_id=f"{request.internal_id}~{place}",
        external_id=request.external_id and f"{request.external_id}~{place}",
        session=request.session and f"{request.session}~{place}",
        arrival_ns=request.arrival_ns + shift,
        queued_ns=request.queued_ns + shift,
        finished_ns=request.finished_ns and request.finished_ns + shift,
        chain=chain,
    )


def figures(outcome: Outcome) -> dict[str, float]:
    """Figures of an outcome by the names that `check.errors` gives their errors."""
    found = {"hit_share": outcome.hit_share, "tokens_per_s": outcome.tokens_per_s}
    found |= {name: float(getattr(outcome, name)) for name in ("steps", "evictions", "preemptions")}
    for key, values in outcome.latency_ms.items():
        for name, value in zip(("mean", "p50", "p90", "p99"), values, strict=True):
            found[f"{key}_{name}"] = value
    return found


def over_seeds(recording: Recording, jobs: Sequence[Job], seeds: int, at_once: int = 1) -> dict[str, dict[str, Spread]]:
    """Replay resamples of a recording's jobs; by name of each job, the spread of its figures.

    Args:
        recording: What is resampled.
        jobs: Replays with predicted times; the first is the base that changes are told of, seed by seed.
        seeds: How many resamples, seeded 1 to this.
        at_once: How many replays run side by side.

    Raises:
        KvtraceError: There are too few jobs or seeds for an interval, or a replay failed.
    """
    from kvtrace.lab.replay.check import outcome
    from kvtrace.lab.replay.run import replay_all

    known = len(jobs_of(recording))
    if min(seeds, known) < FEWEST_UNITS:
        raise KvtraceError(f"{seeds} seeds of {known} jobs: an interval needs at least {FEWEST_UNITS} of both", 2)
    values: dict[str, list[dict[str, float]]] = {job.name: [] for job in jobs}
    with TemporaryDirectory(prefix="kvtrace-seeds-") as folder:
        seeded = [
            replace(job, seed=seed, target=Path(folder, f"{number}-{seed}.duckdb"))
            for seed in range(1, seeds + 1)
            for number, job in enumerate(jobs)
        ]
        for job, done in zip(seeded, replay_all(recording, seeded, at_once), strict=True):
            assert done.trace is not None
            values[job.name].append(figures(outcome(done.trace)))
            done.trace.unlink(missing_ok=True)
    return _all_spreads(values, _change_by_seed)


def over_draws(recording: Recording, jobs: Sequence[Job], draws: int, at_once: int = 1) -> dict[str, dict[str, Spread]]:
    """Replay with step times as other runs of the same might have them; by name of each job, the spread of its figures.

    Which prefix is evicted first hangs on milliseconds where memory is short, so that two runs of the same differ. A
    prediction without its spread is one draw.

    Args:
        recording: What is replayed.
        jobs: Replays with predicted times; the first is the base that changes are told of.
        draws: How many.
        at_once: How many replays run side by side.

    Raises:
        KvtraceError: There are too few draws for an interval, or a replay failed.
    """
    from kvtrace.lab.replay.run import replay_all

    check_draws(draws)
    drawn = [drawn_job(job, number, draws) for number in range(draws) for job in jobs]
    values: dict[str, list[dict[str, float]]] = {job.name: [] for job in jobs}
    for job, done in zip(drawn, replay_all(recording, drawn, at_once), strict=True):
        values[job.name].append(figures(done.outcome))
    return _all_spreads(values, _change_of_runs)


def check_draws(draws: int) -> None:
    """Refuse too few draws.

    Raises:
        KvtraceError: They give no interval.
    """
    if draws < FEWEST_UNITS:
        raise KvtraceError(f"{draws} draws: an interval needs at least {FEWEST_UNITS}", 2)


def asked_draws(draws: int) -> int:
    """Return the number of draws to judge predictions by: 0 or 1 is none, for a prediction is one draw.

    Raises:
        KvtraceError: They are too few.
    """
    if draws <= 1:
        return 0
    check_draws(draws)
    return draws


def drawn_job(job: Job, number: int, of: int) -> Job:
    """A replay with predicted times as one of its draws, of which only figures are kept."""
    assert job.model is not None  # recorded times are what they are
    return replace(job, model=job.model.draw(number, of), figures_only=True)


_Change = tuple[float | None, Interval | None]
"""A change against the base, and its 95% interval."""


def _all_spreads(
    values: dict[str, list[dict[str, float]]], change: Callable[[str, list[float], list[float]], _Change]
) -> dict[str, dict[str, Spread]]:
    base = next(iter(values.values()))
    return {name: _spreads(each, base if each is not base else None, change) for name, each in values.items()}


def _spreads(
    values: list[dict[str, float]],
    base: list[dict[str, float]] | None,
    change: Callable[[str, list[float], list[float]], _Change],
) -> dict[str, Spread]:
    found = {}
    for name in values[0]:
        series = [each[name] for each in values if name in each]
        mean, interval = sum(series) / len(series), replicate_interval(series, least=0.0)
        if base is None:
            found[name] = Spread(mean, interval)
            continue
        pairs = [(b[name], v[name]) for b, v in zip(base, values, strict=True) if name in b and name in v]
        found[name] = Spread(mean, interval, *change(name, [b for b, _ in pairs], [v for _, v in pairs]))
    return found


def _change_by_seed(name: str, base: list[float], values: list[float]) -> _Change:
    """The mean change from seed to seed: both replays of a seed have the same jobs."""
    pairs = zip(base, values, strict=True)
    changes = [v - b if name == "hit_share" else v / b - 1 for b, v in pairs if b or name == "hit_share"]
    return (sum(changes) / len(changes), replicate_interval(changes)) if changes else (None, None)


def _change_of_runs(name: str, base: list[float], values: list[float]) -> _Change:
    """The change from a run of the base to a run of this, which have no step times in common."""
    if not base:
        return None, None
    found = replicate_difference(base, values)
    scale = 1.0 if name == "hit_share" else found.base
    if not scale:
        return None, None
    span = found.interval
    return found.value / scale, span and replace(span, low=span.low / scale, high=span.high / scale)


def lines(spreads: dict[str, dict[str, Spread]], over: str) -> list[str]:
    """Spreads as lines of text; `over` says of what."""
    base, *others = spreads
    found = [f"{over}: mean, 95% interval" + (f"; change against {base}, 95% interval" if others else "")]
    shown = ("hit_share", "tokens_per_s", "ttft_mean", "ttft_p50", "request_mean", "job_mean")
    for job, by_figure in spreads.items():
        for name in shown:
            if (spread := by_figure.get(name)) is None:
                continue
            scale, unit = (100, " %") if name == "hit_share" else (1, "/s" if name == "tokens_per_s" else " ms")
            text = f"{job:12} {name:13} {_number(spread.mean, spread.interval, scale)}{unit}"
            if spread.change is not None:
                text += f"   {_change(spread, name)}"
            found.append(text)
    return found


def _number(mean: float, interval: Interval | None, scale: float) -> str:
    text = f"{mean * scale:>10,.1f}"
    return f"{text} ({interval.low * scale:,.1f} to {interval.high * scale:,.1f})" if interval else text


def _change(spread: Spread, name: str) -> str:
    assert spread.change is not None
    unit = " pp" if name == "hit_share" else "%"
    text = f"{spread.change * 100:+.1f}{unit}"
    span = spread.change_interval
    return f"{text} ({span.low * 100:+.1f} to {span.high * 100:+.1f})" if span else text
