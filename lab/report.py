"""`kvtrace lab report`: what a sweep's cells found, in tables, plots and comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab import charts
from kvtrace.lab.compare import differences, groups, repeated, text_of, unfair
from kvtrace.lab.document import Cell, Document, shown
from kvtrace.lab.summary import Phase, Result, load_results
from kvtrace.queries.plotting import save

COLUMNS: dict[str, tuple[str, str | None]] = {
    "jobs_done": ("jobs", None),
    "makespan_s": ("makespan s", "min"),
    "output_tokens_per_s": ("output tok/s", "max"),
    "requests_per_s": ("requests/s", "max"),
    "jct_s_mean": ("JCT mean s", "min"),
    "jct_s_p99": ("JCT p99 s", "min"),
    "ttft_ms_mean": ("TTFT mean ms", "min"),
    "ttft_ms_p99": ("TTFT p99 ms", "min"),
    "ttft_later_ms": ("TTFT later turns ms", "min"),
    "tpot_ms_mean": ("TPOT ms", "min"),
    "cached_share": ("cached share", "max"),
    "preemptions": ("preemptions", None),
    "evicted_blocks": ("evicted blocks", None),
    "load_bytes": ("loaded bytes", None),
}
"""The table's figures: their headings, and whether more or less is better."""

_METRICS = {"jct_s": "JCT (s)", "ttft_ms": "TTFT (ms)"}


def write_report(directory: Path, target: Path) -> list[str]:
    """Write report.md, report.html and their pictures; returns what readers of traces were warned of.

    Raises:
        KvtraceError: There are no results, or the folder cannot be written.
    """
    results = load_results(directory)
    document = Document(f"Lab report: {directory.resolve().name}")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.glob("studies/*.json")):
            _study(document, json.loads(path.read_text()), results, target)
        (target / "report.md").write_text(document.markdown(), encoding="utf-8")
        (target / "report.html").write_text(document.page(), encoding="utf-8")
    except OSError as error:
        raise KvtraceError(f"{target} cannot be written: {error.strerror}") from error
    return [warning for result in results for warning in result.warnings]


def _study(document: Document, study: dict[str, Any], results: Sequence[Result], target: Path) -> None:
    place = {id_: number for number, id_ in enumerate(study["cells"])}
    ran = [result for result in results if result.place.name in place]
    values: dict[str, list[str]] = study["axes"]
    mine = sorted(ran, key=lambda result: [_rank(values, axis, text_of(value)) for axis, value in _axes(result)])
    ok = [result for result in mine if result.status == "ok"]
    document.heading(study["name"])
    missing = len(place) - len(mine)
    document.text(
        f"{len(ok)} of {len(place)} cells ran, {len(mine) - len(ok)} failed"
        + (f", {missing} have not run yet." if missing else ".")
        + " Latencies are those the client saw; JCT is from when a job's first turn was due to the end of its last."
    )
    compare = study["compare"]
    if notes := unfair(mine, compare) if compare else []:
        document.heading("Is it fair?", 3)
        document.items(notes)
    _cells(document, mine, list(values), compare)
    if compare:
        _comparison(document, ok, compare, values[compare])
    _cold_and_warm(document, ok)
    _orders(document, ok)
    _regression(document, ok)
    for metric in charts.FIGURES:
        figure = charts.draw(ok, compare, metric)
        if figure is not None:
            name = f"{study['name']}-{metric}.svg"
            save(figure, target / name)
            document.picture(name, charts.FIGURES[metric])


def _axes(result: Result) -> list[tuple[str, Any]]:
    return [
        *((axis, value) for axis, value in result.cell.axes.items() if axis != "repeat"),
        ("repeat", result.cell.repeat),
    ]


def _rank(values: dict[str, list[str]], axis: str, value: str) -> int:
    return values[axis].index(value) if axis in values else int(value)


def _cells(document: Document, results: Sequence[Result], axes: list[str], compare: str | None) -> None:
    """A row a cell and phase, best of each comparison marked; then what failed."""
    repeats = any(result.cell.repeat for result in results)
    phases = any(len(result.phases) > 1 for result in results)
    rows, known = [], set()
    best = _best(results, compare)
    for result in results:
        head = [*(text_of(result.cell.axes[axis]) for axis in axes), *([result.cell.repeat] if repeats else [])]
        for phase in result.phases:
            known |= {name for name in COLUMNS if phase.figures.get(name) not in (None, 0)}
            figures = {
                name: Cell(phase.figures.get(name), (result.place.name, phase.position, name) in best)
                for name in COLUMNS
            }
            rows.append(([*head, *([f"{phase.position}: {phase.workload['name']}"] if phases else [])], figures))
        if result.status != "ok":
            rows.append(([*head, *(["-"] if phases else [])], dict.fromkeys(COLUMNS, Cell("failed"))))
    columns = [name for name in COLUMNS if name in known] or ["jobs_done"]
    document.heading("Cells", 3)
    if best and not repeats:
        document.text(
            "Bold is the best number of a comparison. Each cell ran once: cells that do the same work differ, too, and "
            "how much is not known without repeats."
        )
    document.table(
        [*axes, *(["repeat"] if repeats else []), *(["phase"] if phases else []), *(COLUMNS[c][0] for c in columns)],
        [[*head, *(figures[name] for name in columns)] for head, figures in rows],
    )
    failed = [[result.cell.label, result.error or ""] for result in results if result.status != "ok"]
    if failed:
        document.heading("Failed cells", 3)
        document.table(["cell", "error"], failed)


