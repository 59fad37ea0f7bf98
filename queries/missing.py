"""Advice on tables that a query needs and that a trace has no rows of."""

from __future__ import annotations

from collections.abc import Iterable

from kvtrace.queries.facts import run_facts
from kvtrace.queries.trace import Trace

_PROFILE = (
    "record with `kvtrace record --nsys`, or ingest a profile: `kvtrace ingest RUN --nsight FILE` or "
    "`--torch-trace FILE`"
)
_TILES = "record with `kvtrace record --kv-level tile` (Triton's attention backend, on a GPU)"
_WINDOWS = "record on a GPU with `kvtrace record --kv-level layer`, the default there"
_CONNECTOR = "run vLLM with a KV connector or an offload tier (docs/offload.md)"
_DERIVED = "ingest derives it; it needs finished steps and admitted prefix lookups (docs/misses.md)"
_EVENTS = 'recorded by default, so no such event happened or its hook is missing: `kvtrace sql TRACE "FROM hook"`'

_OTHERS = "the trace is made of {source}, which does not tell it; a recording of vLLM (`kvtrace record`) does"

_ADVICE = {
    **dict.fromkeys(("gpu_tile", "gpu_program", "gpu_write", "gpu_block_list", "tile_step"), _TILES),
    **dict.fromkeys(("kv_window", "kv_layer", "gpu_clock", "gpu_memory", "kv_access"), _WINDOWS),
    **dict.fromkeys(("alignment", "source", "kernel_name", "cpu_op", "nvtx", "graph_node", "step_gpu"), _PROFILE),
    **dict.fromkeys(("connector", "connector_call", "connector_lookup", "connector_news"), _CONNECTOR),
    **dict.fromkeys(("prefix_miss", "cost_model"), _DERIVED),
    **dict.fromkeys(
        ("pin", "pin_start", "pin_end"), "record a KV connector, a streaming session or a scheduler that pins blocks"
    ),
    "reuse_size": "no lookups were recorded, or there are more than 20 million references: `kvtrace reuse --sample`",
    **dict.fromkeys(
        ("handover_load", "handover_read", "handover_notice"),
        "record both engines of a prefill/decode pair with NixlConnector (docs/many-hosts.md)",
    ),
    "handover": "ingest the recordings of both engines of a prefill/decode pair together (docs/many-hosts.md)",
    "kv_event": "ingest vLLM's published KV events: `kvtrace ingest RUN --kv-events FILE`",
}
_PREFIXES = {"gpu_": _PROFILE, "transfer": _CONNECTOR, "tier_": _CONNECTOR}
"""For tables that are not named above, by how their names begin."""


def made_of(trace: Trace) -> str | None:
    """Return the kinds of files that a trace was made of; None if a recording is among them."""
    source = run_facts(trace).get("source")
    return None if source is None or "capture" in source else source


def how_to_record(table: str, source: str | None = None) -> str:
    """The way to record rows of a table; `source` is what a trace without a recording was made of."""
    if table in _ADVICE:
        return _ADVICE[table]
    events = _EVENTS if source is None else _OTHERS.format(source=source)
    return next((text for prefix, text in _PREFIXES.items() if table.startswith(prefix)), events)


def advice(tables: Iterable[str], source: str | None = None) -> list[str]:
    """The ways to record rows of all these tables, without repetition."""
    return list(dict.fromkeys(how_to_record(table, source) for table in tables))
