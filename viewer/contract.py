"""Declares the data sets of a page, their columns and their enums; those of one query each are in `tables/`.

Export checks every table against its declaration. The page's TypeScript is generated from the same declarations:
python -m kvtrace.viewer.contract > viewer/web/src/data/contract.ts, which `make page` runs.
"""

from __future__ import annotations

import sys

from kvtrace import events
from kvtrace.viewer import tables
from kvtrace.viewer.data_set import Column, DataSet, Enum, enumerated, key, known, numbers, texts

FORMAT = "kvtrace-page"
VERSION = 2
"""Raised when a column changes its meaning or goes; added ones do not raise it."""

REQUEST_STATES = ("queued", "prefill", "decode", "preempted", "resumed")
"""States of a request; `segments.state` is an index into this."""

BLOCK_STATES = ("empty", "cached", "used", "shared")
"""Nothing findable in it; free, but findable by hash; referenced once; referenced more than once."""

_TYPES = {"number": "number", "text": "string", "flag": "boolean"}
_WIDTH = 120

STEPS = DataSet(
    "steps",
    "A scheduler step, or a bar that stands for several; columns of view `step`.",
    20_000,
    (
        key("step"),
        known("steps", "steps that the row stands for"),
        key("start_ns", "no earlier than the end of the step before"),
        Column("end_ns"),
        Column("duration_ns"),
        Column("schedule_ns", doc="in `schedule`"),
        Column("model_ns", doc="from schedule's return to the output"),
        Column("update_ns", doc="in `update_from_output`"),
        *numbers(" ".join(f"{phase.name}_requests {phase.name}_tokens" for phase in events.Phase)),
        *numbers("scheduled_requests scheduled_tokens budget_tokens budget_left_tokens"),
        known("cached_tokens", "found in the GPU's prefix cache by the step's admissions"),
        known("external_cached_tokens", "found by the connector"),
        *numbers("output_tokens finished_requests running waiting used_blocks free_blocks cached_blocks"),
        Column("free_cached_blocks", doc="free and findable; derived from the block events"),
        known("evicted_blocks"),
        Column("preempted_requests"),
        enumerated("admission_limit", events.Limit),
        Column("limited_steps", doc="steps whose head of the waiting queue was not admitted"),
        *numbers("limit_request limit_need_blocks limit_free_blocks"),
        *numbers(
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
        key("step"),
        known("request"),
        enumerated("phase", events.Phase),
        *numbers("scheduled_tokens computed_tokens new_blocks"),
    ),
)

REQUESTS = DataSet(
    "requests",
    "A request; columns of table `request`.",
    12_000,
    (
        known("request"),
        *texts("internal_id external_id session tenant lora"),
        *numbers("turn priority prompt_tokens max_tokens output_tokens local_cached_tokens external_cached_tokens"),
        *numbers("preemptions released_tokens recomputed_tokens first_step last_step steps"),
        enumerated("finish_reason", events.FinishReason),
        Column("head_steps", doc="steps that it was the head of the waiting queue"),
        enumerated("wait_limit", events.Limit, "the most frequent reason then"),
        *numbers("wait_need_blocks wait_free_blocks wait_step"),
        Column("miss_verdict", "text", doc="of its first admission, from `prefix_miss`, as all that follow"),
        Column("miss_why", "text"),
        *numbers("avoidable_tokens avoidable_duration_ns miss_request miss_lost_ns"),
        key("start_ns"),
        known("end_ns", "its end, or that of the recording"),
        *numbers("arrival_ns queued_ns scheduled_ns first_token_ns finished_ns"),
        Column("gap_start_ns", doc="end of the job's turn before"),
    ),
)

SEGMENTS = DataSet(
    "segments",
    "A stretch in which a request was in one state; of the chunk of requests that names it in `segments`.",
    0,
    (
        key("row", "the request's row in that chunk"),
        known("state", "index into REQUEST_STATES"),
        key("start_ns"),
        known("duration_ns"),
        Column("step", doc="in which it began"),
    ),
)

PREEMPTIONS = DataSet(
    "preemptions",
    "A preemption of a request.",
    0,
    (
        known("request"),
        Column("step"),
        key("start_ns"),
        *numbers("computed_tokens blocks"),
        Column("preempted_for", doc="the request that needed its blocks (derived)"),
        Column("taken_blocks", doc="of its blocks, those allocated to others in that step"),
        *numbers("resume_step resume_ns"),
    ),
)

BLOCKS = DataSet(
    "blocks",
    "A change of a KV block, by block and time; a chunk begins with each block's state before it.",
    500_000,
    (
        key("block"),
        key("time_us"),
        known("state", "index into BLOCK_STATES"),
        known("owner", "the request that holds or last held it, or -1"),
        known("evicted", "1: this change took a cached block for something else"),
    ),
)

KERNELS = DataSet(
    "kernels",
    "A GPU activity of a profile: a kernel, copy or fill.",
    200_000,
    (
        key("start_ns"),
        known("end_ns"),
        *texts("kind category name"),
        *numbers("device stream step layer bytes"),
        Column("direction", "text"),
    ),
)

KERNEL_BINS = DataSet(
    "kernel_bins",
    "How long a category of GPU activities ran in a bin of time.",
    200_000,
    (key("start_ns"), known("end_ns"), Column("category", "text"), *numbers("busy_ns activities")),
)

ACCESSES = DataSet(
    "accesses",
    "An access of a layer to a KV block for a request in a step; view `kv_access`, heads together.",
    100_000,
    (
        Column("layer"),
        known("block"),
        Column("request"),
        enumerated("kind", events.AccessKind),
        Column("observed", "flag"),
        key("start_ns"),
        known("end_ns"),
        known("accesses"),
    ),
)

ACCESS_BINS = DataSet(
    "access_bins",
    "A stretch in which any block of a group of neighbours was read or written.",
    100_000,
    (
        known("block"),
        known("last_block"),
        key("start_ns"),
        known("end_ns"),
        known("accesses", "that began in it"),
        enumerated("kind", events.AccessKind),
    ),
)

ACCESS_BLOCKS = DataSet("access_blocks", "A block that a step accessed.", 0, (key("block"),))

WINDOWS = DataSet(
    "windows",
    "A layer's time on the GPU in a step; view `kv_window`, or from the first access of a kind to the last.",
    0,
    (
        Column("layer"),
        enumerated("kind", events.AccessKind),
        key("start_ns"),
        Column("end_ns"),
        Column("observed", "flag"),
    ),
)

PREFIXES = DataSet(
    "prefixes",
    "A run of blocks that the same prompts have, by place in the tree; a node of query `hot-prefixes`.",
    0,
    (
        key("prefix"),
        Column("parent", doc="the prefix that it goes on from"),
        known("depth", "prefixes above it"),
        known("before_tokens", "of the prompt before it"),
        *numbers("tokens lookups sessions looked_up_tokens", null=False),
        *numbers("hit_tokens"),
        known("repeated_tokens", "of those looked up, those after the first time"),
        known("start_ns", "first lookup"),
        known("end_ns", "last lookup"),
        Column("block_hash", "text", doc="its last block, which names the whole prefix, hexadecimal"),
        known("held_block_ns", "blocks that held it, over time"),
        known("used_block_ns", "of that, while requests used them"),
        known("most_blocks", "that held it at once"),
        known("evicted_blocks", "evictions of its blocks"),
    ),
)

PREFIX_LEVELS = DataSet(
    "prefix_levels",
    "What a prefix held after a stretch in which that changed, and the lookups in it; by prefix and time.",
    100_000,
    (
        key("prefix"),
        key("start_ns", "the last change in the stretch"),
        known("held_blocks", "findable, in use or not"),
        known("used_blocks", "of them, in use"),
        *numbers("lookups looked_up_blocks hit_blocks", null=False),
    ),
)

PREFIX_USERS = DataSet(
    "prefix_users",
    "A session whose prompts have a prefix, the sessions with the most requests first.",
    0,
    (
        key("prefix"),
        Column("session", "text"),
        *numbers("requests", null=False),
        known("request", "the last one of them"),
        *numbers("looked_up_tokens hit_tokens", null=False),
    ),
)

LANE_TABLES = (*(table.data for table in tables.declared()), PREFIXES, PREFIX_LEVELS, PREFIX_USERS)
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
