"""Predicts how long a step takes: a fit of a recording's own steps by what they computed, judged on held-out steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
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

_FULL = "full"
"""Mode of steps that only decode. One with prefill has it if it looks like these, as of prompts with a token left."""

FEWEST_LAUNCHES = 5
"""So many launches with CUDA graphs, and without, tell the two apart."""

_OUTLIER = 3
"""A launch is left out that took so many times the median, as a process's first one."""

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


@dataclass
class Launches:
    """Times that launching steps with prefill takes the host, ns.

    Attributes:
        each_ns: Recorded launch times in their order. Launching is host work that varies by itself, with long spells of
            slow launches, so that a median delay is not that of a mean launch.
        least_ns: Time that such a step takes at least, from its start: its launch, and what the device is behind.
    """

    each_ns: list[int] = field(default_factory=list)
    least_ns: int = 0

    @cached_property
    def mean_ns(self) -> int:
        """Their mean; 0 if none was recorded."""
        return int(np.mean(self.each_ns)) if self.each_ns else 0


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
        launches: Of steps with prefill, where steps are scheduled ahead of results: the results of the step before are
            taken in after a launch. Without CUDA graphs, if the recording tells them apart.
        graph_launches: The same with CUDA graphs; None if there are none, or `launches` are of all steps.
        graph_tokens: Steps of at most so many tokens are launched with CUDA graphs.
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
    launches: Launches = field(default_factory=Launches)
    graph_launches: Launches | None = None
    graph_tokens: int = 0
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
        launches, graph_launches = (
            each and replace(each, each_ns=_part(each.each_ns, number, of))
            for each in (self.launches, self.graph_launches)
        )
        assert launches is not None
        changed = replace(self, launches=launches, graph_launches=graph_launches, paces=_part(self.paces, number, of))
        return replace(changed, varied=not launches.each_ns and bool(self.paces))

    def with_graphs(self, tokens: int) -> TimeModel:
        """The times of an engine that has CUDA graphs for steps of at most so many tokens."""
        return replace(self, graph_tokens=tokens)

    def launches_of(self, work: Work) -> Launches:
        """Launches like a step's with prefill."""
        has_graph = work.decode_tokens + work.prefill_tokens <= self.graph_tokens
        return self.graph_launches if has_graph and self.graph_launches else self.launches

    def launch(self, number: int, work: Work) -> int:
        """Predicted time to launch a step, ns: the given one with prefill of a run, counted from 0; 0 of others."""
        each_ns = self.launches_of(work).each_ns if work.prefill_tokens else []
        return each_ns[number % len(each_ns)] if each_ns else 0

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
            launches = self.launches_of(work)
            earliest += launches.least_ns + (0 if launch_ns is None else launch_ns - launches.mean_ns)
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
        of_a_replay = ("paces", "varied", "graph_tokens", "_steps")
        told = {key: value for key, value in asdict(self).items() if key not in of_a_replay}
        return {**told, "residuals": [each._asdict() for each in self.residuals]}


def _part(values: list[Any], number: int, of: int) -> list[Any]:
    """The values from one of so many parts on, then those before it."""
    first = number * len(values) // of
    return values[first:] + values[:first]


