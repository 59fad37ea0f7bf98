"""Tile records into tables: which program read or wrote what, when, and whether its blocks are those it should have.

By default as many steps as hold about `DEFAULT_TILES` tiles, evenly spread; a recording can hold a thousand times more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from kvtrace.errors import Tell
from kvtrace.format.tile_file import HAS_SUM, LISTS_BLOCKS
from kvtrace.ingest import columns
from kvtrace.ingest.derive import tile_columns
from kvtrace.ingest.derive.tile_columns import Array, StepTiles
from kvtrace.ingest.importers.importer import Progress

DEFAULT_TILES = 20_000_000


class TileCounts(NamedTuple):
    """Counts of what the tile files of a process hold, and how much of it the trace has."""

    steps: int
    ingested_steps: int
    tiles: int
    lost_steps: int
    filtered_steps: int
    torn: int
    unwritten_steps: int = 0

    def warnings(self) -> Iterator[str]:
        """Say which tiles are missing, and why."""
        if self.ingested_steps < self.steps:
            yield (
                f"the trace has the tiles of {self.ingested_steps:,} of {self.steps:,} recorded steps "
                f"({self.tiles:,} tiles in all): --all-tiles takes every one"
            )
        if self.lost_steps:
            yield f"tiles of {self.lost_steps:,} steps were dropped whole: the ring was full; --ring-mb makes it larger"
        if self.unwritten_steps:
            yield f"tiles of the last {self.unwritten_steps:,} steps could not be written"
        if self.torn:
            yield "the last step's tiles are torn and were left out: the process died while it wrote them"


class Owner(NamedTuple):
    """Source of the records: keys of table `process`, and the clock's offset to UNIX time."""

    process_id: int
    engine_id: int | None
    offset_ns: int


_TYPES: dict[str, pa.DataType] = {"i4": pa.int32(), "i8": pa.int64(), "u8": pa.uint64(), "u1": pa.uint8()}


