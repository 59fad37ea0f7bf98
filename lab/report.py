"""`kvtrace lab report`: what a sweep's cells found, in tables, plots and comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.lab import charts
from kvtrace.lab.accuracy import Beside, Order, beside, order_of
from kvtrace.lab.compare import DRAWN, Change, changes, changes_of_runs, groups, unfair
from kvtrace.lab.kept import RESULTS, write_kept
from kvtrace.lab.matrix import text_of
from kvtrace.lab.results import MADE, MADES, Phase, Result
from kvtrace.lab.sources import load_sweeps
from kvtrace.queries.plotting import draw_bytes
from kvtrace.queries.statistics import RESAMPLES, RULE
from kvtrace.queries.text import rounded
from kvtrace.reports.document import (
    Block,
    Cell,
    Column,
    Document,
    Figure,
    Items,
    Paragraph,
    Picture,
    Section,
    Table,
    Words,
    text_table,
)
from kvtrace.reports.html import page
from kvtrace.reports.markdown import markdown
from kvtrace.reports.report import write_file

COLUMNS: dict[str, tuple[str, str | None]] = {
    "jobs_done": ("jobs", None),
    "makespan_s": ("makespan s", "min"),
    "output_tokens_per_s": ("output tok/s", "max"),
    "requests_per_s": ("requests/s", "max"),
    "turn_ms_mean": ("turn mean ms", "min"),
    "jct_s_mean": ("JCT mean s", "min"),
    "jct_s_p99": ("JCT p99 s", "min"),
    "ttft_ms_mean": ("TTFT mean ms", "min"),
    "ttft_ms_p99": ("TTFT p99 ms", "min"),
    "ttft_later_ms": ("TTFT later turns ms", "min"),
    "tpot_ms_mean": ("TPOT ms", "min"),
    "cached_share": ("cached share", "max"),
    "preemptions": ("preemptions", None),
    "recomputed_tokens": ("recomputed tokens", None),
    "recomputing_s": ("recomputing s", None),
    "evicted_blocks": ("evicted blocks", None),
    "load_bytes": ("loaded bytes", None),
    "wasted_share": ("wasted KV slots, share", "min"),
}
"""The table's figures: their headings, and whether more or less is better."""

_METRICS = {"jct_s": "JCT (s)", "ttft_ms": "TTFT (ms)"}
_FIRST_PASSES = 20


def write_report(sources: Sequence[Path], target: Path) -> list[str]:
    """Write report.md, report.html, their pictures and the results; returns the warnings of the traces' readers.

    Args:
        sources: As of `load_sweeps`.
        target: The folder to write to.

    Raises:
        KvtraceError: There are no results, or the folder cannot be written.
    """
    sweeps = load_sweeps(*sources)
    results = sweeps.results
    try:
        target.mkdir(parents=True, exist_ok=True)
        studies = [_study(study, results, target) for study in sweeps.studies.values()]
        document = Document(
            title=Words("Lab report: " + ", ".join(source.resolve().name for source in sources)),
            lead=Words(
                "Latencies are those that the client saw. A job's completion time (JCT) is from when its first turn "
                "was due to the end of its last."
            ),
            blocks=studies,
            footer=f"Made by kvtrace {__version__}.",
        )
        write_file(target / "report.md", markdown(document).encode())
        write_file(target / "report.html", page(document).encode())
        write_kept(target / RESULTS, list(sweeps.studies.values()), results)
    except OSError as error:
        raise KvtraceError(f"{target} cannot be written: {error.strerror}") from error
    return [warning for result in results for warning in result.warnings]


