"""The hot prefixes of a page: the tree of prefixes that prompts share, the blocks that hold them, and their users.

A prefix is a node of query `hot-prefixes`: a run of blocks that exactly the same prompts have. A block holds it from
the event that made it findable until its eviction or a reset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from kvtrace.viewer.blocks import Changes
from kvtrace.viewer.chunks import Reference, Writer
from kvtrace.viewer.contract import BLOCK_STATES, PREFIX_LEVELS, PREFIX_USERS, PREFIXES
from kvtrace.viewer.source import Source, summarise

MOST_PREFIXES = 32
MOST_USERS = 12
"""Sessions named of each prefix."""

BINS = 512
"""Of a prefix's time, at most so many levels are in the page."""

_USED = BLOCK_STATES.index("used")

_PROMPT = """
    WITH node AS (SELECT * FROM (VALUES {nodes}) n(prefix, block_hash, first_block, blocks)),
    prompt AS MATERIALIZED (
        SELECT request, time_ns, position, block_hash, hit FROM block_lookup WHERE engine_id = {engine} AND counted
    ),
    example AS (
        SELECT prefix, first_block, blocks, min(request) AS request
        FROM node JOIN prompt USING (block_hash) GROUP BY ALL
    ),
    content AS MATERIALIZED (
        SELECT e.prefix, p.block_hash FROM example e JOIN prompt p ON p.request = e.request
        WHERE p.position BETWEEN e.first_block AND e.first_block + e.blocks - 1
    )
"""

_LOOKUPS = """
    SELECT c.prefix, p.request, any_value(r.session) AS session, (min(p.time_ns) - {origin}) // 1000 AS time_us,
        count(*) AS blocks, count(*) FILTER (p.hit) AS hit_blocks
    FROM content c JOIN prompt p USING (block_hash) LEFT JOIN request r ON r.request = p.request
    GROUP BY c.prefix, p.request ORDER BY c.prefix, time_us, p.request
"""

_HOLDS = """
    SELECT c.prefix, h.block_id, coalesce(h.next_op = 'evict', false) AS evicted,
        (h.time_ns - {origin}) // 1000 AS start_us,
        (least(h.next_ns, r.time_ns) - {origin}) // 1000 AS end_us
    FROM (
        SELECT block_id, op, block_hash, time_ns, lead(time_ns) OVER life AS next_ns, lead(op) OVER life AS next_op
        FROM block_event WHERE engine_id = {engine} AND pool = 0 AND op IN ('cache', 'evict')
        WINDOW life AS (PARTITION BY block_id ORDER BY rowid)
    ) h
    JOIN content c USING (block_hash)
    ASOF LEFT JOIN (SELECT time_ns FROM block_event WHERE engine_id = {engine} AND pool = 0 AND op = 'reset') r
        ON h.time_ns < r.time_ns
    WHERE h.op = 'cache'
"""
"""Blocks that hold a block of a prefix, and until when; NULL: until the recording ends."""

_USERS = """
    SELECT prefix, session, count(*) AS requests, max(request) AS request,
        sum(blocks)::BIGINT * {tokens} AS looked_up_tokens, sum(hit_blocks)::BIGINT * {tokens} AS hit_tokens
    FROM lookups GROUP BY prefix, session
    QUALIFY row_number() OVER (PARTITION BY prefix ORDER BY count(*) DESC, session) <= {most}
    ORDER BY prefix, requests DESC, session
"""

_NODES = """
    SELECT node AS prefix, parent, depth, first_token AS before_tokens, tokens, lookups, sessions, looked_up_tokens,
        hit_tokens, repeated_tokens, first_ns - {origin} AS start_ns, last_ns - {origin} AS end_ns,
        printf('%016x', block_hash) AS block_hash
    FROM nodes ORDER BY node
"""


def hot_prefixes(source: Source) -> pa.Table | None:
    """The nodes of all engines; None where nothing tells what was looked up."""
    if source.trace.missing("hot-prefixes"):
        return None
    return source.trace.query("hot-prefixes", format="arrow", nodes=MOST_PREFIXES)


def export_prefixes(
    source: Source, writer: Writer, nodes: pa.Table | None, engine: int, origin_ns: int, changes: Changes
) -> dict[str, list[Reference]]:
    """An engine's hot prefixes; empty lists where there are none.

    Args:
        source: The trace.
        writer: Takes the chunks.
        nodes: As from `hot_prefixes`.
        engine: The engine's number.
        origin_ns: Times are after this.
        changes: Of the engine's blocks.
    """
    own = None if nodes is None else summarise(f"FROM nodes WHERE engine_id = {engine}", nodes=nodes)
    if own is None or not own.num_rows or not len(changes):
        return {data.name: [] for data in (PREFIXES, PREFIX_LEVELS, PREFIX_USERS)}
    tokens = source.row(f"SELECT block_size_tokens AS n FROM engine WHERE engine_id = {engine}")["n"]
    values = (
        f"({row['node']}, {row['block_hash']}::UBIGINT, {row['first_token'] // tokens}, {row['tokens'] // tokens})"
        for row in own.to_pylist()
    )
    prompt = _PROMPT.format(nodes=", ".join(values), engine=engine)
    places = {"engine": engine, "origin": origin_ns}
    lookups = source.table(prompt + _LOOKUPS.format(**places))
    holds = source.table(prompt + _HOLDS.format(**places))
    moves = _moves(holds, changes)
    costs = _costs(moves, holds, own.num_rows, int(changes.time_us[-1]))
    listed = summarise(_NODES.format(origin=origin_ns), nodes=own)
    for name, column in costs.items():
        listed = listed.append_column(name, pa.array(column))
    users = summarise(_USERS.format(tokens=tokens, most=MOST_USERS), lookups=lookups)
    return {
        PREFIXES.name: writer.add("prefixes", listed, PREFIXES),
        PREFIX_LEVELS.name: writer.add("prefix_levels", _levels(moves, lookups), PREFIX_LEVELS),
        PREFIX_USERS.name: writer.add("prefix_users", users, PREFIX_USERS),
    }