def _best(results: Sequence[Result], compare: str | None) -> set[tuple[str, int, str]]:
    """Cell, phase and figure of the best of each group of comparable cells."""
    found = set()
    for members in groups(results, compare or "").values() if compare else [list(results)]:
        for position in {phase.position for result in members for phase in result.phases}:
            for name, (_, better) in COLUMNS.items():
                values = [
                    (value, result.place.name)
                    for result in members
                    for phase in result.phases
                    if phase.position == position and (value := phase.figures.get(name)) is not None
                ]
                if better and len({value for value, _ in values}) > 1:
                    _, winner = (min if better == "min" else max)(values)
                    found.add((winner, position, name))
    return found


def _comparison(document: Document, results: Sequence[Result], compare: str, values: list[str]) -> None:
    found = list(differences(results, compare, values)) if len(values) > 1 else []
    if not found:
        return
    document.heading(f"Against {values[0]}", 3)
    document.text(
        "Mean difference over the jobs that both completed, pair by pair, with a 95% interval of 10,000 bootstrap "
        "samples. TTFT is a job's mean over its turns. An interval that has 0 in it tells nothing apart. Jobs of one "
        "run share an engine and are not independent, so one without 0 may still be the difference between two runs: "
        "repeats tell more than the interval does."
    )
    rows = []
    for each in found:
        change = each.interval
        rows.append(
            [
                *each.group.values(),
                each.phase,
                each.value,
                _METRICS[each.metric],
                each.pairs,
                each.baseline_mean,
                change.mean if change else None,
                f"{shown(change.low)} to {shown(change.high)}" if change else "-",
                f"{100 * change.mean / each.baseline_mean:+.1f}%" if change and each.baseline_mean else "-",
                each.verdict,
            ]
        )
    head = [
        *found[0].group,
        "workload",
        compare,
        "of",
        "jobs",
        values[0],
        "difference",
        "95% interval",
        "share",
        "verdict",
    ]
    document.table(head, rows)


def _cold_and_warm(document: Document, results: Sequence[Result]) -> None:
    rows = [
        [
            result.cell.label,
            cold.workload["name"],
            *_pair(cold, warm, "ttft_ms_mean"),
            *_pair(cold, warm, "cached_share"),
        ]
        for result in results
        for cold, warm in repeated(result)
    ]
    if rows:
        document.heading("Cold and warm", 3)
        document.text("The same requests again on the same engine.")
        head = ["cell", "workload", "TTFT cold ms", "TTFT warm ms", "cached cold", "cached warm"]
        document.table(head, rows)


def _pair(one: Phase, other: Phase, name: str) -> list[float | None]:
    return [one.figures.get(name), other.figures.get(name)]


def _orders(document: Document, results: Sequence[Result]) -> None:
    """A workload at several places in cells that differ in their phases' order only."""
    found: dict[tuple[str, str], dict[int, Phase]] = {}
    for result in results:
        if "phases" in result.cell.axes:
            rest = ", ".join(f"{axis} {text_of(value)}" for axis, value in _axes(result) if axis != "phases")
            for phase in result.phases:
                found.setdefault((rest, phase.workload["name"]), {}).setdefault(phase.position, phase)
    rows = [
        [
            rest,
            name,
            position + 1,
            *(phase.figures.get(each) for each in ("ttft_ms_mean", "output_tokens_per_s", "cached_share")),
        ]
        for (rest, name), places in found.items()
        if len(places) > 1
        for position, phase in sorted(places.items())
    ]
    if rows:
        document.heading("Does the order of phases matter?", 3)
        document.table(["cells", "workload", "place", "TTFT mean ms", "output tok/s", "cached share"], rows)


def _regression(document: Document, results: Sequence[Result]) -> None:
    """A least-squares line through all steps of the cells of one capacity, model and block size."""
    rows = list(_lines(results))
    if rows:
        document.heading("Step time against tokens, by capacity", 3)
        document.text(
            "A line through wall time and scheduled tokens of all steps of the cells of one capacity. It extrapolates "
            "to step times without tokens; r2 says how far to trust it."
        )
        document.table(["model", "kv_tokens", "cells", "steps", "ms a step", "us a token", "r2"], rows)
        if any(row[4] < 0 for row in rows):
            document.text(
                "A step without tokens takes no negative time: there, a line does not fit. A token of a long prefill "
                "attends to more context and costs more; the query cost-model fits that, too."
            )


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