def _study(study: dict[str, Any], results: Sequence[Result], target: Path) -> Section:
    """The section of a study; its pictures are written beside the report."""
    place = {id_: number for number, id_ in enumerate(study["cells"])}
    ran = [result for result in results if result.name in place]
    predicted = [result for result in ran if result.made == "predicted"]
    values: dict[str, list[str]] = study["axes"]
    if any(MADE in result.cell.axes for result in ran):
        values = {**values, MADE: [made for made in MADES if made in {r.made for r in ran}]}
    mine = sorted(ran, key=lambda result: [_rank(values, axis, text_of(value)) for axis, value in _axes(result)])
    ok = [result for result in mine if result.status == "ok"]
    counted = _counted("ran", [result for result in mine if result.made == "measured"], len(place))
    if predicted:
        counted += " Not measured but predicted by replay: " + _counted("ended", predicted, len(place))
    compare = study["compare"]
    parts = [
        *_predictions(mine, compare),
        *_fairness(mine, compare),
        *_cells(mine, list(values), compare),
        *(_side_by_side(ok, compare, values) if compare else []),
        *_repeats(ok),
        *_draws(ok),
        *(_comparison(ok, compare, values[compare]) if compare else []),
        *(_comparison_of_runs(ok, compare, values[compare]) if compare else []),
        *_passes(ok),
        *_over_time(ok),
        *_turns(ok),
        *_cold_and_warm(ok),
        *_orders(ok),
        *_regression(ok),
        *_plots(study["name"], ok, compare, target),
    ]
    name = study["name"]
    sections = [Section(title, f"{name}-{number}", blocks) for number, (title, blocks) in enumerate(parts)]
    return Section(
        Words(name),
        name,
        [Paragraph([counted]), *sections],
    )


def _counted(did: str, results: Sequence[Result], of: int) -> str:
    ok = len({result.name for result in results if result.status == "ok"})
    ended = len({result.name for result in results})
    missing = of - ended
    text = f"{ok} of {of} cells {did}, {ended - ok} failed"
    return text + (f", {missing} have not run yet." if missing else ".")


Part = tuple[str, list[Block]]
"""A subsection: its title and its blocks. Every part of a study yields none if it has nothing to show."""


def _fairness(results: Sequence[Result], compare: str | None) -> Iterator[Part]:
    if notes := unfair(results, compare) if compare else []:
        yield "Is it fair?", [Items([Words(note) for note in notes], "warning")]


def _predictions(results: Sequence[Result], compare: str | None) -> Iterator[Part]:
    """Where predicted cells come from, and how they compare with the measured ones of the same settings."""
    predicted = [result for result in results if result.made == "predicted" and result.status == "ok"]
    if not predicted:
        return
    notes: Counter[str] = Counter()
    for result in predicted:
        told = result.facts.get("predicted", {})
        notes.update([f"step times of {told.get('time_from', 'nothing')}", *told.get("notes", [])])
    counted = [Words(f"{note} ({count} of {len(predicted)} cells)") for note, count in notes.items()]
    reading = "Their figures are predicted by vLLM's own scheduler in virtual time; nothing of them was measured."
    pairs = beside(results)
    yield "Predicted cells", [Paragraph([reading]), Items(counted, ""), *(_accuracy(pairs, compare) if pairs else [])]


def _accuracy(pairs: Sequence[Beside], compare: str | None) -> Iterator[Block]:
    axes = [axis for axis in pairs[0].measured.cell.axes if axis != MADE]
    phases = any(pair.position for pair in pairs)
    rows = [
        [
            *(text_of(pair.measured.cell.axes[axis]) for axis in axes),
            *([_numbered(pair.phases[0])] if phases else []),
            *(value for name in ("jct_s_mean", "ttft_ms_p50", "cached_share") for value in pair.values(name)),
            f"{pair.error('jct_s_mean'):+.1%}",
        ]
        for pair in pairs
    ]
    figures = [f"{figure}, {made}" for figure in ("JCT mean s", "TTFT p50 ms", "cached share") for made in MADES]
    what = "phases of cells" if phases else "cells"
    if len(pairs) > (cells := len({(pair.measured.name, pair.position) for pair in pairs})):
        what = f"runs of {cells} {what}"
    text = f"{len(pairs)} {what} are also measured. Mean absolute error of the mean JCT: {_mean_error(pairs)}"
    others = [pair for pair in pairs if not pair.own_times]
    if 0 < len(others) < len(pairs):
        text += f"; of the {len(others)} without the measured cell's own step times: {_mean_error(others)}"
    text += "."
    if drawn := [pair for pair in pairs if pair.within_draws is not None]:
        within = sum(bool(pair.within_draws) for pair in drawn)
        text += f" Of the {len(drawn)} with draws, {within} are measured within what two runs differ by."
    order = order_of(pairs, compare) if compare else Order(0, 0, 0, 0)
    if order.pairs:
        text += f" {order.pairs} pairs of cells differ in {compare} only; prediction orders {order.right} as measured."
    if order.apart:
        text += (
            f" Of the {order.apart} whose measured difference has an interval without 0, it orders {order.apart_right} "
            "so."
        )
    yield Paragraph([text])
    yield _table([*axes, *(["phase"] if phases else []), *figures, "JCT error"], rows, [*figures, "JCT error"])


