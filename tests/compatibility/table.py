"""docs/compatibility.md from the facts in `facts/`: each hook, each version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvtrace.doctor.declared import Declared, all_declared
from kvtrace.doctor.sources import how_it_fits
from kvtrace.launch.versions import parts
from kvtrace.probes.connectors import registry

FACTS = Path(__file__).parent / "facts"
GPU_RUNS = Path(__file__).parent / "gpu_runs.md"
"""A part of the page that people write: tests that ran on a GPU, whose machines have no network to add their facts."""
PAGE = Path(__file__).parent.parent.parent / "docs" / "compatibility.md"
CONNECTORS_PAGE = PAGE.with_name("offload.md")
_BEGIN, _END = "<!-- connectors: made by `make compatibility` -->\n", "<!-- end of connectors -->\n"

_HEAD = """\
# Which vLLM versions can be recorded

kvtrace hooks vLLM's functions without a fork. A version may lack a function, or name it differently. kvtrace then still
records the rest, and the summary of `kvtrace record` names each missing hook and what the trace lacks without it. With
a vLLM newer than all of these, it records with the hooks that it finds; the summary says so in one line. `kvtrace
doctor` tells how the hooks fit the vLLM that is installed.

`make compatibility` generates this page from `tests/compatibility/facts`: the journals of recordings of real engines,
and the syntax trees of vLLM's sources. `python -m tests.compatibility recorded FOLDER` adds recordings made elsewhere,
such as on a GPU; FOLDER holds their run directories.

- **works**: a recording of that version called it, it did not fail, and everything that it reads is there.
- **fits**: the sources have the function, arguments and attributes; no recording here has called it.
- **degraded**: it works, but the trace lacks what the cell says.
- **absent**: the function, or something that the hook requires, is missing; a trace lacks what the row says.
- **none**: this vLLM did not have the feature yet, so nothing is lost.
"""


def connectors_page() -> str:
    """docs/offload.md with its table of connectors."""
    head, rest = CONNECTORS_PAGE.read_text().split(_BEGIN)
    return f"{head}{_BEGIN}\n{connectors()}\n{_END}{rest.partition(_END)[2]}"


def connectors() -> str:
    """The connectors that have an adapter, and what is recorded of each."""
    head = "connector", "tiers", "transfers and blocks", "copy time", "tier's content", "since vLLM", "adapter"
    lines = [_row(*head), _row(*["---"] * len(head))]
    for name, declared in registry.declarations().items():
        for form in declared.forms:
            tiers = ", ".join(tier.name for tier in form.tiers)
            known = form.since or declared.since or "all known"
            lines.append(_row(form.name, tiers, form.transfers, form.copy_time, form.content, known, f"`{name}`"))
    lines.append(
        _row("any other", "", "lookups, calls (`connector_call`), references on blocks", "", "", "all known", "")
    )
    return "\n".join(lines) + "\n"


def versions() -> dict[str, dict[str, Any]]:
    """The stored facts by version, oldest first."""
    found = {path.stem: json.loads(path.read_text()) for path in FACTS.glob("*.json")}
    return dict(sorted(found.items(), key=lambda item: parts(item[0])))


def page() -> str:
    """The whole page."""
    facts = versions()
    cells = {d: [cell(d, version, found) for version, found in facts.items()] for d in all_declared()}
    lines = [
        _HEAD,
        "## Versions\n",
        *_overview(facts, list(zip(*cells.values(), strict=True))),
        "",
        GPU_RUNS.read_text(),
    ]
    lines[-1] = lines[-1].rstrip("\n")
    for title, prefixes in _PARTS.items():
        rows = [d for d in cells if d.target.startswith(prefixes)]
        lines += [
            f"\n## {title}\n",
            _row("hook", "without it, a trace lacks", *facts),
            _row(*["---"] * (2 + len(facts))),
        ]
        lines += [_row(f"`{_short(d.target)}`", "; ".join(d.lost), *cells[d]) for d in rows]
    return "\n".join(lines) + "\n"


_PARTS = {
    "Scheduler and requests": ("vllm.v1.core.sched", "vllm.v1.engine", "vllm.entrypoints"),
    "KV cache": ("vllm.v1.core.kv", "vllm.v1.core.block"),
    "Workers": ("vllm.v1.worker", "vllm.v1.attention"),
    "KV connectors and offload": ("vllm.distributed", "vllm.v1.kv_offload", "vllm.v1.simple_kv_offload"),
}


def _overview(facts: dict[str, dict[str, Any]], columns: list[tuple[str, ...]]) -> Iterator[str]:
    yield _row("vLLM", "recorded on", "works", "fits", "degraded", "absent", "checks against vLLM's own word")
    yield _row(*["---"] * 7)
    for (version, found), column in zip(facts.items(), columns, strict=True):
        states = Counter(text.partition(":")[0] for text in column)
        recorded = found.get("recorded")
        where = f"{', '.join(recorded['devices'])}, runs: {recorded['runs']}" if recorded else "no, sources only"
        counts = (str(states[state]) for state in ("works", "fits", "degraded", "absent"))
        yield _row(version, where, *counts, _checks(found.get("checks")))
    yield "\nThe checks are those of `tests/vllm`: against vLLM's KV events, counters, outputs and connectors' logs.\n"
    for version, found in facts.items():
        checks = found.get("checks", {})
        for outcome in ("failed", "skipped"):
            yield from (f"- {version} {outcome} {name}: {why}" for name, why in checks.get(outcome, {}).items())


def _checks(checks: dict[str, Any] | None) -> str:
    if checks is None:
        return "none"
    return ", ".join(
        [f"{checks['passed']} passed", *(f"{len(checks[key])} {key}" for key in ("failed", "skipped") if checks[key])]
    )


def changes(version: str, sources: dict[str, Any]) -> Iterator[str]:
    """Tell each hook that fits a version otherwise than the newest one before it that facts are stored about."""
    earlier = [(known, facts) for known, facts in versions().items() if parts(known) < parts(version)]
    before, facts = earlier[-1]
    for declared in all_declared():
        was = how_it_fits(declared, before, facts["sources"].get(declared.target))
        now = how_it_fits(declared, version, sources[declared.target])
        if was != now:
            yield f"{_short(declared.target)}: {was} in {before} -> {now}"


def cell(declared: Declared, version: str, facts: dict[str, Any]) -> str:
    """Return the table's cell of a hook in a version."""
    state = facts.get("recorded", {}).get("hooks", {}).get(declared.target, "")
    if declared.target not in facts["sources"]:
        return "not checked"
    if state.startswith("failed"):
        return f"absent: {state}"
    fits = how_it_fits(declared, version, facts["sources"][declared.target])
    return "works" if fits == "fits" and state == "fired" else fits


def _short(target: str) -> str:
    module, _, path = target.partition(":")
    return f"{module.removeprefix('vllm.')}: {path}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
