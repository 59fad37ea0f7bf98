"""Declares the data sets of a page, their columns and their enums. The only place that does.

Export checks every table against its declaration. The page's TypeScript is generated from the same declarations:
python -m kvtrace.viewer.contract > viewer/web/src/data/contract.ts, which `make page` runs.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pyarrow as pa

from kvtrace import events

FORMAT = "kvtrace-page"
VERSION = 2
"""Raised when a column changes its meaning or goes; added ones do not raise it."""

REQUEST_STATES = ("queued", "prefill", "decode", "preempted", "resumed")
"""States of a request; `segments.state` is an index into this."""

BLOCK_STATES = ("empty", "cached", "used", "shared")
"""Nothing findable in it; free, but findable by hash; referenced once; referenced more than once."""

Enum = type[enum.IntEnum]

_TYPES = {"number": "number", "text": "string", "flag": "boolean"}
_WIDTH = 120
_UNITS = {"_ns": "ns", "_us": "us", "_tokens": "tokens", "_blocks": "blocks", "_requests": "requests"}


class Column(NamedTuple):
    """A column of a data set. Its name carries its unit: times are ns after the run's `origin_ns`."""

    name: str
    type: Literal["number", "text", "flag"] = "number"
    null: bool = True
    """Unknown in some rows."""
    optional: bool = False
    """Missing where nothing of the kind was recorded."""
    delta: bool = False
    """Packed as its first value, then differences."""
    enum: Enum | None = None
    doc: str = ""

    @property
    def unit(self) -> str:
        """The unit that the name carries; empty for counts, numbers of things, text and flags."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "")


class DataSet(NamedTuple):
    """A table of a page: what a row is, at most how many rows a view draws at once, and its columns."""

    name: str
    doc: str
    drawn: int
    columns: tuple[Column, ...]

    @property
    def deltas(self) -> tuple[str, ...]:
        """Columns that are packed as differences."""
        return tuple(column.name for column in self.columns if column.delta)

    def check(self, table: pa.Table) -> None:
        """Compare a table's columns and their types with the declaration.

        Raises:
            ValueError: a column is missing, not declared, or of another type.
        """
        declared = {column.name: column for column in self.columns}
        for name in table.column_names:
            if name not in declared:
                raise ValueError(f"{self.name}.{name}: exported, but not declared in viewer/contract.py")
            if (found := _type_of(table.schema.field(name).type)) not in {declared[name].type, "unknown"}:
                raise ValueError(f"{self.name}.{name}: exported as {found}, declared as {declared[name].type}")
        for column in self.columns:
            if not column.optional and column.name not in table.column_names:
                raise ValueError(f"{self.name}.{column.name}: declared in viewer/contract.py, but not exported")


def _type_of(arrow: pa.DataType) -> str:
    if pa.types.is_null(arrow):
        return "unknown"
    if pa.types.is_boolean(arrow):
        return "flag"
    return "number" if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) else "text"


def _numbers(names: str, *, null: bool = True, optional: bool = False) -> Iterator[Column]:
    for name in names.split():
        yield Column(name, null=null, optional=optional)


def _texts(names: str) -> Iterator[Column]:
    for name in names.split():
        yield Column(name, "text")


def _key(name: str, doc: str = "") -> Column:
    return Column(name, null=False, delta=True, doc=doc)


def _known(name: str, doc: str = "") -> Column:
    return Column(name, null=False, doc=doc)


def _enum(name: str, values: Enum, doc: str = "", *, null: bool = True) -> Column:
    return Column(name, "text", null=null, enum=values, doc=doc)


STEPS = DataSet(
    "steps",
    "A scheduler step, or a bar that stands for several; columns of view `step`.",
    20_000,
    (
        _key("step"),
        _known("steps", "steps that the row stands for"),
        _key("start_ns", "no earlier than the end of the step before"),
        Column("end_ns"),
        Column("duration_ns"),
        Column("schedule_ns", doc="in `schedule`"),
        Column("model_ns", doc="from schedule's return to the output"),
        Column("update_ns", doc="in `update_from_output`"),
        *_numbers(" ".join(f"{phase.name}_requests {phase.name}_tokens" for phase in events.Phase)),
        *_numbers("scheduled_requests scheduled_tokens budget_tokens budget_left_tokens"),
        _known("cached_tokens", "found in the GPU's prefix cache by the step's admissions"),
        _known("external_cached_tokens", "found by the connector"),
        *_numbers("output_tokens finished_requests running waiting used_blocks free_blocks cached_blocks"),
        Column("free_cached_blocks", doc="free and findable; derived from the block events"),
        _known("evicted_blocks"),
        Column("preempted_requests"),
        _enum("admission_limit", events.Limit),
        Column("limited_steps", doc="steps whose head of the waiting queue was not admitted"),
        *_numbers("limit_request limit_need_blocks limit_free_blocks"),
        *_numbers(
            "gpu_busy_ns gpu_idle_ns gpu_launch_gap_ns gpu_kernels gpu_kernel_ns gpu_attention_ns gpu_gemm_ns"
            " gpu_kv_write_ns",
            optional=True,
        ),
    ),
)

SHARES = DataSet(
    "shares",
    "A request's part of a step; table `step_request`.",
    20_000,
    (
        _key("step"),
        _known("request"),
        _enum("phase", events.Phase),
        *_numbers("scheduled_tokens computed_tokens new_blocks"),
    ),
)

REQUESTS = DataSet(
    "requests",
    "A request; columns of table `request`.",
    12_000,
    (
        _known("request"),
        *_texts("internal_id external_id session tenant lora"),
        *_numbers("turn priority prompt_tokens max_tokens output_tokens local_cached_tokens external_cached_tokens"),
        *_numbers("preemptions released_tokens recomputed_tokens first_step last_step steps"),
        _enum("finish_reason", events.FinishReason),
        Column("head_steps", doc="steps that it was the head of the waiting queue"),
        _enum("wait_limit", events.Limit, "the most frequent reason then"),
        *_numbers("wait_need_blocks wait_free_blocks wait_step"),
        Column("miss_verdict", "text", doc="of its first admission, from `prefix_miss`, as all that follow"),
        Column("miss_why", "text"),
        *_numbers("avoidable_tokens avoidable_duration_ns miss_request miss_lost_ns"),
        _key("start_ns"),
        _known("end_ns", "its end, or that of the recording"),
        *_numbers("arrival_ns queued_ns scheduled_ns first_token_ns finished_ns"),
        Column("gap_start_ns", doc="end of the job's turn before"),
    ),
)

SEGMENTS = DataSet(
    "segments",
    "A stretch in which a request was in one state; of the chunk of requests that names it in `segments`.",
    0,
    (
        _key("row", "the request's row in that chunk"),
        _known("state", "index into REQUEST_STATES"),
        _key("start_ns"),
        _known("duration_ns"),
        Column("step", doc="in which it began"),
    ),
)

PREEMPTIONS = DataSet(
    "preemptions",
    "A preemption of a request.",
    0,
    (
        _known("request"),
        Column("step"),
        _key("start_ns"),
        *_numbers("computed_tokens blocks"),
        Column("preempted_for", doc="the request that needed its blocks (derived)"),
        Column("taken_blocks", doc="of its blocks, those allocated to others in that step"),
        *_numbers("resume_step resume_ns"),
    ),
)

BLOCKS = DataSet(
    "blocks",
    "A change of a KV block, by block and time; a chunk begins with each block's state before it.",
    500_000,
    (
        _key("block"),
        _key("time_us"),
        _known("state", "index into BLOCK_STATES"),
        _known("owner", "the request that holds or last held it, or -1"),
        _known("evicted", "1: this change took a cached block for something else"),
    ),
)

TRANSFERS = DataSet(
    "transfers",
    "A copy of KV between tiers; columns of view `transfer`.",
    100_000,
    (
        _known("transfer"),
        Column("process_id"),
        Column("connector", "text"),
        _enum("direction", events.Direction),
        _enum("from_tier", events.Tier),
        _enum("to_tier", events.Tier),
        *_numbers("bytes blocks requests step"),
        Column("success", "flag"),
        _key("start_ns", "submitted"),
        Column("started_ns"),
        Column("end_ns", doc="known as ended"),
        Column("device_ns", doc="the copy's time on the GPU"),
        Column("reported_ns", doc="the copy's time as the connector reports it"),
    ),
)

PINS = DataSet(
    "pins",
    "A block held by something else than a running request; columns of view `pin`.",
    100_000,
    (
        Column("pin"),
        _known("block"),
        _enum("cause", events.PinCause),
        Column("request"),
        _key("start_ns"),
        *_numbers("end_ns requested_ttl_ns"),
        _enum("end_reason", events.PinEnd),
    ),
)

TIERS = DataSet(
    "tiers",
    "Blocks that an offload tier holds after a stretch in which that changed.",
    100_000,
    (
        _enum("tier", events.Tier),
        Column("connector", "text"),
        _key("start_ns", "the last change in the stretch"),
        *_numbers("occupied_blocks most_blocks"),
    ),
)

KERNELS = DataSet(
    "kernels",
    "A GPU activity of a profile: a kernel, copy or fill.",
    200_000,
    (
        _key("start_ns"),
        _known("end_ns"),
        *_texts("kind category name"),
        *_numbers("device stream step layer bytes"),
        Column("direction", "text"),
    ),
)

KERNEL_BINS = DataSet(
    "kernel_bins",
    "How long a category of GPU activities ran in a bin of time.",
    200_000,
    (_key("start_ns"), _known("end_ns"), Column("category", "text"), *_numbers("busy_ns activities")),
)

ACCESSES = DataSet(
    "accesses",
    "An access of a layer to a KV block for a request in a step; view `kv_access`, heads together.",
    100_000,
    (
        Column("layer"),
        _known("block"),
        Column("request"),
        _enum("kind", events.AccessKind),
        Column("observed", "flag"),
        _key("start_ns"),
        _known("end_ns"),
        _known("accesses"),
    ),
)

ACCESS_BINS = DataSet(
    "access_bins",
    "A stretch in which any block of a group of neighbours was read or written.",
    100_000,
    (
        _known("block"),
        _known("last_block"),
        _key("start_ns"),
        _known("end_ns"),
        _known("accesses", "that began in it"),
        _enum("kind", events.AccessKind),
    ),
)

ACCESS_BLOCKS = DataSet("access_blocks", "A block that a step accessed.", 0, (_key("block"),))

WINDOWS = DataSet(
    "windows",
    "A layer's time on the GPU in a step; view `kv_window`, or from the first access of a kind to the last.",
    0,
    (
        Column("layer"),
        _enum("kind", events.AccessKind),
        _key("start_ns"),
        Column("end_ns"),
        Column("observed", "flag"),
    ),
)

PREFIXES = DataSet(
    "prefixes",
    "A run of blocks that the same prompts have, by place in the tree; a node of query `hot-prefixes`.",
    0,
    (
        _key("prefix"),
        Column("parent", doc="the prefix that it goes on from"),
        _known("depth", "prefixes above it"),
        _known("before_tokens", "of the prompt before it"),
        *_numbers("tokens lookups sessions looked_up_tokens", null=False),
        *_numbers("hit_tokens"),
        _known("repeated_tokens", "of those looked up, those after the first time"),
        _known("start_ns", "first lookup"),
        _known("end_ns", "last lookup"),
        Column("block_hash", "text", doc="its last block, which names the whole prefix, hexadecimal"),
        _known("held_block_ns", "blocks that held it, over time"),
        _known("used_block_ns", "of that, while requests used them"),
        _known("most_blocks", "that held it at once"),
        _known("evicted_blocks", "evictions of its blocks"),
    ),
)

PREFIX_LEVELS = DataSet(
    "prefix_levels",
    "What a prefix held after a stretch in which that changed, and the lookups in it; by prefix and time.",
    100_000,
    (
        _key("prefix"),
        _key("start_ns", "the last change in the stretch"),
        _known("held_blocks", "findable, in use or not"),
        _known("used_blocks", "of them, in use"),
        *_numbers("lookups looked_up_blocks hit_blocks", null=False),
    ),
)

PREFIX_USERS = DataSet(
    "prefix_users",
    "A session whose prompts have a prefix, the sessions with the most requests first.",
    0,
    (
        _key("prefix"),
        Column("session", "text"),
        *_numbers("requests", null=False),
        _known("request", "the last one of them"),
        *_numbers("looked_up_tokens hit_tokens", null=False),
    ),
)

LANE_TABLES = (TRANSFERS, PINS, TIERS, PREFIXES, PREFIX_LEVELS, PREFIX_USERS)
"""Data sets that a page has as one list of chunks of each engine, under their names."""

DATA_SETS = (
    *(STEPS, SHARES, REQUESTS, SEGMENTS, PREEMPTIONS, BLOCKS),
    *LANE_TABLES,
    *(KERNELS, KERNEL_BINS, ACCESSES, ACCESS_BINS, ACCESS_BLOCKS, WINDOWS),
)


def typescript() -> str:
    """Generate the same declarations in TypeScript, formatted as `make format` does."""
    used = dict.fromkeys(column.enum for data in DATA_SETS for column in data.columns if column.enum)
    return "\n".join(
        [
            "// Generated from viewer/contract.py by `make page`; not edited by hand.",
            "",
            f'export const FORMAT = "{FORMAT}";',
            f"export const VERSION = {VERSION};",
            "",
            f"export const REQUEST_STATES = [{', '.join(map(_quoted, REQUEST_STATES))}] as const;",
            f"export const BLOCK_STATES = [{', '.join(map(_quoted, BLOCK_STATES))}] as const;",
            "",
            *map(_enum_type, used),
            "",
            "// Tables that an engine has as one list of chunks.",
            f"export type LaneTable = {' | '.join(_quoted(data.name) for data in LANE_TABLES)};",
            "",
            "export interface Tables {",
            *map(_row_type, DATA_SETS),
            "}",
            "",
            "export type TableName = keyof Tables;",
            "",
            "// Rows that a view draws at once, and the columns that a chunk may be without.",
            "export const TABLES: Record<TableName, { drawn: number; optional: readonly string[] }> = {",
            *map(_table_facts, DATA_SETS),
            "};",
            "",
        ]
    )


def _enum_type(values: Enum) -> str:
    names = [_quoted(value.name) for value in values]
    line = f"export type {values.__name__} = {' | '.join(names)};"
    if len(line) <= _WIDTH:
        return line
    return f"export type {values.__name__} =" + "".join(f"\n  | {name}" for name in names) + ";"


def _row_type(data: DataSet) -> str:
    return "\n".join([f"  // {data.doc}", f"  {data.name}: {{", *map(_member, data.columns), "  };"])


def _table_facts(data: DataSet) -> str:
    optional = [_quoted(column.name) for column in data.columns if column.optional]
    line = f"  {data.name}: {{ drawn: {data.drawn}, optional: [{', '.join(optional)}] }},"
    if len(line) <= _WIDTH:
        return line
    listed = "".join(f"      {name},\n" for name in optional)
    return f"  {data.name}: {{\n    drawn: {data.drawn},\n    optional: [\n{listed}    ],\n  }},"


def _member(column: Column) -> str:
    kind = column.enum.__name__ if column.enum else _TYPES[column.type]
    null = " | null" if column.null or column.optional else ""
    notes = ", ".join(filter(None, (column.unit, column.doc)))
    return f"    {column.name}: {kind}{null};" + (f" // {notes}" if notes else "")


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    sys.stdout.write(typescript())