def _numbered(phase: Phase) -> str:
    return f"{phase.position}: {phase.workload['name']}"


def _mean_error(pairs: Sequence[Beside]) -> str:
    return f"{fmean(abs(pair.error('jct_s_mean')) for pair in pairs):.1%}" if pairs else "-"


def _plots(study: str, results: Sequence[Result], compare: str | None, target: Path) -> Iterator[Part]:
    figures: list[Block] = []
    for metric, text in charts.FIGURES.items():
        if (figure := charts.draw(results, compare, metric)) is not None:
            picture = Picture({"svg": draw_bytes(figure, "svg")})
            write_file(target / f"{study}-{metric}.svg", picture.files["svg"])
            figures.append(Figure(picture, f"{study}-{metric}", text))
    if figures:
        yield "Plots", figures


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[str] = ()) -> Table:
    """A table whose numbers have four significant digits.

    Args:
        names: Headings.
        rows: Numbers, text, None, or `Cell`s of them.
        numbers: Names of columns of numbers that also hold words, such as "failed".
    """
    known = text_table(names, rows).columns
    columns = [Column(column.name, number=column.number or column.name in numbers) for column in known]
    return Table(columns, [[_worded(value) for value in row] for row in rows])


def _worded(value: Any) -> Any:
    if isinstance(value, Cell):
        return Cell(_worded(value.value), value.mark)
    return Words(value if isinstance(value, str) else rounded(value))


def _axes(result: Result) -> list[tuple[str, Any]]:
    return [
        *((axis, value) for axis, value in result.cell.axes.items() if axis != "repeat"),
        ("repeat", result.cell.repeat),
    ]


def _rank(values: dict[str, list[str]], axis: str, value: str) -> int:
    if axis not in values:
        return int(value)  # a repeat
    return values[axis].index(value) if value in values[axis] else len(values[axis])


def _cells(results: Sequence[Result], axes: list[str], compare: str | None) -> Iterator[Part]:
    """A row a cell and phase, best of each comparison marked; then the cells that failed."""
    repeats = any(result.cell.repeat for result in results)
    phases = any(len(result.phases) > 1 for result in results)
    best = _best(results, compare)
    columns = [
        name for name in COLUMNS if any(p.figures.get(name) not in (None, 0) for r in results for p in r.phases)
    ] or ["jobs_done"]
    rows: list[list[Any]] = []
    for result in results:
        head = [*(text_of(result.cell.axes[axis]) for axis in axes), *([str(result.cell.repeat)] if repeats else [])]
        for phase in result.phases:
            marks = {name: (result.place.name, phase.label, name) in best for name in columns}
            figures = [Cell(phase.figures.get(name), "best" if marks[name] else "") for name in columns]
            rows.append([*head, *([_numbered(phase)] if phases else []), *figures])
        if result.status != "ok":
            rows.append([*head, *(["-"] if phases else []), *(["failed"] * len(columns))])
    numbers = [COLUMNS[name][0] for name in columns]
    names = [*axes, *(["repeat"] if repeats else []), *(["phase"] if phases else []), *numbers]
    drawn = all(phase.draws for result in results for phase in result.phases)
    once = (
        "Bold marks the best number of a comparison. Each cell ran once: cells that do the same work differ, too, and "
        "how much is not known without repeats."
        if not drawn
        else "Bold marks the best number of a comparison, also where two runs of the same differ by more: see Draws."
    )
    notes = [Paragraph([once], "hint")] if best and not repeats else []
    yield "Cells", [*notes, _table(names, rows, numbers)]
    if failed := [[result.cell.label, result.error or ""] for result in results if result.status != "ok"]:
        yield "Failed cells", [_table(["cell", "error"], failed)]


