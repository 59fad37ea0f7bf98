"""Gates: conditions on the differences of a comparison that fail it, for continuous integration.

A gate passes or fails only where the recordings can tell. Idle time, unequal load, too few requests and too few
repetitions are named instead of a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from kvtrace.errors import KvtraceError
from kvtrace.queries.text import inert, rounded
from kvtrace.reports.compare import Comparison, Row
from kvtrace.reports.metrics import METRICS, Metric

FAILED = 3
"""Exit code if a gate failed."""

NO_VERDICT = 4
"""Exit code if none failed, and one has no verdict."""

FEWEST_REPETITIONS = 2
"""Recordings of A again that it takes to fail a gate: their differences from A are noise."""

_CONDITION = re.compile(r"\s*(?P<key>\w+)\s*(?P<sign>[<>])\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>\S*)\s*")
_EXAMPLE = "'hit_rate < -2pp' or 'ttft_p99 > +5%'"


@dataclass(frozen=True)
class Gate:
    """A condition that fails a comparison if it holds of a run's difference from A.

    Attributes:
        text: The condition as it was given.
        metric: What it is about.
        above: It holds above the limit; else below it.
        limit: In `unit`.
        unit: %, of A's value; pp, percentage points of a ratio; or the metric's own.
    """

    text: str
    metric: Metric
    above: bool
    limit: float
    unit: str

    def holds(self, change: float) -> bool:
        """The condition holds of a change in the gate's unit."""
        return change > self.limit if self.above else change < self.limit

    def shown(self, change: float) -> str:
        """A change in the gate's unit, as text."""
        return f"{rounded(change, '+')}{'' if self.unit in ('%', 'pp') else ' '}{self.unit}".rstrip()


@dataclass(frozen=True)
class Judgement:
    """Outcome of a gate for one run.

    Attributes:
        gate: The gate.
        letter: The run's.
        change: The difference from A, as text; "-" if there is none.
        verdict: Of the gate.
        reason: Why, in a sentence.
    """

    gate: Gate
    letter: str
    change: str
    verdict: Literal["passed", "failed", "no verdict"]
    reason: str


def read_gate(text: str) -> Gate:
    """Read a condition such as `hit_rate < -2pp`.

    Raises:
        KvtraceError: it is none, or its metric or unit is unknown.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise KvtraceError(
            f"--fail-if {text!r}: expected METRIC, < or >, and a difference from A, such as {_EXAMPLE}", 2
        )
    metric = next((metric for metric in METRICS if metric.key == found["key"]), None)
    if metric is None:
        known = ", ".join(metric.key for metric in METRICS)
        raise KvtraceError(f"--fail-if {text!r}: no metric {found['key']!r}; there are: {known}", 2)
    unit = found["unit"] or metric.unit
    units = ["%", *(["pp"] if metric.unit == "ratio" else []), metric.unit]
    if unit not in units:
        expected = ", ".join(filter(None, units))
        raise KvtraceError(f"--fail-if {text!r}: {metric.key} has no unit {unit!r}; expected one of: {expected}", 2)
    return Gate(text.strip(), metric, found["sign"] == ">", float(found["limit"]), unit)


def judge(gates: Sequence[Gate], comparison: Comparison) -> list[Judgement]:
    """Judge every gate for every run but the first."""
    return [_judge(gate, comparison, other) for other in range(1, len(comparison.names)) for gate in gates]


def exit_code(judgements: Sequence[Judgement]) -> int:
    """0 if all gates passed, else `FAILED` or `NO_VERDICT`."""
    verdicts = {judgement.verdict for judgement in judgements}
    return FAILED if "failed" in verdicts else NO_VERDICT if "no verdict" in verdicts else 0


def as_junit(judgements: Sequence[Judgement], comparison: Comparison) -> bytes:
    """The judgements as JUnit XML: a test case each; one without a verdict is an error."""
    elements = {"failed": "failure", "no verdict": "error"}
    counts = {f"{name}s": sum(x.verdict == verdict for x in judgements) for verdict, name in elements.items()}
    suite = ElementTree.Element("testsuite", name="kvtrace compare", tests=str(len(judgements)))
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    names = dict(zip(comparison.letters, comparison.names, strict=True))
    for judgement in judgements:
        run = f"{judgement.letter} ({inert(names[judgement.letter])}) against A ({inert(names['A'])})"
        case = ElementTree.SubElement(suite, "testcase", classname=run, name=judgement.gate.text)
        if kind := elements.get(judgement.verdict):
            ElementTree.SubElement(case, kind, message=f"{judgement.change}: {judgement.reason}")
    ElementTree.indent(suite)
    data: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _judge(gate: Gate, comparison: Comparison, other: int) -> Judgement:
    letter = comparison.letters[other]
    row = next((row for row in comparison.rows if row.metric == gate.metric), None)
    found = row.differences[other - 1] if row else None
    obstacles = list(_obstacles(gate, comparison, row, other))
    scale = {"%": 100 / found.base if found and found.base else None, "pp": 100.0}.get(gate.unit, 1.0)
    if row is None or found is None or scale is None:
        reason = obstacles[0] if obstacles else f"{gate.metric.name} has no value in A or {letter}, or it is 0 in A"
        return Judgement(gate, letter, "-", "no verdict", reason)
    change = found.value * scale
    span = found.interval
    low, high = sorted((span.low * scale, span.high * scale)) if span else (change, change)
    shown = gate.shown(change) + (f" ({gate.shown(low)} .. {gate.shown(high)})" if span else "")
    if obstacles:
        return Judgement(gate, letter, shown, "no verdict", obstacles[0])
    nearest, farthest = (low, high) if gate.above else (high, low)
    if not gate.holds(farthest):
        return Judgement(gate, letter, shown, "passed", "the difference is on the right side of the limit")
    if not gate.holds(nearest):
        return Judgement(gate, letter, shown, "no verdict", "too few requests: the limit is inside the 95% interval")
    noise = [abs(difference) * abs(scale) for difference in row.noise]
    if len(noise) < FEWEST_REPETITIONS:
        return Judgement(gate, letter, shown, "no verdict", _too_few(len(noise)))
    if not gate.holds(change - max(noise) if gate.above else change + max(noise)):
        reason = (
            f"no larger than the noise: A's own repetitions differ from it by up to {rounded(max(noise))} {gate.unit}"
        )
        return Judgement(gate, letter, shown, "no verdict", reason)
    return Judgement(
        gate,
        letter,
        shown,
        "failed",
        f"beyond the limit; A's own repetitions differ from it by up to {rounded(max(noise))} {gate.unit}",
    )


def _obstacles(gate: Gate, comparison: Comparison, row: Row | None, other: int) -> Iterator[str]:
    """Reasons why the difference of a run says nothing."""
    yield from comparison.unequal_load[other - 1]
    if gate.metric.over_span and (idle := comparison.idle[other - 1]):
        yield idle
    found = row.differences[other - 1] if row else None
    if found is not None and gate.metric.paired and found.interval is None:
        yield f"too few requests: {found.pairs} pairs give no interval of a {gate.metric.statistic}"


def _too_few(count: int) -> str:
    again = "once" if not count else "twice"
    return (
        f"too few repetitions: A was recorded {again}, so it is not known how much a run differs from its own "
        f"repetition; record A again and name the traces with --repetition, {FEWEST_REPETITIONS} or more"
    )
