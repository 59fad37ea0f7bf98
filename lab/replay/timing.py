"""Predicts how long a step takes: a fit of a recording's own steps by what they computed, judged on held-out steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.recording import StepTime

_FEWEST_STEPS = 20
_HELD_OUT_RUN = 10
"""Steps are held out in runs of so many, every third run, so that the noise of neighbours does not leak."""

_MOST_COPYING_NS = 1_000_000
"""Time with a KV connector's copies from which on a step is left out of the fit. Replays add what copies take."""

COPIES_TAKEN_OFF = (
    "prefills are only known from steps in which a KV connector copied, too; predicted ones may be far too short or "
    "long: --time-from a trace of the same engine without the connector tells more"
)
"""Said of predictions by a model that is fitted so."""

_SHORTEST_SHARE = 4
"""One of so many steps with prefill that an idle engine began with is looked at for being bound by its launch."""

_MEAN_OF = 4
"""So many steps with prefill that follow one another are taken for one of their mean."""

_ALIKE, _UNLIKE = 2, 4
"""They are, if the longest takes less than so many times the shortest, with at least so many times its tokens."""

_LEAST_WAIT_NS = 1_000_000
"""A worker that waited for less for a step's work may have come when that had ended."""

_ROUNDS = 6
"""Most repetitions of a fit that only takes steps it predicts to be longer than a launch."""


_DECODING = (1, 3)
"""The places of coefficients that decode steps tell: of decode tokens and of their context."""

_MOST_BESIDE = 2.0
"""Steps with prefill have those at least, and at most so many times them. Where few have long contexts beside them, a
fit of them alone finds anything from nothing to ten times as much; fits of loaded engines on GPUs found 1.3 to 2.2."""


class Work(NamedTuple):
    """Work of a step: counts of tokens, and their contexts (a token behind n others adds n + 1).

    Draft tokens count as decode tokens; a request's context counts once.
    """

    decode_tokens: int
    prefill_tokens: int
    decode_context: int
    prefill_context: int


class Residual(NamedTuple):
    """How well the fit predicts held-out steps of one kind. Shares are of the measured time."""

    kind: str
    steps: int
    median_error: float
    total_error: float