def _best(results: Sequence[Result], compare: str | None) -> set[tuple[str, str, str]]:
    """Cell, phase and figure of the best of each group of comparable cells."""
    found = set()
    for members in groups(results, compare or "").values() if compare else [list(results)]:
        for label in {phase.label for result in members for phase in result.phases}:
            for name, (_, better) in COLUMNS.items():
                values = [
                    (value, result.place.name)
                    for result in members
                    for phase in result.phases
                    if phase.label == label and (value := phase.figures.get(name)) is not None
                ]
                if better and len({value for value, _ in values}) > 1:
                    _, winner = (min if better == "min" else max)(values)
                    found.add((winner, label, name))
    return found


class _Shown(NamedTuple):
    """A figure of `_side_by_side`: its title, what it is of a phase, and whether more or less is better."""

    title: str
    of: Callable[[Phase], float | None]
    better: str = "min"


def _figure(name: str, scale: float = 1.0) -> Callable[[Phase], float | None]:
    def of(phase: Phase) -> float | None:
        value = phase.figures.get(name)
        return None if value is None else value * scale

    return of


def _last_over_first(turns_ms: Sequence[float]) -> float | None:
    return turns_ms[-1] / turns_ms[0] if len(turns_ms) > 1 and turns_ms[0] else None


_SIDE_BY_SIDE = (
    _Shown("Mean job completion time, s", _figure("jct_s_mean")),
    _Shown("Mean turn, s", _figure("turn_ms_mean", 1e-3)),
    _Shown("Output tokens a second", _figure("output_tokens_per_s"), "max"),
    _Shown("Prompt tokens from a cache, share", _figure("cached_share"), "max"),
    _Shown("Mean time to first token, s", _figure("ttft_ms_mean", 1e-3)),
    _Shown("Mean time to first token of later turns, s", _figure("ttft_later_ms", 1e-3)),
    _Shown("Latency of the last turn over that of the first", lambda phase: _last_over_first(phase.turns_ms)),
)


def _side_by_side(results: Sequence[Result], compare: str, axes: dict[str, list[str]]) -> Iterator[Part]:
    """A table a figure: a column for each value of the compared axis, a row for each setting of the others."""
    found: dict[tuple[tuple[str, ...], str], dict[str, list[Phase]]] = {}
    others = [axis for axis in _axes_of(results) if axis != compare] if results else []
    values = axes[compare]
    for result in results:
        place = tuple(text_of(result.cell.axes[axis]) for axis in others)
        for phase in result.phases:
            row = found.setdefault((place, phase.label), {})
            row.setdefault(text_of(result.cell.axes[compare]), []).append(phase)
    ranks = {place: [_rank(axes, *each) for each in zip(others, place, strict=True)] for place, _ in found}
    rows = dict(sorted(found.items(), key=lambda row: ranks[row[0][0]]))
    if len(values) < 2 or len(rows) < 2:
        return
    several = len({label for _, label in rows}) > 1
    head = [*others, *(["workload"] if several else []), *values]
    blocks: list[Block] = []

    def add(title: str, cells: Callable[[list[list[Phase]]], list[Cell]], numbers: Sequence[str]) -> None:
        made = [cells([row.get(value, []) for value in values]) for row in rows.values()]
        if any(cell.value is not None for row in made for cell in row):
            heads = [[*place, *([label] if several else [])] for place, label in rows]
            table = _table(head, [[*one, *row] for one, row in zip(heads, made, strict=True)], numbers)
            blocks.extend([Paragraph([Words(title)]), table])

    for shown in _SIDE_BY_SIDE:
        add(shown.title, partial(_compared, shown), values)
    add("How latencies grow with the turns (inferred)", _shapes, ())
    reading = (
        "Bold marks the best of a row. Of repeats: the mean, with the lowest and the highest in parentheses. Where "
        "repeats differ by more than two values, these are not told apart."
    )
    if blocks:
        yield f"By {compare}", [Paragraph([reading], "hint"), *blocks]


