"""Steps with prefill that CUDA graphs could have launched sooner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtrace.queries.findings.rule import Basis, Finding, Rule, by_engine, count, percent, rows_of
from kvtrace.queries.text import duration
from kvtrace.queries.trace import Trace

_LEAST_SHARE = 0.02
_REMEDY = (
    "vLLM has graphs for twice `--max-num-seqs` tokens, and for at most 512: raise it, or `max_cudagraph_capture_size` "
    "of `--compilation-config`: `kvtrace advise` predicts what that gives. Graphs take GPU memory."
)


def find(trace: Trace) -> Iterator[Finding]:
    """One finding for each engine that lost a fiftieth of its time so, by what its own launches with graphs take.

    That such a step takes as long as its launch is inferred: a GPU computes 512 tokens sooner.
    """
    for where, rows in by_engine(rows_of(trace, "step-launches")):
        modes = {row["graph_mode"]: row for row in rows if row["phase"] == "prefill"}
        eager, piecewise = modes.get("eager"), modes.get("piecewise")
        if eager is None or piecewise is None or not eager["share"]:
            continue
        usual_ms = _usual_ms(piecewise)
        lost_ms = eager["small_ms"] - eager["small_steps"] * usual_ms
        share = lost_ms / (eager["total_ms"] / eager["share"])
        if share < _LEAST_SHARE:
            continue
        steps, spent_ms = eager["small_steps"], eager["small_ms"]
        text = (
            f"{where}{count(steps, 'step')} with prefill and at most 512 tokens ran without CUDA graphs. Launching one "
            f"took the host {duration(spent_ms / steps)} in the mean; with graphs, which steps of up to "
            f"{piecewise['to_tokens']:,} tokens had, it takes {duration(usual_ms)}: {duration(lost_ms)} in all "
            f"({percent(share)} of the steps' time)."
        )
        yield Finding("graphs", text, lost_ms, Basis.inferred, "step-launches", 2, _REMEDY)


def _usual_ms(row: dict[str, Any]) -> float:
    """Return the median launch, of an engine that was idle where no other is known."""
    return float(row["launch_ms"] if row["launch_ms"] is not None else row["idle_launch_ms"])


RULE = Rule(("step-launches",), find)
