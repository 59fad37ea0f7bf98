"""Read and write patterns into the tables of tiles: a warp's list is a program, a block it reads a tile.

Times are the host's at the layer's call plus ticks of the GPU's clock since the kernel began: within a layer they are
right up to the length of a tick, but the GPU began later than the host said. A token's write has a length and no begin
of its own: it is put at the layer's call, as the tool's authors draw it.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.ingest.append import Appender
from kvtrace.ingest.derive.requests import insert_tile_windows
from kvtrace.ingest.importers.engines import ImportedEngine, count_source, new_engine, next_key
from kvtrace.ingest.importers.importer import Progress
from kvtrace.ingest.importers.options import TICK_NS, Options, say
from kvtrace.ingest.importers.unboxkv.pattern_file import Array, Layout, Pattern, Reads, find_layout, read_patterns
from kvtrace.ingest.importers.unboxkv.pattern_plan import Planner, StepPlan
from kvtrace.ingest.importers.unboxkv.pattern_tables import PlanTables

ASSUMED_BLOCK_TOKENS = 16


def load_patterns(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    files: list[tuple[int, Path]],
    options: Options,
    progress: Progress,
) -> list[str]:
    """Read the pattern files of one run, each with its `source_id`; returns warnings.

    Raises:
        KvtraceError: A file is no pattern file, or the bytes of a block can neither be found nor were given.
    """
    warnings: list[str] = []
    run = _Run(connection, name, files, options)
    run.survey(warnings)
    run.describe()
    for source_id, path in files:
        run.load(source_id, path, progress)
    run.finish()
    return warnings + run.warnings()


class _Run:
    """One run on its way into the trace: a first reading finds steps and requests, a second one brings the accesses."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, name: str, files: list[tuple[int, Path]], options: Options
    ) -> None:
        self._connection = connection
        self._files = files
        self._options = options
        self._engine: ImportedEngine = new_engine(connection, name, files[0][0])
        self._layout: Layout | None = None
        self._block_tokens = options.block_tokens or ASSUMED_BLOCK_TOKENS
        self._tick_ns = options.tick_ns or TICK_NS
        self._cache_bytes: int | None = None
        self._opened: dict[int, int] = {}
        self._first: dict[str, dict[int, Pattern]] = {"write": {}, "read": {}}
        self._first_request = next_key(connection, "request", "request")
        self._plans: dict[int, StepPlan] = {}
        self._positions: list[dict[int, int]] = []
        self._seen: set[tuple[str, int, int]] = set()
        self._repeated = 0
        self._unplaced = 0
        self._alone = 0

    def survey(self, warnings: list[str]) -> None:
        """Read every file once: the layout, and one layer's line of each step."""
        for _, path in self._files:
            for number, pattern in read_patterns(path, warnings):
                kind = "read" if pattern.reads else "write"
                self._first[kind].setdefault(pattern.step, pattern)
                self._opened[pattern.step] = min(pattern.start_ns, self._opened.get(pattern.step, pattern.start_ns))
                self._cache_bytes = self._cache_bytes or pattern.cache_bytes
                if self._layout is None and pattern.writes is not None and len(pattern.writes):
                    self._layout = self._found_layout(path, number, pattern)
        if not self._opened:
            raise KvtraceError(f"{self._files[0][1]} holds no pattern; was anything recorded?")

    def _found_layout(self, path: Path, number: int, pattern: Pattern) -> Layout:
        given, tokens = self._options.block_bytes, self._options.block_tokens
        found = find_layout(pattern, given, tokens)
        if found is None and given:
            return Layout(given, tokens or ASSUMED_BLOCK_TOKENS, None)
        if found is None:
            raise KvtraceError(
                f"{path}, line {number}: the bytes written fit no block of K and V known to kvtrace"
                f"{f' of {tokens} tokens' if tokens else ''}; say how many bytes of K a block has in a layer with "
                "--block-bytes"
            )
        return found

    def describe(self) -> None:
        """Fill the tables of the engine, its requests and steps."""
        layout = self._layout
        if layout:
            self._block_tokens = layout.block_tokens
            how = "given" if self._options.block_bytes else "found in the data"
            self._say("block_bytes", f"{layout.block_bytes} of K, as many of V, a layer", how)
            self._say("block_tokens", layout.block_tokens, "found in the data" if layout.blocks else "given or assumed")
        else:
            self._say("block_tokens", self._block_tokens, "given" if self._options.block_tokens else "assumed")
        self._say("tick_ns", self._tick_ns, "given" if self._options.tick_ns else "assumed: as the tool's authors do")
        bytes_ = layout.block_bytes if layout else self._options.block_bytes
        self._engine.facts = {
            "block_size_tokens": self._block_tokens,
            "blocks": self._cache_bytes // bytes_ if bytes_ and self._cache_bytes else None,
            "kv_groups": 1,
        }
        self._engine.started_ns = min(self._opened.values())
        self._engine.insert(self._connection)
        planner = Planner(layout, self._block_tokens)
        tables = PlanTables(self._connection, self._engine.engine_id, self._first_request, self._block_tokens)
        for step in sorted(self._opened):
            plan = planner.plan(step, self._opened[step], self._first["write"].get(step), self._first["read"].get(step))
            tables.add(plan)
            self._plans[step] = plan
        tables.finish(planner)
        self._first.clear()
        self._positions = [{block: at for at, block in enumerate(r.blocks)} for r in planner.requests]

    def _say(self, what: str, value: object, how: str) -> None:
        say(self._connection, f"unboxkv {self._engine.name}: {what}", value, how)

    def load(self, source_id: int, path: Path, progress: Progress) -> None:
        """Read a file's accesses."""
        keys = "process_id engine_id step"
        writes = Appender(self._connection, "gpu_write", f"{keys} layer token part slot start_ns k_ns v_start_ns v_ns")
        programs = Appender(
            self._connection,
            "gpu_program",
            f"{keys} program layer row query_block first_tile tiles tile_tokens start_ns end_ns",
        )
        tiles = Appender(self._connection, "gpu_tile", f"{keys} program tile start_ns k_ns v_start_ns v_ns")
        lines = {"write": 0, "read": 0}
        for number, pattern in read_patterns(path, []):
            kind = "read" if pattern.reads else "write"
            if (kind, pattern.layer, pattern.step) in self._seen:
                self._repeated += 1
                continue
            self._seen.add((kind, pattern.layer, pattern.step))
            lines[kind] += 1
            if pattern.reads:
                self._add_reads(pattern, pattern.reads, programs, tiles)
            elif pattern.writes is not None and self._layout:
                self._add_writes(pattern, pattern.writes, self._layout, writes)
            progress("KV patterns", number, number)
        for appender in (writes, programs, tiles):
            appender.flush()
        for kind, target in (("write", "gpu_write"), ("read", "gpu_tile")):
            if lines[kind]:
                count_source(self._connection, source_id, f"kv_{kind}_pattern", lines[kind], lines[kind], target)

    def _keys(self, pattern: Pattern) -> tuple[int, int, int]:
        return self._engine.engine_id, self._engine.engine_id, pattern.step

    def _add_writes(self, pattern: Pattern, writes: Array, layout: Layout, rows: Appender) -> None:
        slots = layout.blocks_of(writes) * layout.block_tokens + layout.places_of(writes)
        ends = pattern.start_ns + writes[:, 4] * self._tick_ns
        key = self._keys(pattern)
        for token, (slot, end) in enumerate(zip(slots.tolist(), ends.tolist(), strict=True)):
            rows.add(*key, pattern.layer, token, 0, slot, pattern.start_ns, end, pattern.start_ns, end)

    def _add_reads(self, pattern: Pattern, reads: Reads, programs: Appender, tiles: Appender) -> None:
        plan = self._plans[pattern.step]
        prompts = sum(not row.decode for row in plan.rows)
        key, tick = self._keys(pattern), self._tick_ns
        positions = [self._positions_of(plan, prompts + nth, reads, nth) for nth in range(len(reads.k))]
        v_reads = _v_reads(reads.v, positions)
        for nth, (position_of, v_of) in enumerate(zip(positions, v_reads, strict=True)):
            lists: dict[int, list[tuple[int, int, int, int | None, int | None]]] = {}
            for start, length, block in _used(reads.k[nth]).tolist():
                position = position_of.get(block)
                if position is None:
                    self._unplaced += 1
                    continue
                k_start = pattern.start_ns + start * tick
                v_start, v_length = v_of.get(block, (None, 0))
                v_at = None if v_start is None else pattern.start_ns + v_start * tick
                v_end = None if v_at is None else v_at + v_length * tick
                self._alone += v_at is None
                lists.setdefault(position % reads.warps, []).append(
                    (position, k_start, k_start + length * tick, v_at, v_end)
                )
            for warp, found in sorted(lists.items()):
                program = (pattern.layer * len(reads.k) + nth) * reads.warps + warp
                for tile in found:
                    tiles.add(*key, program, *tile)
                end = max(tile[-1] or tile[2] for tile in found)
                first = min(tile[0] for tile in found)
                programs.add(
                    *key, program, pattern.layer, prompts + nth, 0, first, len(found), self._block_tokens,
                    pattern.start_ns, end,
                )  # fmt: skip

    def _positions_of(self, plan: StepPlan, row: int, reads: Reads, nth: int) -> dict[int, int]:
        """Return each block's place in the request's table: as its writes say, or else by the warps' lists."""
        request = plan.rows[row].request if row < len(plan.rows) else None
        if request is not None:
            return self._positions[request.number - 1]
        slots = (reads.k[nth][:, 2] >= 0).nonzero()[0]
        warps, places = slots // reads.entries_a_warp, slots % reads.entries_a_warp
        found: dict[int, int] = dict(
            zip(reads.k[nth][slots, 2].tolist(), (places * reads.warps + warps).tolist(), strict=True)
        )
        return found

    def finish(self) -> None:
        """Fill what follows from the accesses: tile_step and the layers' windows."""
        opened = Appender(self._connection, "tile_step", "process_id engine_id step opened_ns")
        for step, plan in self._plans.items():
            opened.add(self._engine.engine_id, self._engine.engine_id, step, plan.opened_ns)
        opened.flush()
        for column, table in (("programs", "gpu_program"), ("tiles", "gpu_tile"), ("writes", "gpu_write")):
            self._connection.execute(
                f"UPDATE tile_step SET {column} = (SELECT count(*) FROM {table} AS t WHERE t.process_id = "
                "tile_step.process_id AND t.step = tile_step.step) WHERE process_id = ?",
                [self._engine.engine_id],
            )
        insert_tile_windows(self._connection, self._engine.engine_id)

    def warnings(self) -> list[str]:
        """Say what could not be used, and what cannot be told."""
        found = []
        if self._repeated:
            found.append(f"{self._engine.name}: {self._repeated} lines repeat a layer and step; they were left out")
        if self._unplaced:
            found.append(f"{self._engine.name}: {self._unplaced} reads of blocks of nobody's table were left out")
        if self._alone:
            found.append(
                f"{self._engine.name}: V is missing beside {self._alone} reads of K: the tool's lists are too short"
            )
        if unknown := sum(plan.unknown_tokens for plan in self._plans.values()):
            found.append(f"{self._engine.name}: whose {unknown} of the tokens written are cannot be told; NULL")
        return found


def _v_reads(lists: Array, positions: list[dict[int, int]]) -> list[dict[int, tuple[int, int]]]:
    """Start and duration of V reads by block, a request each.

    The tool's kernel writes V of a long table beyond its own list, into the next request's.
    """
    found: list[dict[int, tuple[int, int]]] = [{} for _ in positions]
    for row, triples in enumerate(lists):
        for start, length, block in _used(triples).tolist():
            owner = row - 1 if block not in positions[row] and row and block in positions[row - 1] else row
            found[owner].setdefault(block, (start, length))
    return found


def _used(triples: Array) -> Array:
    used: Array = triples[triples[:, 2] >= 0]
    return used