def _compared(shown: _Shown, phases: list[list[Phase]]) -> list[Cell]:
    """A row's cells, the best ones marked."""
    found = [[value for phase in each if (value := shown.of(phase)) is not None] for each in phases]
    means = [fmean(each) for each in found if each]
    differ = len({rounded(mean) for mean in means}) > 1
    best = rounded((min if shown.better == "min" else max)(means)) if differ else None
    return [Cell(_span(each), "best" if each and rounded(fmean(each)) == best else "") for each in found]


def _shapes(phases: list[list[Phase]]) -> list[Cell]:
    return [Cell(", ".join({phase.shape: None for phase in each if phase.shape}) or None) for each in phases]


def _alike(results: Sequence[Result]) -> Iterator[tuple[list[str], str, list[Phase]]]:
    """Axes without the repeat, a phase's label, and the phase in all repeats of that cell."""
    found: dict[tuple[tuple[str, ...], str], list[Phase]] = {}
    for result in results:
        axes = tuple(text_of(value) for axis, value in result.cell.axes.items() if axis != "repeat")
        for phase in result.phases:
            found.setdefault((axes, phase.label), []).append(phase)
    for (axes, label), phases in found.items():
        yield list(axes), label, phases


def _axes_of(results: Sequence[Result]) -> list[str]:
    return [axis for axis in results[0].cell.axes if axis != "repeat"]


def _span(values: Sequence[float | None]) -> str | float | None:
    """A mean, and the lowest and the highest of several values."""
    known = [value for value in values if value is not None]
    if not known or rounded(min(known)) == rounded(max(known)):
        return fmean(known) if known else None
    return _between(fmean(known), min(known), max(known))


def _between(mean: float, low: float, high: float) -> str:
    return f"{rounded(mean)} ({rounded(low)} to {rounded(high)})"


def _repeats(results: Sequence[Result]) -> Iterator[Part]:
    """The mean of each cell over its repeats, with the lowest and the highest."""
    if not any(result.cell.repeat for result in results):
        return
    columns = ["makespan_s", "jct_s_mean", "ttft_later_ms", "cached_share"]
    rows = [
        [*axes, name, len(phases), *(_span([phase.figures.get(each) for phase in phases]) for each in columns)]
        for axes, name, phases in _alike(results)
    ]
    headings = [COLUMNS[name][0] for name in columns]
    reading = "Mean of the repeats of each cell, with the lowest and the highest of them in parentheses."
    head = [*_axes_of(results), "workload", "repeats", *headings]
    yield "Repeats", [Paragraph([reading], "hint"), _table(head, rows, ["repeats", *headings])]


def _passes(results: Sequence[Result]) -> Iterator[Part]:
    """Forward passes of workloads whose requests were all queued before the first one."""
    found: dict[tuple[tuple[str, ...], str], list[Phase]] = {}
    for axes, _, phases in _alike(results):
        if all(phase.workload["parameters"].get("arrival") == "batch" for phase in phases):
            found.setdefault((tuple(axes), str(phases[0].workload["name"])), []).extend(phases)
    if not found:
        return
    figures = {
        "passes": "passes",
        "prefill_tokens_per_s": "tok/s of prefill",
        "decode_tokens_per_s": "tok/s of decode",
        "pass_tokens_per_s": "tok/s of all",
        "tokens_per_s": "tok/s, end to end",
    }
    rows = [
        [*axes, name, len(phases), *(_span([phase.figures.get(each) for phase in phases]) for each in figures)]
        for (axes, name), phases in found.items()
    ]
    reading = (
        "All requests were queued before the first pass. Tokens a second are those that the passes computed over their "
        "time: of passes without decoding requests, of passes with nothing else, and of all. End to end counts prompt "
        "and output tokens until the last one came. Mean of the runs, with the lowest and the highest in parentheses."
    )
    head = [*_axes_of(results), "workload", "runs", *figures.values()]
    table = _table(head, rows, ["runs", *figures.values()])
    first = [
        [*axes, name, *phases[0].first_passes_tokens]
        for (axes, name), phases in found.items()
        if len(phases[0].first_passes_tokens) == _FIRST_PASSES
    ]
    yield "Forward passes", [Paragraph([reading], "hint"), table]
    if first:
        head = [*_axes_of(results), "workload", *map(str, range(1, _FIRST_PASSES + 1))]
        yield "Tokens of the first forward passes", [_table(head, first)]


