"""Verdict on an engine and its recording after a fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.vllm.faults import cells
from tests.vllm.faults.cells import Copies, Fault, Result
from tests.vllm.faults.raises import Place
from tests.vllm.faults.variants import UNLIKE_COPIES


class Reference:
    """Reference of a variant: its outcome without kvtrace, and recorded without faults."""

    def __init__(self, variant: str, folder: Path) -> None:
        self.variant = variant
        self.off = cells.run(Fault(variant, "off"), folder / "off")
        self.fresh = cells.run(Fault(variant, "none"), folder / "none")
        self.contents = cells.contents(folder / "none")
        self.hooks = set(_hooks_named(cells.told(folder / "none")))  # are no sign of a fault
        self.copies = Copies(variant, folder / "copies") if variant not in UNLIKE_COPIES else None
        self.copied_contents: dict[str, Any] = {}
        if self.copies is not None:
            self.copies.run(Fault(variant, "none"), folder / "copy")
            self.copied_contents = cells.contents(folder / "copy")

    def run(self, fault: Fault, folder: Path) -> tuple[Result, dict[str, Any]]:
        """A trial, and what the recording would hold without the fault."""
        if self.copies is not None and self._comes_late(fault):
            return self.copies.run(fault, folder), self.copied_contents
        return cells.run(fault, folder), self.contents

    def _comes_late(self, fault: Fault) -> bool:
        """Return whether the fault shows only once the engine is there."""
        assert self.copies is not None
        if fault.place is not None:
            return self.copies.calls.get(fault.place, 0) == 0
        if fault.kind == "missing":
            return fault.missing not in self.copies.seen
        return fault.kind in _CONDITIONS and fault.kind != "restarted"

    def close(self) -> None:
        if self.copies is not None:
            self.copies.close()


def judge(fault: Fault, reference: Reference, folder: Path) -> tuple[list[str], str]:
    """Run a trial: what is wrong with it, and how it was told."""
    result, expected = reference.run(fault, folder)
    wrong = []
    if result.outcome != reference.off.outcome:
        same = result.outcome["requests"] == reference.off.outcome["requests"]
        wrong.append("the schedule differs" if same else "the OUTPUTS differ")
    if result.kept != reference.off.kept:
        wrong.append(f"kept: {result.kept}")
    lines = cells.told(folder)
    hooks = sorted(set(_hooks_named(lines)) - reference.hooks)
    places = [place for place, calls in result.calls if calls] if fault.kind == "raise all" else [fault.place]
    wrong += [f"{place.target} is not named" for place in places if place and not _is_told(place, lines)]
    found = cells.contents(folder)
    differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if differing:
        try:
            cells.ingest(folder)
        except RuntimeError as error:
            wrong.append(f"ingest: {error}")
    unknown = _unknown(found, expected)
    if hooks:
        told = f"named: {', '.join(hooks)}"
    elif unknown:
        told = f"unknown: {', '.join(unknown)}"
        differing = [name for name in differing if name != "engine"]
    else:
        told = "nothing is lost"
    if differing and not hooks:
        wrong.append(f"SILENT: {_differences(found, expected, differing)}")
    return wrong, told


_ABSENT = re.compile(r"    [\w.]+:[\w.<>|]+( \(lost: |$)")
"""A line of the summary about a function or an attribute that is not there; connectors may be anybody's."""


