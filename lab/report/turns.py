"""How latencies grow with the turns of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from kvtrace.lab.report.parts import Part, alike, axes_of, last_over_first, mean_of, span, table
from kvtrace.lab.results import Result
from kvtrace.reports.document import Paragraph

_MOST_TURNS = 8
_SHARES = {"queue_share": "queue share", "load_share": "loads", "store_share": "stores", "transfer_share": "transfers"}


def turns(results: Sequence[Result]) -> Iterator[Part]:
    """How latencies of turns grow from a job's first turn to its last."""
    several = [each for each in alike(results) if all(len(phase.turns_ms) > 1 for phase in each[2])]
    if not several:
        return
    longest = max(min(len(phase.turns_ms) for phase in phases) for _, _, phases in several)
    shown = sorted({round(1 + place * (longest - 1) / (_MOST_TURNS - 1)) for place in range(_MOST_TURNS)})
    rows = []
    for axes, name, phases in several:
        means = [phase.turns_ms for phase in phases]
        last = min(len(each) for each in means)
        shapes = Counter(phase.shape for phase in phases if phase.shape)
        rows.append(
            [
                *axes,
                name,
                *(fmean(each[turn - 1] for each in means) if turn <= last else None for turn in shown),
                span([last_over_first(each[:last]) for each in means]),
                *(mean_of(phases, share) for share in _SHARES),
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
    head = [*axes_of(results), "workload", *numbers, "shape"]
    yield "Latency by turn", [Paragraph([reading], "hint"), table(head, rows, numbers)]