_TENTHS = {"KV cache usage, %": "kv_cache_percent", "running requests": "running"}


def _over_time(results: Sequence[Result]) -> Iterator[Part]:
    """KV cache usage and running requests by tenth of the time, of cells with one workload; the mean of repeats."""
    rows = [
        [*axes, name, heading, *map(_known_mean, zip(*curves, strict=True))]
        for axes, name, phases in _alike([result for result in results if len(result.phases) == 1])
        for heading, figure in _TENTHS.items()
        if (curves := [curve for phase in phases if len(curve := getattr(phase, figure)) == 10])
    ]
    if rows:
        reading = "Means over each tenth of the time, from the first request to the end of the last."
        head = [*_axes_of(results), "workload", "", *map(str, range(1, 11))]
        yield "Over time", [Paragraph([reading], "hint"), _table(head, rows)]


def _draws(results: Sequence[Result]) -> Iterator[Part]:
    """Figures of each predicted cell over its draws of step times."""
    drawn = [(result, phase) for result in results for phase in result.phases if phase.draws]
    if not drawn:
        return
    repeats = any(result.cell.repeat for result, _ in drawn)
    columns = ["makespan_s", "jct_s_mean", "ttft_ms_mean", "cached_share", "preemptions", "evicted_blocks"]
    rows = [
        [
            *(text_of(value) for axis, value in result.cell.axes.items() if axis != "repeat"),
            *([str(result.cell.repeat)] if repeats else []),
            phase.workload["name"],
            max(len(values) for values in phase.draws.values()),
            *(_drawn(phase, name) for name in columns),
        ]
        for result, phase in drawn
    ]
    headings = [COLUMNS[name][0] for name in columns]
    reading = (
        "Predicted, not measured: mean over replays of each cell with step times that vary as the recording's do, and "
        "its 95% interval. Two runs of the same cell would differ by as much. In other tables, a predicted cell's "
        "figures are those of one replay, with the times that are expected of its steps."
    )
    head = [*_axes_of(results), *(["repeat"] if repeats else []), "workload", "draws", *headings]
    yield "Draws", [Paragraph([reading], "hint"), _table(head, rows, ["draws", *headings])]


def _drawn(phase: Phase, name: str) -> str | None:
    spread = phase.spread(name)
    return _between(*spread) if spread else None


_MOST_TURNS = 8
_SHARES = {"queue_share": "queue share", "load_share": "loads", "store_share": "stores", "transfer_share": "transfers"}


def _turns(results: Sequence[Result]) -> Iterator[Part]:
    """How latencies of turns grow from a job's first turn to its last."""
    several = [each for each in _alike(results) if all(len(phase.turns_ms) > 1 for phase in each[2])]
    if not several:
        return
    longest = max(min(len(phase.turns_ms) for phase in phases) for _, _, phases in several)
    shown = sorted({round(1 + place * (longest - 1) / (_MOST_TURNS - 1)) for place in range(_MOST_TURNS)})
    rows = []
    for axes, name, phases in several:
        turns = [phase.turns_ms for phase in phases]
        last = min(len(each) for each in turns)
        shapes = Counter(phase.shape for phase in phases if phase.shape)
        rows.append(
            [
                *axes,
                name,
                *(fmean(each[turn - 1] for each in turns) if turn <= last else None for turn in shown),
                _span([_last_over_first(each[:last]) for each in turns]),
                *(_mean_of(phases, share) for share in _SHARES),
                ", ".join(f"{shape} ({count})" if len(shapes) > 1 else shape for shape, count in shapes.items()) or "-",
            ]
        )
    reading = (
        "Mean latency of a turn, ms, over the jobs that completed all turns up to the one that half of the jobs "
        "completed; the mean of repeats. Last over first has the lowest and the highest repeat in parentheses. Queue "
        "share is the share of the growth that is waiting for admission; loads and stores are the time of all copies "
        "of one direction over the phase's, transfers the share of the time with a transfer under way. The shape is "
        "inferred from these by the query turn-growth, which has its rules."
    )
    numbers = [*(f"turn {turn}" for turn in shown), "last / first", *_SHARES.values()]
    head = [*_axes_of(results), "workload", *numbers, "shape"]
    yield "Latency by turn", [Paragraph([reading], "hint"), _table(head, rows, numbers)]


