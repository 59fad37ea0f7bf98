"""Differences between two runs that make a comparison unfair: settings, software, the work itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.queries import facts

if TYPE_CHECKING:
    import pandas as pd

    from kvtrace.queries import Trace
    from kvtrace.reports.pairing import Pairing

NAMES = {
    "source": "recorded or replayed",
    "vllm_version": "vLLM version",
    "kvtrace_version": "kvtrace version",
    "model": "model",
    "block_size_tokens": "block size in tokens",
    "blocks": "KV blocks of an engine",
    "block_bytes": "bytes of a block",
    "tp_size": "tensor-parallel size",
    "pp_size": "pipeline-parallel size",
    "dp_size": "data-parallel size",
    "engines": "number of engines",
    "gpu": "GPU",
    "depth": "depth of recording",
    "hooks": "installed hooks",
    "host": "host",
}
"""Settings that have to be alike for a fair comparison, unless they are what is compared. Others are listed only."""

_HIDDEN = ("host", "hooks")
"""Settings whose values stay in the trace: pages are passed on."""


UNEQUAL = 0.05
"""Idle shares and loads that differ by more are not compared."""

# Requests overlap; a stretch is busy up to the latest end so far. One that did not end is busy to the end of the run.
_ACTIVITY = """
    WITH span AS (
        SELECT
            least(min(step.start_ns), (SELECT min(coalesce(arrival_ns, queued_ns)) FROM request)) AS first_ns,
            greatest(max(coalesce(end_ns, scheduled_ns)), (SELECT max(finished_ns) FROM request)) AS last_ns
        FROM step
    ), stretch AS (
        SELECT coalesce(arrival_ns, queued_ns) AS start_ns, coalesce(finished_ns, last_ns) AS end_ns
        FROM request, span WHERE engine_id IS NOT NULL
    ), running AS (
        SELECT
            start_ns, end_ns,
            max(end_ns) OVER (ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
        FROM stretch WHERE start_ns IS NOT NULL
    )
    SELECT
        coalesce((SELECT last_ns - first_ns FROM span), 0) AS span_ns,
        coalesce(sum(greatest(0, end_ns - greatest(start_ns, coalesce(before_ns, start_ns)))), 0)::BIGINT AS busy_ns
    FROM running
"""


@dataclass(frozen=True)
class Setting:
    """A setting that is not the same in all runs, with its value in each."""

    name: str
    values: tuple[str, ...]
    unfair: bool


def settings(trace: Trace) -> dict[str, str]:
    """The settings and software of a run, as text; several engines' different values together."""
    run = facts.run_facts(trace)
    engines = trace.sql("SELECT * EXCLUDE (engine_id) FROM engine", "arrow").to_pydict()
    engines["model"] = [facts.model_name(model) for model in engines["model"]]
    parts: dict[str, list[Any]] = {}
    for text in engines.pop("settings", []):
        try:
            members = list(_flat(json.loads(text or "{}")))
        except (ValueError, RecursionError):  # of a redacted trace, or of no recording
            members = [("settings", text)]
        for name, value in members:
            parts.setdefault(name, []).append(value)
    found = {name: _together(values) for name, values in (engines | parts).items()}
    return {
        "source": run.get("source") or "-",
        "vllm_version": run.get("vllm_version") or "-",
        "kvtrace_version": run.get("kvtrace_version") or "-",
        "engines": str(len(engines["model"])),
        **found,
        "gpu": run.get("gpu") or _values(trace, "SELECT DISTINCT name FROM gpu_device ORDER BY ALL"),
        "host": _values(trace, "SELECT DISTINCT host FROM process ORDER BY ALL"),
        "hooks": _values(trace, "SELECT DISTINCT hook FROM hook WHERE state = 'installed' ORDER BY ALL"),
        "depth": _depth(trace),
    }


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a JSON object by their dotted names, so that two long ones differ in a few."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not members:
        yield name, value
    for key, member in members:
        yield from _flat(member, f"{name}.{key}" if name else str(key))


def _values(trace: Trace, sql: str) -> str:
    return _together(next(iter(trace.sql(sql, "arrow").to_pydict().values())))


def _together(values: list[Any]) -> str:
    return ", ".join(dict.fromkeys("-" if value is None else str(value) for value in values)) or "-"


def _depth(trace: Trace) -> str:
    """Return the depth of the recording, which has a price."""
    row = trace.sql("SELECT EXISTS (FROM gpu_program) AS tile, EXISTS (FROM kv_window) AS layer", "arrow").to_pylist()[
        0
    ]
    return "tile" if row["tile"] else "layer" if row["layer"] else "host"


def differing(runs: list[dict[str, str]]) -> list[Setting]:
    """The settings in which the runs differ, those first that make a comparison unfair."""
    names = dict.fromkeys([*NAMES, *(name for run in runs for name in run)])
    found = [
        Setting(name, tuple(run.get(name, "-") for run in runs), name in NAMES)
        for name in names
        if len({run.get(name, "-") for run in runs}) > 1
    ]
    return [setting if setting.name not in _HIDDEN else _hidden(setting) for setting in found]


def _hidden(setting: Setting) -> Setting:
    """The values as numbers: 1 for the first, the same for what equals it."""
    numbers = {value: f"#{number}" for number, value in enumerate(dict.fromkeys(setting.values), 1)}
    return Setting(setting.name, tuple(numbers[value] for value in setting.values), setting.unfair)


def losses(trace: Trace) -> Iterator[str]:
    """Sentences on what a recording lacks that its numbers would need."""
    row = trace.sql(
        """
        SELECT coalesce(sum(dropped), 0)::BIGINT AS dropped, coalesce(sum(torn), 0)::BIGINT AS torn,
            (SELECT count(*) FROM request WHERE engine_id IS NOT NULL AND finished_ns IS NULL) AS unfinished
        FROM stream
        """,
        "arrow",
    ).to_pylist()[0]
    if row["dropped"] or row["torn"]:
        yield f"{row['dropped'] + row['torn']:,} records were lost"
    if row["unfinished"]:
        yield f"{row['unfinished']:,} requests did not end in the recording"


@dataclass(frozen=True)
class Activity:
    """Seconds of a run, and of them those in which it had a request."""

    span_s: float
    busy_s: float

    @property
    def idle_s(self) -> float:
        """Seconds without a request."""
        return max(0.0, self.span_s - self.busy_s)

    @property
    def idle_share(self) -> float:
        """The share of the span without a request."""
        return self.idle_s / self.span_s if self.span_s else 0.0


def activity(trace: Trace) -> Activity:
    """The time from a run's first arrival to its last end, and the part of it in which a request waited or ran."""
    row = trace.sql(_ACTIVITY, "arrow").to_pylist()[0]
    return Activity(row["span_ns"] / 1e9, row["busy_ns"] / 1e9)


def idle(base: Activity, other: Activity) -> str | None:
    """A sentence on idle time that differs between two runs, or None: rates over the whole run would compare it."""
    if abs(base.idle_share - other.idle_share) <= UNEQUAL:
        return None
    return f"idle time: no request for {_idle(base)} against {_idle(other)}"


def _idle(run: Activity) -> str:
    return f"{run.idle_s:,.1f} of {run.span_s:,.1f} s"


def unequal_load(base: pd.DataFrame, other: pd.DataFrame) -> Iterator[str]:
    """Sentences on how far the requests of two runs are from the same load.

    Args:
        base: The answer of query request-latency for the one run.
        other: That for the other run.
    """
    for what, first, second in (
        ("requests", len(base), len(other)),
        ("prompt tokens", int(base.prompt_tokens.sum()), int(other.prompt_tokens.sum())),
        ("output tokens", int(base.output_tokens.sum()), int(other.output_tokens.sum())),
    ):
        if abs(first - second) > UNEQUAL * max(first, second):
            yield f"unequal load: {first:,} {what} against {second:,}"


def work(base: pd.DataFrame, other: pd.DataFrame, pairing: Pairing) -> Iterator[str]:
    """Sentences on how the paired requests are not the same work.

    Prompts are compared by length: their text is not recorded.
    """
    if pairing.base_requests != pairing.other_requests:
        yield f"{pairing.base_requests:,} requests against {pairing.other_requests:,}"
    unpaired = max(pairing.base_requests, pairing.other_requests) - len(pairing.base)
    if unpaired and pairing.method != "order":
        yield f"{unpaired:,} requests of the larger run have no partner and count in no difference"
    first, second = base.set_index("request").loc[pairing.base], other.set_index("request").loc[pairing.other]
    for column, name in (("prompt_tokens", "prompts"), ("output_tokens", "outputs")):
        a, b = first[column].to_numpy(dtype=float, na_value=-1), second[column].to_numpy(dtype=float, na_value=-1)
        if count := int((a != b).sum()):
            sums = f"{a.sum():,.0f} against {b.sum():,.0f} tokens"
            yield f"{count:,} of {len(a):,} pairs have {name} of different length ({sums})"
    if pairing.method == "order" and len(pairing.base):
        yield "requests are paired by order of arrival alone: tag sessions and turns to pair what belongs together"