def fit(steps: Sequence[StepTime]) -> TimeModel:
    """Fit a recording's steps.

    Raises:
        KvtraceError: It has too few steps.
    """
    known = [step for step in steps if step.update_ns is not None and step.end_ns is not None]
    samples, overhead_ns, shown = _samples(known, copying=False)
    copying = sum(sample.work.prefill_tokens > 0 for sample in samples) < _FEWEST_STEPS
    if copying:  # where each prompt is loaded or stored, no other steps are left
        samples, overhead_ns, shown = _samples(known, copying=True)
    if len(samples) < _FEWEST_STEPS:
        raise KvtraceError(f"{len(samples)} steps are too few to fit step times on; {_FEWEST_STEPS} are needed", 2)
    work = np.array([sample.work for sample in samples], dtype=float)
    time = np.array([sample.spent_ns for sample in samples], dtype=float)
    held_out = (np.arange(len(time)) // _HELD_OUT_RUN) % 3 == 2
    if held_out.all() or not held_out.any():
        held_out[:] = False
    prefills = work[:, 1] > 0
    launches = _bound(samples, shown)
    shortest_ns = np.array([launches[sample.graphs].least_ns for sample in samples])
    if shown.told_apart:  # a step that waited for the one before it was launched meanwhile
        shortest_ns = np.maximum(shortest_ns - [sample.waited_ns for sample in samples], 0)
    residuals: list[Residual] = []
    fitted: list[list[float]] = []
    bounds = trained_bounds = _free(work)
    predicted, paces = np.zeros(len(time)), np.ones(len(time))
    for kind, chosen in (("decode", ~prefills), ("with prefill", prefills)):
        least_ns = shortest_ns if kind == "with prefill" else np.zeros(len(time))
        seen, unseen = chosen & ~held_out, chosen & held_out
        trained, _ = _above(least_ns[seen], work[seen], time[seen], work[~held_out], time[~held_out], trained_bounds)
        residuals.append(_residual(kind, work[unseen], time[unseen], trained, least_ns[unseen]))
        coefficients, limit = _above(least_ns[chosen], work[chosen], time[chosen], work, time, bounds)
        if kind == "decode":
            bounds, trained_bounds = _beside(coefficients), _beside(trained)
        fitted.append([float(each) for each in coefficients])
        of_kind = np.maximum(_predicted(work[chosen], coefficients), least_ns[chosen])
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
        launches=launches[False],
        graph_launches=launches[True] if shown.told_apart else None,
        paces=[] if launches[False].each_ns else [float(each) for each in paces],
    )


class _Sample(NamedTuple):
    """A step's work, and the times to its results from when it could begin, and from its start.

    `launched_ns` is what launching its forward passes took, 0 if that is not known, and `graphs` tells if CUDA graphs
    were launched, where launches are told apart by that.
    """

    work: Work
    spent_ns: int
    since_start_ns: int
    launched_ns: int
    graphs: bool

    @property
    def waited_ns(self) -> int:
        """From its start to when it could begin."""
        return self.since_start_ns - self.spent_ns


class _Shown(NamedTuple):
    """Launch times of steps with prefill, ns.

    Attributes:
        by_graphs: With CUDA graphs (true) and without, or of all of them (false).
        beside_ns: What a launch takes beside those of its forward passes; None where these were not recorded.
    """

    by_graphs: dict[bool, list[int]]
    beside_ns: int | None = None

    @property
    def told_apart(self) -> bool:
        """Those with graphs are apart from those without."""
        return bool(self.by_graphs[True])


def _bound(samples: Sequence[_Sample], shown: _Shown) -> dict[bool, Launches]:
    """Launches with CUDA graphs and without, and the times of steps that are bound by them."""
    found = {graphs: Launches(each_ns) for graphs, each_ns in shown.by_graphs.items()}
    mean_ns = {graphs: launches.mean_ns for graphs, launches in found.items()}
    prefills = [sample for sample in samples if sample.work.prefill_tokens]
    behind_ns = 0
    if mean_ns[False] and prefills:
        work = np.array([sample.work for sample in prefills], dtype=float)
        time = np.array([sample.spent_ns for sample in prefills], dtype=float)
        launch_ns = np.array([mean_ns[sample.graphs] for sample in prefills])
        coefficients, _ = _above(launch_ns, work, time, work, time, _free(work))
        predicted = _predicted(work, coefficients)
        since_start = np.array([sample.since_start_ns for sample in prefills], dtype=float)
        if shown.beside_ns is None:
            behind = since_start[predicted < launch_ns] - mean_ns[False]
            behind_ns = int(behind.mean()) if behind.size else 0
        else:  # each step's own launch is known, and that it was not the step before which it waited for
            launched = np.array([sample.launched_ns for sample in prefills])
            bound = (launched > 0) & (predicted + [sample.waited_ns for sample in prefills] < launch_ns)
            behind = (since_start - launched)[bound] - shown.beside_ns
            behind_ns = int(np.median(behind)) if behind.size else 0
    for launches in found.values():
        launches.least_ns = launches.mean_ns + max(behind_ns, 0)
    return found


