"""Runs all rules over a trace and ranks what they find."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from kvtrace.queries.findings import rules as folder
from kvtrace.queries.findings.rule import Finding, Rule
from kvtrace.queries.trace import Trace

NOTHING = "Nothing stands out: no request waited for long, and the prefix cache lost nothing that was used again."
"""The sentence of a run without findings."""

UNKNOWN = "This trace says nothing of steps, waiting or the prefix cache: what cost most is not known."
"""The sentence of a trace made of files that do not tell what an engine did."""

MOST = 7
"""Findings that are shown: more than a reader takes in would hide the first ones."""


def without_findings(trace: Trace) -> str:
    """Return the sentence that takes the place of findings where there are none."""
    (told,) = trace.sql(
        "SELECT EXISTS (FROM source) AS files, EXISTS (FROM step_schedule) OR EXISTS (FROM request_event) "
        "OR EXISTS (FROM prefix_lookup) OR EXISTS (FROM request_queued) AS work",
        format="arrow",
    ).to_pylist()
    return UNKNOWN if told["files"] and not told["work"] else NOTHING


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its module's name."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    return {name: import_module(f"{folder.__name__}.{name}").RULE for name in names}


def find_findings(trace: Trace, most: int = MOST) -> list[Finding]:
    """Find what cost the run most, the most expensive first.

    Args:
        trace: An open trace.
        most: Findings to return at most.

    Returns:
        Findings of the rules whose queries the trace can answer; empty where nothing stands out.

    Raises:
        KvtraceError: A query failed.
    """
    found = [
        finding
        for rule in rules().values()
        if not any(trace.missing(query) for query in rule.queries)
        for finding in rule.find(trace)
    ]
    return sorted(found, key=lambda finding: -finding.cost_ms)[:most]
