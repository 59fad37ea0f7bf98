"""Forward passes, and KV cache usage over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvtrace.lab.report.parts import Part, alike, axes_of, known_mean, span, table
from kvtrace.lab.results import FIRST_PASSES, TENTHS, Phase, Result
from kvtrace.reports.document import Paragraph

_CURVES = {"KV cache usage, %": "kv_cache_percent", "running requests": "running"}


def passes(results: Sequence[Result]) -> Iterator[Part]:
    """Forward passes of workloads whose requests were all queued before the first one."""
    found: dict[tuple[tuple[str, ...], str], list[Phase]] = {}
    for axes, _, phases in alike(results):
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
        [*axes, name, len(phases), *(span([phase.figures.get(each) for phase in phases]) for each in figures)]
        for (axes, name), phases in found.items()
    ]
    reading = (
        "All requests were queued before the first pass. Tokens a second are those that the passes computed over their "
        "time: of passes without decoding requests, of passes with nothing else, and of all. End to end counts prompt "
        "and output tokens until the last one came. Mean of the runs, with the lowest and the highest in parentheses."
    )
    head = [*axes_of(results), "workload", "runs", *figures.values()]
    numbers = ["runs", *figures.values()]
    first = [
        [*axes, name, *phases[0].first_passes_tokens]
        for (axes, name), phases in found.items()
        if len(phases[0].first_passes_tokens) == FIRST_PASSES
    ]
    yield "Forward passes", [Paragraph([reading], "hint"), table(head, rows, numbers)]
    if first:
        head = [*axes_of(results), "workload", *map(str, range(1, FIRST_PASSES + 1))]
        yield "Tokens of the first forward passes", [table(head, first)]


def over_time(results: Sequence[Result]) -> Iterator[Part]:
    """KV cache usage and running requests by tenth of the time, of cells with one workload; the mean of repeats."""
    rows = [
        [*axes, name, heading, *map(known_mean, zip(*curves, strict=True))]
        for axes, name, phases in alike([result for result in results if len(result.phases) == 1])
        for heading, figure in _CURVES.items()
        if (curves := [curve for phase in phases if len(curve := getattr(phase, figure)) == TENTHS])
    ]
    if rows:
        reading = "Means over each tenth of the time, from the first request to the end of the last."
        head = [*axes_of(results), "workload", "", *map(str, range(1, TENTHS + 1))]
        yield "Over time", [Paragraph([reading], "hint"), table(head, rows)]