def _samples(steps: Sequence[StepTime], *, copying: bool) -> tuple[list[_Sample], int, _Shown]:
    """Steps to fit on; the overhead between steps, and launch times of steps with prefill, in ns.

    Args:
        steps: The recording's.
        copying: Take those whose worker was busy with copies for long, too.
    """
    pairs = list(itertools.pairwise(steps))
    ahead = sum(after.start_ns < (before.update_ns or 0) for before, after in pairs) * 2 > len(pairs)
    most_ns = _MOST_COPYING_NS if not copying else 1 << 62
    return _ahead(steps, most_ns) if ahead else _in_turn(steps, most_ns)


def _in_turn(steps: Sequence[StepTime], most_copying_ns: int) -> tuple[list[_Sample], int, _Shown]:
    """Samples where a step is scheduled when the one before it has ended."""
    samples, gaps = [], []
    before_update = before_end = 0
    for step in steps:
        update_ns, end_ns = step.update_ns or 0, step.end_ns or 0
        if step.decode_tokens + step.prefill_tokens > 0 and step.copying_ns < most_copying_ns:
            spent_ns = max(update_ns - max(step.start_ns, before_update) - step.copying_ns - step.asking_ns, 0)
            samples.append(_Sample(work_of(step), spent_ns, update_ns - step.start_ns, 0, graphs=False))
            if before_end and step.start_ns > before_end:
                gaps.append(step.start_ns - before_update)
        before_update, before_end = update_ns, end_ns
    return samples, int(np.median(gaps)) if gaps else 0, _Shown({False: [], True: []})


def _ahead(steps: Sequence[StepTime], most_copying_ns: int) -> tuple[list[_Sample], int, _Shown]:
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
    held_back = [n for n, is_late in enumerate(late) if is_late and plain[n] and not copies[n]]
    shown = _launches(steps, held_back, sorted(first), sorted(told))
    samples: dict[int, _Sample] = {}
    for number in sorted(follow | behind | told | {n for n in timely if plain[n]}):
        step, begin = steps[number], begins[number]
        if step.prefill_tokens and number and not steps[number - 1].prefill_tokens:
            begin = max(step.start_ns, min(begins[number - 1] + usual_ns, updates[number - 1]))
        elif number in told:  # the step before had ended when this one was scheduled
            begin = step.start_ns
        if number in told:
            since_start_ns = step.worked_ns - step.asking_ns
            took_ns = since_start_ns + step.start_ns
        else:
            since_start_ns = updates[number] - step.start_ns - step.copying_ns - step.asking_ns
            took_ns = updates[number] - step.copying_ns
            if begin == step.start_ns:  # else the device was busy meanwhile
                took_ns -= step.asking_ns
        graphs = shown.told_apart and _has_graphs(step)
        samples[number] = _Sample(work_of(step), max(took_ns - begin, 0), since_start_ns, step.launched_ns, graphs)
    means = {n: _mean([samples[m] for m in _run_to(n, behind)]) for n in behind}
    gaps = [steps[n].start_ns - updates[n - 2] for n in range(2, len(steps)) if steps[n].start_ns < updates[n - 1]]
    overhead_ns = max(int(np.median(gaps)), 0) if gaps else 0
    return list((samples | means).values()), overhead_ns, shown


def _run_to(number: int, members: set[int]) -> list[int]:
    """The last of the members that follow each other up to one, a few of them."""
    return list(itertools.takewhile(members.__contains__, range(number, number - _MEAN_OF, -1)))


def _mean(samples: Sequence[_Sample]) -> _Sample:
    """A sample of mean work, which takes the mean time as far as time is linear in work."""
    spent, since_start, launched, *work = (
        round(sum(values) / len(samples))
        for values in zip(*((s.spent_ns, s.since_start_ns, s.launched_ns, *s.work) for s in samples), strict=True)
    )
    return _Sample(Work(*work), spent, since_start, launched, all(sample.graphs for sample in samples))


def _has_graphs(step: StepTime) -> bool:
    """Tell if a step is launched as steps with prefill are that have CUDA graphs: of all but attention."""
    return step.graph_mode == "piecewise"