def import_tiles(
    connection: duckdb.DuckDBPyConnection,
    directory: Path,
    engine_of_pid: Callable[[int], int | None],
    process_id: int,
    offset_ns: int,
    *,
    most_tiles: int | None = DEFAULT_TILES,
    progress: Progress = lambda what, done, total: None,
    tell: Tell | None = None,
) -> TileCounts:
    """Fill `tile_step`, `gpu_program`, `gpu_tile`, `gpu_block_list` and `gpu_write` from a process's tile files.

    Raises:
        KvtraceError: A file is damaged, and there is no `tell`, or of a newer kvtrace.
    """
    chunks, torn = tile_columns.headers(directory, tell)
    total = sum(chunk.tiles for chunk in chunks)
    every = 1 if most_tiles is None else max(1, -(-total // most_tiles))
    ingested = 0
    for number, step in enumerate(tile_columns.steps(directory, tell)):
        if number % every:
            continue
        owner = Owner(process_id, engine_of_pid(step.chunk.engine_pid), offset_ns)
        for table, arrays in _tables(step, owner):
            if len(next(iter(arrays.values()))):
                _insert(connection, table, arrays)
        ingested += 1
        progress("tiles", number, len(chunks))
    return TileCounts(
        len(chunks),
        ingested,
        total,
        sum(chunk.lost_steps for chunk in chunks),
        sum(chunk.filtered_steps for chunk in chunks),
        torn,
    )


def _insert(connection: duckdb.DuckDBPyConnection, table: str, arrays: dict[str, Array]) -> None:
    arrow = pa.table(
        {
            name: columns.numbers(np.ascontiguousarray(values), _TYPES[values.dtype.str[1:]])
            for name, values in arrays.items()
        }
    )
    connection.register("columns_of_tiles", arrow)
    try:
        names = ", ".join(arrays)
        connection.execute(f"INSERT INTO {table} BY NAME SELECT {names} FROM columns_of_tiles")
    finally:
        connection.unregister("columns_of_tiles")


def _tables(step: StepTiles, owner: Owner) -> Iterator[tuple[str, dict[str, Array]]]:
    programs, times = step.programs, tile_columns.times(step)
    ends = np.cumsum(programs["tiles"].astype(np.int64)) - 1
    listed = tile_columns.block_ids(step)
    right, wrong = _checked(step, listed)

    def key(count: int) -> dict[str, Array]:
        keys: dict[str, Array] = {"process_id": np.full(count, owner.process_id, np.int32)}
        if owner.engine_id is not None:
            keys["engine_id"] = np.full(count, owner.engine_id, np.int32)
        return keys | {"step": np.full(count, step.chunk.step, np.int32)}

    yield (
        "tile_step",
        key(1)
        | {
            "opened_ns": np.array([step.opened_ns + owner.offset_ns]),
            "programs": np.array([len(programs)], np.int32),
            "tiles": np.array([len(times.tile)]),
            "writes": np.array([len(step.writes)], np.int32),
            "checked_programs": np.array([right + wrong], np.int32),
            "wrong_programs": np.array([wrong], np.int32),
            "lost_steps": np.array([step.chunk.lost_steps], np.int32),
            "filtered_steps": np.array([step.chunk.filtered_steps], np.int32),
        },
    )
    yield (
        "gpu_program",
        key(len(programs))
        | {
            name: programs[name].astype(np.int32)
            for name in ("layer", "head", "row", "query_block", "first_tile", "tiles")
        }
        | {
            "program": np.arange(len(programs), dtype=np.int32),
            "tile_tokens": tile_columns.tile_tokens(programs).astype(np.int32),
            "start_ns": step.started_ns(programs) + owner.offset_ns,
            "end_ns": (times.v_ns[ends] if len(programs) else np.zeros(0, np.int64)) + owner.offset_ns,
        },
    )
    yield (
        "gpu_tile",
        key(len(times.tile))
        | {
            "program": times.program.astype(np.int32),
            "tile": times.tile.astype(np.int32),
            "start_ns": times.k_start_ns + owner.offset_ns,
            "k_ns": times.k_ns + owner.offset_ns,
            "v_ns": times.v_ns + owner.offset_ns,
        },
    )
    yield "gpu_block_list", key(len(listed.block_id)) | _block_list(step, listed)
    yield "gpu_write", key(len(step.writes)) | _writes(step, owner.offset_ns)


def _block_list(step: StepTiles, listed: tile_columns.BlockIds) -> dict[str, Array]:
    programs = step.programs[listed.program]
    unit = np.minimum(tile_columns.tile_tokens(programs), tile_columns.block_tokens(programs))
    return {
        "layer": programs["layer"].astype(np.int32),
        "row": programs["row"].astype(np.int32),
        "first_token": (listed.block_index * unit).astype(np.int32),
        "kernel_block": listed.block_id.astype(np.int32),
        "kernel_block_tokens": tile_columns.block_tokens(programs).astype(np.int32),
    }


def _writes(step: StepTiles, offset_ns: int) -> dict[str, Array]:
    writes = step.writes
    start = step.started_ns(writes) + offset_ns
    k_ns = start + writes["k_ticks"].astype(np.int64) * tile_columns.TICK_NS
    return {
        "layer": writes["layer"].astype(np.int32),
        "token": writes["token"].astype(np.int32),
        "part": writes["part"].astype(np.int32),
        "slot": writes["slot"].astype(np.int64),
        "start_ns": start,
        "k_ns": k_ns,
        "v_ns": k_ns + writes["v_ticks"].astype(np.int64) * tile_columns.TICK_NS,
    }


def _checked(step: StepTiles, listed: tile_columns.BlockIds) -> tuple[int, int]:
    """Count the programs whose sums agree with the block ids listed for the same queries, and those that do not."""
    programs = step.programs
    lists = np.flatnonzero(programs["flags"] & LISTS_BLOCKS)
    has_sum = programs[(programs["flags"] & HAS_SUM) != 0]
    if not len(lists):
        return 0, 0
    weighted = listed.block_id.astype(np.uint64) * (2 * listed.block_index.astype(np.uint64) + 1)
    sums = np.zeros(len(programs), np.uint64)
    np.add.at(sums, listed.program, weighted)
    expected = np.unique(np.stack([_place(programs[lists]), sums[lists] & 0xFFFFFFFF], axis=1), axis=0)
    found = np.stack([_place(has_sum), has_sum["sum"].astype(np.uint64)], axis=1)
    packed = np.ascontiguousarray(expected).view("u8,u8").ravel(), np.ascontiguousarray(found).view("u8,u8").ravel()
    agree = int(np.isin(packed[1], packed[0]).sum())
    return agree, len(found) - agree


def _place(programs: Any) -> Array:
    """A program's row, query block and first tile as one number."""
    place: Array = (
        (programs["row"].astype(np.uint64) << 32)
        | (programs["query_block"].astype(np.uint64) << 16)
        | programs["first_tile"].astype(np.uint64)
    )
    return place