def _moves(holds: pa.Table, changes: Changes) -> dict[str, Any]:
    """Changes of the blocks that hold each prefix and of those in use among them, by prefix and time."""
    prefix, block, start = (holds[name].to_numpy().astype(np.int64) for name in ("prefix", "block_id", "start_us"))
    never = int(changes.time_us[-1]) + 1
    end = np.nan_to_num(holds["end_us"].to_numpy().astype(float), nan=never).astype(np.int64)
    # A block's changes lie together, in order of time; a key of both finds those within a hold.
    order = np.argsort(changes.block, kind="stable")
    width = never + 1 - min(0, int(changes.time_us[0]))
    key = changes.block[order].astype(np.int64) * width + changes.time_us[order]
    low = np.searchsorted(key, block * width + start, side="right") - 1
    high = np.searchsorted(key, block * width + end, side="left")
    sizes = np.maximum(0, high - low)
    hold = np.repeat(np.arange(len(block)), sizes)
    first = np.cumsum(sizes) - sizes
    row = order[np.repeat(low, sizes) + np.arange(len(hold)) - np.repeat(first, sizes)]
    used = (changes.state[row] >= _USED).astype(np.int64)
    before = np.where(np.arange(len(hold)) == np.repeat(first, sizes), 0, np.roll(used, 1))
    at_end = np.zeros(len(block), dtype=np.int64)
    at_end[hold] = used  # the last of a hold stays
    over = end < never
    nothing, one = np.zeros(len(hold), dtype=np.int64), np.ones(len(block), dtype=np.int64)
    time = np.concatenate((start, np.maximum(changes.time_us[row], start[hold]), end[over]))
    moved = {
        "prefix": np.concatenate((prefix, prefix[hold], prefix[over])),
        "held": np.concatenate((one, nothing, -one[over])),
        "used": np.concatenate((0 * one, used - before, -at_end[over])),
    }
    by_time = np.lexsort((time, moved["prefix"]))
    return {"time": time[by_time], **{name: values[by_time] for name, values in moved.items()}}


def _costs(moves: dict[str, Any], holds: pa.Table, prefixes: int, last_us: int) -> dict[str, Any]:
    """Of each prefix: its blocks over time in all and in use, the most at once, and blocks of it that were evicted."""
    place = moves["prefix"] - 1
    until_ns = (last_us - moves["time"]) * 1000
    held, used = (np.bincount(place, moves[name] * until_ns, prefixes).astype(np.int64) for name in ("held", "used"))
    gone = holds["prefix"].to_numpy()[holds["evicted"].to_numpy(zero_copy_only=False)]
    evicted = np.bincount(gone - 1, minlength=prefixes)
    most = np.zeros(prefixes, dtype=np.int64)
    np.maximum.at(most, place, _level(moves["held"], moves["prefix"]))
    return {"held_block_ns": held, "used_block_ns": used, "most_blocks": most, "evicted_blocks": evicted}


def _level(change: Any, prefix: Any) -> Any:
    """Sums of changes up to each, by prefix. The changes are ordered by prefix."""
    total = np.cumsum(change)
    starts = np.flatnonzero(np.diff(prefix, prepend=prefix[:1] - 1))
    before = np.concatenate(([0], total))[starts]
    return total - np.repeat(before, np.diff(np.append(starts, len(prefix))))


def _levels(moves: dict[str, Any], lookups: pa.Table) -> pa.Table:
    """Blocks that held each prefix after each stretch in which that changed, and the lookups in the stretch."""
    looked = {name: lookups[name].to_numpy().astype(np.int64) for name in ("prefix", "time_us", "blocks", "hit_blocks")}
    none, zero = np.zeros(len(moves["time"]), dtype=np.int64), np.zeros(len(looked["prefix"]), dtype=np.int64)
    columns = {
        "prefix": np.concatenate((moves["prefix"], looked["prefix"])),
        "time": np.concatenate((moves["time"], looked["time_us"])),
        "held": np.concatenate((moves["held"], zero)),
        "used": np.concatenate((moves["used"], zero)),
        "lookups": np.concatenate((none, zero + 1)),
        "blocks": np.concatenate((none, looked["blocks"])),
        "hits": np.concatenate((none, looked["hit_blocks"])),
    }
    order = np.lexsort((columns["time"], columns["prefix"]))
    columns = {name: values[order] for name, values in columns.items()}
    time, prefix = columns["time"], columns["prefix"]
    bins = (time - time.min()) * BINS // max(1, int(time.max() - time.min()) + 1) + prefix * BINS
    last = np.append(np.flatnonzero(np.diff(bins)), len(bins) - 1)
    first = np.concatenate(([0], last[:-1] + 1))

    def sums(name: str) -> Any:
        return np.add.reduceat(columns[name], first)

    return pa.table(
        {
            "prefix": prefix[last],
            "start_ns": time[last] * 1000,
            "held_blocks": _level(columns["held"], prefix)[last],
            "used_blocks": _level(columns["used"], prefix)[last],
            "lookups": sums("lookups"),
            "looked_up_blocks": sums("blocks"),
            "hit_blocks": sums("hits"),
        }
    )