@dataclass
class TimeModel:
    """Step times, ns. Coefficients: per step, decode token, prefill token, decode context and prefill context.

    Attributes:
        decode: For steps without prefill.
        mixed: For steps with prefill.
        overhead_ns: From a step's results to the next step's start, while there is work.
        launch_ns: Time that the host takes to launch a step with prefill, where steps are scheduled ahead of results.
            The results of the step before it are taken in after it.
        least_ns: Time that such a step takes at least, from its start: its launch, and what the device is behind.
        launches_ns: Recorded launch times in their order; their mean is `launch_ns`. Launching is host work that varies
            by itself, with long spells of slow launches, so that a median delay is not that of a mean launch.
        paces: Recorded over predicted times of steps in their order, where no launches were recorded; outliers are 1.
        varied: Steps take a pace each, in turn, instead of the predicted time.
        residuals: On steps that the fit did not see.
        stalls: Share of the measured time that outliers took beyond what the model says. Replays leave it out.
        copies_taken_off: Prefills are only known from steps that copied too, with what copies took taken off.
    """

    decode: list[float]
    mixed: list[float]
    overhead_ns: int
    residuals: list[Residual]
    stalls: float = 0.0
    copies_taken_off: bool = False
    launch_ns: int = 0
    least_ns: int = 0
    launches_ns: list[int] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)
    varied: bool = False
    _steps: int = field(default=0, init=False, repr=False, compare=False)

    def draw(self, number: int, of: int) -> TimeModel:
        """The times of another run like the recorded one: what varies by itself begins elsewhere in its recorded order.

        That is launches of steps with prefill or, without asynchronous scheduling, how far steps are off their
        predicted times.

        Args:
            number: Which draw, from 0 on. With launches, 0 is the model itself.
            of: How many there are; their beginnings are spread evenly.
        """
        launches, paces = (_from(values, number * len(values) // of) for values in (self.launches_ns, self.paces))
        return replace(self, launches_ns=launches, paces=paces, varied=not launches and bool(paces))

    def launch(self, number: int) -> int:
        """Predicted time to launch the given step with prefill of a run, counted from 0, ns."""
        return self.launches_ns[number % len(self.launches_ns)] if self.launches_ns else self.launch_ns

    def end_ns(self, start_ns: int, free_ns: int, work: Work, launch_ns: int | None = None) -> int:
        """Predicted moment of a step's results.

        Args:
            start_ns: When the step is scheduled.
            free_ns: When the step before it ends on the device.
            work: The step's work.
            launch_ns: Time to launch it; the mean unless given.
        """
        earliest = start_ns
        if work.prefill_tokens:
            earliest += self.least_ns + (0 if launch_ns is None else launch_ns - self.launch_ns)
        takes_ns = self.step_ns(work)
        if self.varied:
            takes_ns = int(takes_ns * self.paces[self._steps % len(self.paces)])
            self._steps += 1
        return max(earliest, max(start_ns, free_ns) + takes_ns)

    def step_ns(self, work: Work) -> int:
        """Predicted time from a step's start to its results."""
        coefficients = self.mixed if work.prefill_tokens else self.decode
        value = coefficients[0]
        for coefficient, amount in zip(coefficients[1:], work, strict=True):
            value += coefficient * amount
        return max(int(value), 1000)

    def to_json(self) -> dict[str, Any]:
        """The model as JSON."""
        told = {key: value for key, value in asdict(self).items() if key not in ("paces", "varied", "_steps")}
        return {**told, "residuals": [each._asdict() for each in self.residuals]}


def _from(values: list[Any], first: int) -> list[Any]:
    """The values from one on, then those before it."""
    return values[first:] + values[:first]


def fit(steps: Sequence[StepTime]) -> TimeModel:
    """Fit a recording's steps.

    Raises:
        KvtraceError: It has too few steps.
    """
    known = [step for step in steps if step.update_ns is not None and step.end_ns is not None]
    samples, overhead_ns, launches_ns = _samples(known, copying=False)
    copying = sum(sample.work.prefill_tokens > 0 for sample in samples) < _FEWEST_STEPS
    if copying:  # where each prompt is loaded or stored, no other steps are left
        samples, overhead_ns, launches_ns = _samples(known, copying=True)
    launch_ns = int(np.mean(launches_ns)) if launches_ns else 0
    if len(samples) < _FEWEST_STEPS:
        raise KvtraceError(f"{len(samples)} steps are too few to fit step times on; {_FEWEST_STEPS} are needed", 2)
    work = np.array([sample.work for sample in samples], dtype=float)
    time = np.array([sample.spent_ns for sample in samples], dtype=float)
    held_out = (np.arange(len(time)) // _HELD_OUT_RUN) % 3 == 2
    if held_out.all() or not held_out.any():
        held_out[:] = False
    prefills = work[:, 1] > 0
    shortest_ns = _shortest(samples, launch_ns)
    residuals: list[Residual] = []
    fitted: list[list[float]] = []
    bounds = trained_bounds = _free(work)
    predicted, paces = np.zeros(len(time)), np.ones(len(time))
    for kind, chosen in (("decode", ~prefills), ("with prefill", prefills)):
        least_ns = shortest_ns if kind == "with prefill" else 0
        seen, unseen = chosen & ~held_out, chosen & held_out
        trained, _ = _above(least_ns, work[seen], time[seen], work[~held_out], time[~held_out], trained_bounds)
        residuals.append(_residual(kind, work[unseen], time[unseen], trained, least_ns))
        coefficients, limit = _above(least_ns, work[chosen], time[chosen], work, time, bounds)
        if kind == "decode":
            bounds, trained_bounds = _beside(coefficients), _beside(trained)
        fitted.append([float(each) for each in coefficients])
        of_kind = np.maximum(np.column_stack([np.ones(int(chosen.sum())), work[chosen]]) @ coefficients, least_ns)
        outlier = time[chosen] - of_kind > limit
        predicted[chosen] = np.where(outlier, of_kind, time[chosen])
        paces[chosen] = np.where(outlier, 1, time[chosen] / np.maximum(of_kind, 1))
    return TimeModel(
        decode=fitted[0],
        mixed=fitted[1],
        overhead_ns=overhead_ns,
        residuals=[each for each in residuals if each.steps],
        stalls=float(1 - predicted.sum() / time.sum()),
        copies_taken_off=copying and any(step.copying_ns >= _MOST_COPYING_NS for step in known if step.prefill_tokens),
        launch_ns=launch_ns,
        least_ns=shortest_ns,
        launches_ns=launches_ns,
        paces=[] if launches_ns else [float(each) for each in paces],
    )


class _Sample(NamedTuple):
    """A step's work, and the times to its results from when it could begin, and from its start."""

    work: Work
    spent_ns: int
    since_start_ns: int


def _shortest(samples: Sequence[_Sample], launch_ns: int) -> int:
    """Time of a step with prefill that is bound by its launch."""
    prefills = [sample for sample in samples if sample.work.prefill_tokens]
    if not launch_ns or not prefills:
        return 0
    work = np.array([sample.work for sample in prefills], dtype=float)
    time = np.array([sample.spent_ns for sample in prefills], dtype=float)
    since_start = np.array([sample.since_start_ns for sample in prefills], dtype=float)
    found, _ = _above(launch_ns, work, time, work, time, _free(work))
    bound = np.column_stack([np.ones(len(work)), work]) @ found < launch_ns
    return max(launch_ns, int(since_start[bound].mean())) if bound.any() else launch_ns


def _samples(steps: Sequence[StepTime], *, copying: bool) -> tuple[list[_Sample], int, list[int]]:
    """Steps to fit on; the overhead between steps, and launch times of steps with prefill, in ns.

    Args:
        steps: The recording's.
        copying: Take those whose worker was busy with copies for long, too.
    """
    pairs = list(itertools.pairwise(steps))
    ahead = sum(after.start_ns < (before.update_ns or 0) for before, after in pairs) * 2 > len(pairs)
    most_ns = _MOST_COPYING_NS if not copying else 1 << 62
    return _ahead(steps, most_ns) if ahead else _in_turn(steps, most_ns)


def _in_turn(steps: Sequence[StepTime], most_copying_ns: int) -> tuple[list[_Sample], int, list[int]]:
    """Samples where a step is scheduled when the one before it has ended."""
    samples, gaps = [], []
    before_update = before_end = 0
    for step in steps:
        update_ns, end_ns = step.update_ns or 0, step.end_ns or 0
        if step.decode_tokens + step.prefill_tokens > 0 and step.copying_ns < most_copying_ns:
            spent_ns = max(update_ns - max(step.start_ns, before_update) - step.copying_ns - step.asking_ns, 0)
            samples.append(_Sample(_work_of(step), spent_ns, update_ns - step.start_ns))
            if before_end and step.start_ns > before_end:
                gaps.append(step.start_ns - before_update)
        before_update, before_end = update_ns, end_ns
    return samples, int(np.median(gaps)) if gaps else 0, []


def _ahead(steps: Sequence[StepTime], most_copying_ns: int) -> tuple[list[_Sample], int, list[int]]:
    """Samples where a step is scheduled while the one before it runs.

    The engine takes in a step's results after it has launched the next step. Launching a step with prefill keeps the
    host busy for long, so the results before it are late: such a step tells the launch time and not its own. A step
    with prefill between two steps without tells its own time, from the predicted end of the one before it. So does one
    that an idle engine began with, its launch included: these are taken where there are too few others. So are then
    steps with prefill that follow one another, as in a burst: they take their own time or the next one's launch,
    whichever is longer, and a fit of steps longer than a launch tells the two apart. Their results are noticed now
    early, now late, so that means of some are taken: of their work, too. Where a connector's worker waited for a step's
    own work, that tells its end.
    """
    updates = [step.update_ns or 0 for step in steps]
    begins = [max(step.start_ns, before) for step, before in zip(steps, [0, *updates], strict=False)]
    late = [after.prefill_tokens and after.start_ns < now for after, now in zip(steps[1:], updates, strict=False)]
    copies = [max(step.copying_ns, after.copying_ns) >= most_copying_ns for step, after in itertools.pairwise(steps)]
    plain = [step.prefill_tokens == 0 and step.decode_tokens > 0 for step in steps]
    decodes = [n for n, is_late in enumerate(late) if plain[n] and not is_late and not copies[n]]
    usual_ns = int(np.median([updates[n] - begins[n] for n in decodes])) if decodes else 0
    told = {n for n, step in enumerate(steps) if step.prefill_tokens and step.waited_ns >= _LEAST_WAIT_NS}
    timely = [n for n, is_late in enumerate(late) if not is_late and not copies[n] and n not in told]
    follow = {n for n in timely if steps[n].prefill_tokens and (not n or plain[n - 1])}
    first = {n for n in timely if steps[n].prefill_tokens and n and steps[n].start_ns >= updates[n - 1]}
    behind: set[int] = set()
    if len(follow) + len(told) < _FEWEST_STEPS:
        follow |= first
    if len(follow) + len(told) < _FEWEST_STEPS:
        after = [n for n in range(1, len(copies)) if steps[n - 1].prefill_tokens and not copies[n]]
        behind = {n for n in after if steps[n].prefill_tokens} - follow
    samples: dict[int, _Sample] = {}
    for number in sorted(follow | behind | told | {n for n in timely if plain[n]}):
        step, begin = steps[number], begins[number]
        if step.prefill_tokens and number and not steps[number - 1].prefill_tokens:
            begin = max(step.start_ns, min(begins[number - 1] + usual_ns, updates[number - 1]))
        elif number in told:  # the step before had ended when this one was scheduled
            begin = step.start_ns
        if number in told:
            worked_ns = step.worked_ns - step.asking_ns
            samples[number] = _Sample(_work_of(step), max(worked_ns - (begin - step.start_ns), 0), worked_ns)
            continue
        took_ns = updates[number] - step.copying_ns
        if begin == step.start_ns:  # else the device was busy meanwhile
            took_ns -= step.asking_ns
        since_start_ns = updates[number] - step.start_ns - step.copying_ns - step.asking_ns
        samples[number] = _Sample(_work_of(step), max(took_ns - begin, 0), since_start_ns)
    means = {n: _mean([samples[m] for m in _run_to(n, behind)]) for n in behind}
    launches = [
        updates[n] - steps[n + 1].start_ns - steps[n + 1].copying_ns - steps[n + 1].waited_ns - steps[n + 1].asking_ns
        for n, is_late in enumerate(late)
        if is_late and plain[n] and not copies[n]
    ]
    if len(told) > len(launches):
        launches = [steps[n].worked_ns - steps[n].waited_ns - steps[n].asking_ns for n in sorted(told)]
    if not launches:
        launches = _launch_bound([(updates[n] - steps[n].start_ns, steps[n].prefill_tokens) for n in first])
    gaps = [steps[n].start_ns - updates[n - 2] for n in range(2, len(steps)) if steps[n].start_ns < updates[n - 1]]
    overhead_ns = max(int(np.median(gaps)), 0) if gaps else 0
    return list((samples | means).values()), overhead_ns, launches


def _run_to(number: int, members: set[int]) -> list[int]:
    """The last of the members that follow each other up to one, a few of them."""
    return list(itertools.takewhile(members.__contains__, range(number, number - _MEAN_OF, -1)))


def _mean(samples: Sequence[_Sample]) -> _Sample:
    """A sample of mean work, which takes the mean time as far as time is linear in work."""
    spent, since_start, *work = (
        round(sum(values) / len(samples))
        for values in zip(*((s.spent_ns, s.since_start_ns, *s.work) for s in samples), strict=True)
    )
    return _Sample(Work(*work), spent, since_start)


def _launch_bound(first: list[tuple[int, int]]) -> list[int]:
    """Times of the shortest steps, if launching them took all of it: their times are alike, and their tokens are not.

    Args:
        first: Time and prefill tokens of steps that an idle engine began with.
    """
    shortest = sorted(first)[: len(first) // _SHORTEST_SHARE]
    times, tokens = [time for time, _ in shortest], [tokens for _, tokens in shortest]
    alike = bool(shortest) and max(times) < _ALIKE * min(times) and max(tokens) >= _UNLIKE * min(tokens)
    return times if alike else []


def _work_of(step: StepTime) -> Work:
    return Work(step.decode_tokens, step.prefill_tokens, step.decode_context, step.prefill_context)


class _Bounds(NamedTuple):
    """The least and the most that coefficients may be, the one of a step first."""

    least: Any
    most: Any


def _free(work: Any) -> _Bounds:
    return _Bounds(np.zeros(work.shape[1] + 1), np.full(work.shape[1] + 1, np.inf))


def _beside(decode: Any) -> _Bounds:
    """Bounds for steps with prefill, by the coefficients of decode steps."""
    least, most = np.zeros(len(decode)), np.full(len(decode), np.inf)
    for place in _DECODING:
        least[place], most[place] = decode[place], _MOST_BESIDE * decode[place]
    return _Bounds(least, most)


def _above(least_ns: int, work: Any, time: Any, all_work: Any, all_time: Any, bounds: _Bounds) -> tuple[Any, float]:
    """Coefficients of steps that take at least `least_ns`: only those that are predicted to take longer are fitted."""
    found, limit = _coefficients(work, time, all_work, all_time, bounds)
    for _ in range(_ROUNDS if least_ns else 0):
        longer = np.column_stack([np.ones(len(work)), work]) @ found > least_ns
        if longer.sum() < _FEWEST_STEPS or longer.all():
            break
        found, limit = _coefficients(work[longer], time[longer], all_work, all_time, bounds)
    return found, limit


def _coefficients(work: Any, time: Any, all_work: Any, all_time: Any, bounds: _Bounds) -> tuple[Any, float]:
    """Coefficients within bounds, and the error from which on a step is an outlier and is left out of the fit.

    Steps of all kinds are used where one kind has too few. Its own few are then held against each other, as they would
    all be outliers beside many of the other kind.
    """
    own = np.zeros(len(time), dtype=bool)
    if len(time) < _FEWEST_STEPS:
        own = (all_work[:, 1] > 0) == bool(len(work) and work[0, 1] > 0)
        work, time = all_work, all_time
    design = np.column_stack([np.ones(len(time)), work])
    kept, own_limit = np.ones(len(time), dtype=bool), float("inf")
    for _ in range(12):
        found = _bounded(design[kept], time[kept], bounds)
        error = np.abs(time - design @ found)
        limit = _limit(error)
        own_limit = max(limit, _limit(error[own])) if own.any() else limit
        inside = error <= np.where(own, own_limit, limit)
        if (inside == kept).all():
            break
        kept = inside
    predicted = (design @ found)[kept].sum()
    return found * (time[kept].sum() / predicted if predicted > 0 else 1), own_limit


def _limit(error: Any) -> float:
    return max(6 * 1.4826 * float(np.median(error)), 1.0)


def _bounded(design: Any, time: Any, bounds: _Bounds) -> Any:
    """Coefficients within bounds, by least squares. What comes out beyond one is put there, the rest fitted anew."""
    # relative weights: a short step's error matters as much to its requests as a long one's
    weight = 1 / np.sqrt(np.maximum(time, 1))
    found, used = bounds.least.copy(), np.flatnonzero(design.any(axis=0))
    while used.size:
        beyond = (time - design @ found) * weight
        solved = np.linalg.lstsq(design[:, used] * weight[:, None], beyond, rcond=None)[0]
        above = solved > (bounds.most - bounds.least)[used]
        if (solved < 0).any():
            used = np.delete(used, int(np.argmin(solved * design[:, used].mean(axis=0))))
        elif above.any():
            found[used[above]] = bounds.most[used[above]]
            used = used[~above]
        else:
            found[used] += solved
            break
    return found


def _residual(kind: str, work: Any, time: Any, coefficients: Any, least_ns: int) -> Residual:
    if not len(time):
        return Residual(kind, 0, 0.0, 0.0)
    predicted = np.maximum(np.column_stack([np.ones(len(time)), work]) @ coefficients, least_ns)
    median = float(np.median(np.abs(predicted - time) / np.maximum(time, 1)))
    return Residual(kind, len(time), median, float(predicted.sum() / time.sum() - 1))
