"""`kvtrace lab explorer`: a static site over the runs of any sweeps. Files only: index.html, runs.json, trace pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from kvtrace.errors import KvtraceError
from kvtrace.lab.policies import policy_label
from kvtrace.lab.results import Phase, Result
from kvtrace.lab.sources import load_results

FIGURES = {
    "output_tokens_per_s": "output tok/s",
    "requests_per_s": "requests/s",
    "jct_s_mean": "JCT mean s",
    "jct_s_p99": "JCT p99 s",
    "ttft_ms_mean": "TTFT mean ms",
    "ttft_ms_p99": "TTFT p99 ms",
    "tpot_ms_mean": "TPOT mean ms",
    "cached_share": "hit rate",
    "preemptions": "preemptions",
}
FILTERS = {
    "study": "study",
    "model": "model",
    "capacity": "KV tokens",
    "workload": "profile",
    "requests": "requests",
    "cache": "cache mode",
    "policy": "policy",
    "rate": "jobs/s",
    "block_size": "block size",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "made": "made",
    "status": "status",
}
_MAX_PAGE_BYTES = 5_000_000
"""Limit of a run's trace page. A site has many of them."""


class MakePage(Protocol):
    """Writes the page of a trace: the viewer's `make_page`, which this room does not import."""

    def __call__(self, traces: Sequence[Path], path: Path, *, max_bytes: int) -> object:
        """Write the page at `path`, of at most `max_bytes` bytes."""


def write_site(sources: Sequence[Path], target: Path, make_page: MakePage | None = None) -> int:
    """Write the site; returns the number of its rows, one a run and phase.

    Args:
        sources: As of `load_sweeps`.
        target: The folder to write.
        make_page: Writes the page of a run's trace; without it the site has none.

    Raises:
        KvtraceError: One has no results, or the site cannot be written.
    """
    try:
        (target / "runs").mkdir(parents=True, exist_ok=True)
        data = runs_of(sources, lambda result: _page(result, target, make_page) if make_page else None)
        (target / "runs.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        (target / "index.html").write_text(explorer_page(data), encoding="utf-8")
    except OSError as error:
        raise KvtraceError(f"{target} cannot be written: {error.strerror}") from error
    return len(data["runs"])


def runs_of(sources: Sequence[Path], page: Callable[[Result], str | None] = lambda _: None) -> dict[str, Any]:
    """Make the content of `runs.json`: rows, one a run and phase, and the names of their filters and figures.

    Args:
        sources: As of `load_sweeps`.
        page: Makes the page of a run's trace, and returns its address in the site.

    Raises:
        KvtraceError: One has no results or cannot be read.
    """
    rows = [row for source in sources for result in load_results(source) for row in _rows(result, page(result))]
    return {"filters": FILTERS, "figures": FIGURES, "runs": rows}


def explorer_page(data: Mapping[str, Any]) -> str:
    """Make the page over what `runs.json` holds."""
    template = resources.files("kvtrace.lab").joinpath("assets/explorer.html").read_text(encoding="utf-8")
    # "<" cannot end the script element: pages open from disk, where a script may not fetch runs.json
    inline = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("{{data}}", inline)


def _rows(result: Result, page: str | None) -> Iterator[dict[str, Any]]:
    cell = result.cell
    common = {
        "cell": result.place.name,
        "study": cell.study,
        "made": result.made,
        "model": Path(cell.model).name,
        "capacity": cell.kv_tokens,
        "policy": policy_label(cell.policy),
        "block_size": cell.block_size,
        "max_num_seqs": cell.max_num_seqs,
        "max_num_batched_tokens": cell.max_num_batched_tokens,
        "status": result.status,
        "error": result.error,
        "page": page,
        "device": result.facts.get("device"),
        "software": result.facts.get("software", {}),
        "axes": {axis: value if isinstance(value, int | float) else str(value) for axis, value in cell.axes.items()},
    }
    for phase in result.phases:
        cold = all(earlier.workload["name"] != phase.workload["name"] for earlier in result.phases[: phase.position])
        cache = "off" if not cell.prefix_caching else "cold" if cold else "warm"
        yield {
            **common,
            "workload": phase.workload["name"],
            "kind": phase.workload["parameters"].get("kind"),
            "requests": phase.workload["requests"],
            "sha256": phase.workload["sha256"],
            "rate": phase.workload["parameters"].get("rate"),
            "cache": cache,
            "figures": {name: phase.figures.get(name) for name in FIGURES},
            **_drawn(phase),
        }
    if not result.phases:
        yield {**common, "workload": "+".join(cell.phases), "figures": {}}


def _drawn(phase: Phase) -> dict[str, Any]:
    """How many draws of step times a predicted run has, and the figures' mean, low and high over them."""
    if not phase.draws:
        return {}
    spreads = {name: phase.spread(name) for name in FIGURES if name in phase.draws}
    return {"draws": max(map(len, phase.draws.values())), "spreads": spreads}


def _page(result: Result, target: Path, make_page: MakePage) -> str | None:
    """Write a run's trace page beside the site; its address in it."""
    if result.trace is None:
        return None
    name = f"runs/{result.place.name}.html"
    make_page([result.trace], target / name, max_bytes=_MAX_PAGE_BYTES)
    return name