def _launches(steps: Sequence[StepTime], held_back: list[int], first: list[int], told: list[int]) -> _Shown:
    """Launch times that show: in results held back by one, steps that it takes all of, or workers that waited after it.

    Args:
        steps: The recording's.
        held_back: Places of steps that only decode, whose results are taken in after the launch of the next.
        first: Places of steps with prefill that an idle engine began with.
        told: Places of steps whose worker waited for their own work.
    """
    if len(told) > len(held_back):  # a launch and a copy of the same process hold each other up
        waited = [steps[n].worked_ns - steps[n].waited_ns - steps[n].asking_ns for n in told]
        return _Shown({False: waited, True: []})
    seen = {}
    for n in held_back:
        after = steps[n + 1]
        since_start_ns = (steps[n].update_ns or 0) - after.start_ns
        seen[n + 1] = since_start_ns - after.copying_ns - after.waited_ns - after.asking_ns
    return _by_graphs(steps, seen or _launch_bound(steps, first))


def _by_graphs(steps: Sequence[StepTime], seen: dict[int, int]) -> _Shown:
    """Launch times of steps with prefill: with CUDA graphs and without, where enough of both were recorded.

    Results show only some of them. They tell what launching takes beside forward passes, whose launches are recorded of
    all steps.

    Args:
        steps: The recording's.
        seen: Launch times that results show, by the place of their steps.
    """
    launched: dict[bool, list[int]] = {False: [], True: []}
    for step in steps:
        if step.prefill_tokens and step.launched_ns and step.graph_mode != _FULL:
            launched[_has_graphs(step)].append(step.launched_ns)
    beside = [ns - steps[n].launched_ns for n, ns in seen.items() if steps[n].launched_ns]
    if not beside or min(map(len, launched.values())) < FEWEST_LAUNCHES:
        return _Shown({False: list(seen.values()), True: []})
    beside_ns = int(np.median(beside))
    most_ns = {graphs: _OUTLIER * np.median(each_ns) for graphs, each_ns in launched.items()}
    usual = {graphs: [ns + beside_ns for ns in launched[graphs] if ns < most_ns[graphs]] for graphs in launched}
    return _Shown(usual, beside_ns)


def _launch_bound(steps: Sequence[StepTime], first: list[int]) -> dict[int, int]:
    """The times of the shortest steps, if launching took all of them: these are alike, and their tokens are not.

    Args:
        steps: The recording's.
        first: Places of steps that an idle engine began with.
    """
    found = {n: (steps[n].update_ns or 0) - steps[n].start_ns for n in first}
    shortest = sorted(found, key=lambda n: (found[n], steps[n].prefill_tokens))[: len(first) // _SHORTEST_SHARE]
    times, tokens = [found[n] for n in shortest], [steps[n].prefill_tokens for n in shortest]
    alike = bool(shortest) and max(times) < _ALIKE * min(times) and max(tokens) >= _UNLIKE * min(tokens)
    return dict(zip(shortest, times, strict=True)) if alike else {}


def work_of(step: StepTime) -> Work:
    """The work of a recorded step."""
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


def _above(least_ns: Any, work: Any, time: Any, all_work: Any, all_time: Any, bounds: _Bounds) -> tuple[Any, float]:
    """Coefficients of steps that take at least `least_ns` each: only those predicted to take longer are fitted."""
    found, limit = _coefficients(work, time, all_work, all_time, bounds)
    for _ in range(_ROUNDS if least_ns.any() else 0):
        longer = _predicted(work, found) > least_ns
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
    design = _design(work)
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


def _design(work: Any) -> Any:
    """The work of steps behind a column of ones, which has the time that each takes whatever its work."""
    return np.column_stack([np.ones(len(work)), work])


def _predicted(work: Any, coefficients: Any) -> Any:
    return _design(work) @ coefficients


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


def _residual(kind: str, work: Any, time: Any, coefficients: Any, least_ns: Any) -> Residual:
    if not len(time):
        return Residual(kind, 0, 0.0, 0.0)
    predicted = np.maximum(_predicted(work, coefficients), least_ns)
    median = float(np.median(np.abs(predicted - time) / np.maximum(time, 1)))
    return Residual(kind, len(time), median, float(predicted.sum() / time.sum() - 1))