def _mean_of(phases: Sequence[Phase], name: str) -> float | None:
    return _known_mean(phase.figures.get(name) for phase in phases)


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _comparison(results: Sequence[Result], compare: str, values: list[str]) -> Iterator[Part]:
    """Each value of the compared axis against the first one, by job completion time and time to first token."""
    found = list(changes(results, compare, values)) if len(values) > 1 else []
    if not found:
        return
    head = [*found[0].group, "workload", compare, "of", "jobs", values[0]]
    head += ["difference", "95% interval", "share", "verdict"]
    of_runs = _directions_of_runs(results, compare, values)
    reading = (
        f"Mean difference over the jobs that both completed, pair by pair, with a 95% interval of {RESAMPLES:,} "
        f"bootstrap samples. {RULE}. TTFT is a job's mean over its turns. An interval that has 0 in it tells nothing "
        "apart. Jobs of one run share an engine and are not independent, so one without 0 may still be the difference "
        "between two runs: repeats tell more than the interval does."
    )
    numbers = ("jobs", values[0], "difference", "95% interval", "share")
    rows = []
    for change in found:
        verdict = change.difference.direction or "too few pairs"
        if verdict in ("higher", "lower") and of_runs.get(_place_of(change, DRAWN[change.metric]), {verdict}) != {
            verdict
        }:
            verdict += f", {_CHANCE}"
        before, after = _change(change)
        rows.append([*before, _METRICS[change.metric], change.difference.pairs, *after, verdict])
    yield f"Against {values[0]}", [Paragraph([reading], "hint"), _table(head, rows, numbers)]


_CHANCE = "within what two runs differ by"


def _comparison_of_runs(results: Sequence[Result], compare: str, values: list[str]) -> Iterator[Part]:
    """Each value of the compared axis against the first one, by draws of predicted cells."""
    found = list(changes_of_runs(results, compare, values))
    if not found:
        return
    rows = []
    for change in found:
        before, after = _change(change)
        verdict = _CHANCE if change.difference.direction == "unclear" else change.difference.direction
        rows.append([*before, COLUMNS[change.metric][0], *after, verdict])
    reading = (
        "Predicted, not measured: difference of the means over draws of step times. The 95% interval is that of the "
        "difference between one run of each. With 0 in it, two runs of the same may differ by as much."
    )
    head = [*found[0].group, "workload", compare, "of", values[0], "difference", "95% interval", "share", "verdict"]
    numbers = (values[0], "difference", "95% interval", "share")
    yield f"Against {values[0]}, between two runs", [Paragraph([reading], "hint"), _table(head, rows, numbers)]


def _directions_of_runs(results: Sequence[Result], compare: str, values: list[str]) -> dict[Any, set[str]]:
    """Directions of differences between two runs, by place; one a repeat."""
    found: dict[Any, set[str]] = {}
    for change in changes_of_runs(results, compare, values):
        found.setdefault(_place_of(change, change.metric), set()).add(change.difference.direction)
    return found


def _place_of(change: Change, metric: str) -> tuple[Any, ...]:
    group = tuple((axis, value) for axis, value in change.group.items() if axis != "repeat")
    return group, change.phase, change.value, metric