def _hooks_named(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("the hook "):
            yield line.split()[2]
        elif _ABSENT.match(line):
            yield line.split()[0] + " (absent)"
        elif line.startswith("  connector "):
            yield line.split()[1] + " (not in detail)"


def _is_told(place: Place, lines: list[str]) -> bool:
    return any(line.startswith(f"the hook {place.target} failed") and place.lost in line for line in lines)


def _unknown(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Facts of the engine that are left out, or null, which is the same in a trace; none if any is different."""
    facts = {name: value for name, value in found.get("engine", {}).items() if value is not None}
    all_facts = {name: value for name, value in expected.get("engine", {}).items() if value is not None}
    if any(all_facts.get(name) != value for name, value in facts.items()):
        return []
    return sorted(all_facts.keys() - facts.keys())


def _differences(found: dict[str, Any], expected: dict[str, Any], names: list[str]) -> str:
    parts = []
    for name in names:
        one, other = found.get(name), expected.get(name)
        if isinstance(one, Counter) and isinstance(other, Counter):
            parts.append(f"{name} {one.total()} for {other.total()} records, {(one - other).total()} not the same")
        else:
            parts.append(f"{name} {one} for {other}")
    return "; ".join(parts)[:600]


def judge_condition(fault: Fault, reference: Reference, folder: Path) -> tuple[list[str], str]:
    """Try a condition: what is wrong, and how it was told."""
    result, _ = reference.run(fault, folder)
    _readable(folder / "run")
    log = [line for line in (folder / "log").read_text().splitlines() if line.startswith("kvtrace:")]
    wrong = []
    if result.outcome["requests"] != reference.off.outcome["requests"]:
        wrong.append("the OUTPUTS differ")
    if result.kept != reference.off.kept:
        wrong.append(f"kept: {result.kept}")
    told = "; ".join([*log, *_CONDITIONS[fault.kind](result, reference, folder, wrong)])
    return wrong, told


def _readable(run: Path) -> None:
    """Give back permissions, outermost first."""
    for folder in (run, run / "processes", *(run / "processes").glob("*")):
        if folder.exists():
            folder.chmod(0o755)


def _expect(wrong: list[str], what: str, found: Any, expected: Any) -> None:
    if found != expected:
        wrong.append(f"{what}: {found!r:.300} for {expected!r:.300}")


def _directory_removed(result: Result, reference: Reference, folder: Path, wrong: list[str]) -> list[str]:
    lines = cells.told(folder)
    _expect(wrong, "told", ["does not exist" in line for line in lines], [True])
    _expect(wrong, "said by the engine", "recording stopped" in (folder / "log").read_text(), True)
    return lines


def _stopped(result: Result, reference: Reference, folder: Path, wrong: list[str]) -> list[str]:
    """Check that written and dropped records are together all there was."""
    [process] = cells.open_recording(folder / "run").processes
    found, dropped = cells.contents(folder), process.dropped()
    for event, rows in reference.copied_contents.items():
        if isinstance(rows, Counter):
            total = found.get(event, Counter()).total() + dropped[event]
            _expect(wrong, f"{event} written and dropped", total, rows.total())
    lines = [line for line in cells.told(folder) if "stopped early" in line]
    _expect(wrong, "lines about it", len(lines), 1)
    cells.ingest(folder)
    return lines


def _clock_stepped(result: Result, reference: Reference, folder: Path, wrong: list[str]) -> list[str]:
    _expect(wrong, "recorded", _totals(cells.contents(folder)), _totals(reference.copied_contents))
    warnings = [warning for warning in cells.ingest(folder) if "+3600.000 s" in warning]
    _expect(wrong, "warnings", len(warnings), 1)
    [[off]] = cells.ask(folder, "SELECT max(abs(queued_ns - arrival_ns)) / 1e9 FROM request")
    _expect(wrong, "arrivals are near where requests are queued", off < 60, True)
    return warnings


def _forked(result: Result, reference: Reference, folder: Path, wrong: list[str]) -> list[str]:
    _expect(wrong, "the child's outcome", result.more == reference.off.outcome, True)
    lines = cells.told(folder)
    _expect(wrong, "processes", len(cells.open_recording(folder / "run").processes), 2)
    cells.ingest(folder)
    return lines[:1]


def _aborted(result: Result, reference: Reference, folder: Path, wrong: list[str]) -> list[str]:
    _expect(wrong, "kept after the aborts", result.more["kept"], reference.off.kept)
    _expect(wrong, "strings kept", result.more["strings"], 0)
    cells.ingest(folder)
    sql = "SELECT count(*), count(DISTINCT request) FROM request_event WHERE op = 'finish' AND reason = 'abort'"
    [found] = cells.ask(folder, sql)
    expected = result.more["requests"] + 1  # the workload's own
    _expect(wrong, "aborts recorded", found, [expected, expected])
    return [f"{found[0]:,} aborts"]


def _restarted(result: Result, reference: Reference, folder: Path, wrong: list[str]) -> list[str]:
    _expect(wrong, "the later outcome is the same", result.more["later"] == reference.off.outcome, True)
    _expect(wrong, "kept of the earlier engine", result.more["left"], [])
    cells.ingest(folder)
    [found] = cells.ask(folder, "SELECT count(*), count(DISTINCT step), max(step) FROM step")
    steps = 2 * len(reference.off.outcome["steps"])
    _expect(wrong, "steps", found, [steps, steps, steps])
    return [f"{steps} steps"]


def _totals(contents: dict[str, Any]) -> dict[str, int]:
    return {event: rows.total() for event, rows in contents.items() if isinstance(rows, Counter)}


_CONDITIONS: dict[str, Callable[[Result, Reference, Path, list[str]], list[str]]] = {
    "directory removed": _directory_removed,
    "permissions lost": _stopped,
    "disk full": _stopped,
    "clock stepped": _clock_stepped,
    "forked": _forked,
    "aborted": _aborted,
    "restarted": _restarted,
}
