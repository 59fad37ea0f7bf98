"""What else differs between two runs than what they were to compare: settings, software, the work itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class Setting:
    """A setting that is not the same in all runs, with its value in each."""

    name: str
    values: tuple[str, ...]
    unfair: bool


def settings(trace: Trace) -> dict[str, str]:
    """What a run was made with, as text; several engines' different values together."""
    facts = run_facts(trace)
    engines = trace.sql("SELECT * EXCLUDE (engine_id) FROM engine", "arrow").to_pydict()
    engines["model"] = [_without_folder(model) for model in engines["model"]]
    found = {name: _together(values) for name, values in engines.items()}
    return {
        "source": facts.get("source") or "-",
        "vllm_version": facts.get("vllm_version") or "-",
        "kvtrace_version": facts.get("kvtrace_version") or "-",
        "engines": str(len(next(iter(engines.values()), []))),
        **found,
        "gpu": _values(trace, "SELECT DISTINCT name FROM gpu_device ORDER BY ALL"),
        "host": _values(trace, "SELECT DISTINCT host FROM process ORDER BY ALL"),
        "hooks": _values(trace, "SELECT DISTINCT hook FROM hook WHERE state = 'installed' ORDER BY ALL"),
        "depth": _depth(trace),
    }


def run_facts(trace: Trace) -> dict[str, str | None]:
    """The rows of table `run`."""
    columns = trace.sql("SELECT key, value FROM run", "arrow").to_pydict()
    return dict(zip(columns["key"], columns["value"], strict=True))


def _without_folder(model: str | None) -> str | None:
    return PurePath(model).name if model and PurePath(model).is_absolute() else model


def _values(trace: Trace, sql: str) -> str:
    return _together(next(iter(trace.sql(sql, "arrow").to_pydict().values())))


def _together(values: list[Any]) -> str:
    return ", ".join(dict.fromkeys("-" if value is None else str(value) for value in values)) or "-"


def _depth(trace: Trace) -> str:
    """How deep the recording looked, which has a price."""
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
    """What a recording lacks that its numbers would need."""
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


def work(base: pd.DataFrame, other: pd.DataFrame, pairing: Pairing) -> Iterator[str]:
    """In what the paired requests are not the same work. Prompts are compared by length: their text is not recorded."""
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