def _change(change: Change) -> tuple[list[Any], list[Any]]:
    """The cells of a change before its metric, and those after it but for the verdict."""
    found = change.difference
    span = found.interval
    return (
        [*change.group.values(), change.phase, change.value],
        [
            found.base,
            found.value,
            f"{rounded(span.low)} to {rounded(span.high)}" if span else "-",
            f"{100 * found.relative:+.1f}%" if found.base else "-",
        ],
    )


_PHASES_TOLD = ("ttft_ms_mean", "output_tokens_per_s", "cached_share")


def _cold_and_warm(results: Sequence[Result]) -> Iterator[Part]:
    """Workloads that a cell ran more than once: the mean of repeats, with the lowest and the highest."""
    caching = [result for result in results if result.cell.prefix_caching]
    found = {(*axes, label): phases for axes, label, phases in _alike(caching)}
    rows = [
        [
            *place,
            *(
                _span([phase.figures.get(name) for phase in phases])
                for name in ("ttft_ms_mean", "cached_share")
                for phases in (found[(*place[:-1], warm[0].workload["name"])], warm)
            ),
        ]
        for place, warm in found.items()
        if warm[0].again
    ]
    if rows:
        numbers = ["TTFT cold ms", "TTFT warm ms", "cached cold", "cached warm"]
        reading = "The same requests again on the same engine."
        yield "Cold and warm", [Paragraph([reading]), _table([*_axes_of(results), "workload", *numbers], rows, numbers)]


def _orders(results: Sequence[Result]) -> Iterator[Part]:
    """A workload at several places in cells that differ in their phases' order only."""
    found: dict[tuple[str, str], dict[int, list[Phase]]] = {}
    for result in results:
        if "phases" in result.cell.axes:
            rest = ", ".join(
                f"{axis} {text_of(value)}" for axis, value in _axes(result) if axis not in ("phases", "repeat")
            )
            for phase in result.phases:
                found.setdefault((rest, phase.label), {}).setdefault(phase.position, []).append(phase)
    rows = [
        [rest, label, position + 1, *(_span([phase.figures.get(name) for phase in phases]) for name in _PHASES_TOLD)]
        for (rest, label), places in found.items()
        if len(places) > 1
        for position, phases in sorted(places.items())
    ]
    if rows:
        numbers = ["place", *(COLUMNS[name][0] for name in _PHASES_TOLD)]
        yield "Does the order of phases matter?", [_table(["cells", "workload", *numbers], rows, numbers)]


def _regression(results: Sequence[Result]) -> Iterator[Part]:
    """A least-squares line through all steps of the cells of one capacity, model and block size."""
    rows = list(_lines(results))
    if not rows:
        return
    reading = (
        "A line through wall time and scheduled tokens of all steps of the cells of one capacity. It extrapolates "
        "to step times without tokens; r2 says how far to trust it."
    )
    below = (
        "A step without tokens takes no negative time: there, a line does not fit. A token of a long prefill "
        "attends to more context and costs more; the query cost-model fits that, too."
    )
    table = _table(["model", "kv_tokens", "cells", "steps", "ms a step", "us a token", "r2"], rows)
    warned = [Paragraph([below])] if any(row[4] < 0 for row in rows) else []
    yield "Step time against tokens, by capacity", [Paragraph([reading], "hint"), table, *warned]


def _lines(results: Sequence[Result]) -> Iterator[list[Any]]:
    pooled: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for result in results:
        if result.steps is not None:
            pooled.setdefault((result.cell.model, result.cell.kv_tokens), []).append(result.steps)
    for (model, capacity), sums in sorted(pooled.items()):
        n, x, y, xx, xy, yy = (sum(column) for column in zip(*sums, strict=True))
        spread_x, spread_y, together = n * xx - x * x, n * yy - y * y, n * xy - x * y
        if n < 3 or spread_x <= 0:
            continue
        slope = together / spread_x
        r2 = together**2 / (spread_x * spread_y) if spread_y > 0 else None
        yield [Path(model).name, capacity, len(sums), int(n), (y - slope * x) / n, slope * 1e3, r2]
