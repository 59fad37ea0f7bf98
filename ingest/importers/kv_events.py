"""The importer of KV events that vLLM itself published, and their comparison with the recorded block events.

A file has one batch a line, as JSON: `sequence` (vLLM's number of the batch), `ts` (UNIX seconds), optionally
`data_parallel_rank`, and `events`, a list of objects as vLLM publishes them: `type` is BlockStored, BlockRemoved or
AllBlocksCleared, the other fields have vLLM's names. `python -m kvtrace.probes.kv_events` records such a file. Tokens
are not in it, and are not read if they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvtrace.format.jsonlines import parse_json
from kvtrace.ingest.append import Appender, nanoseconds, whole
from kvtrace.ingest.importers.engines import add_source, count_source
from kvtrace.ingest.importers.importer import Importer, Join, Target, first_object
from kvtrace.ingest.importers.lines import LeftOut, Line, read_lines

if TYPE_CHECKING:
    import duckdb

PROGRESS_LINES = 10_000
LONGEST_TYPE = 60
EXPECTED = "expected what `python -m kvtrace.probes.kv_events` writes"
_OPS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_COLUMNS = "source_id sequence position time_ns op block_hash parent_hash block_size_tokens medium kv_group dp_rank"
_COMPARED = (("stored", "cache"), ("removed", "evict"))
_UNMATCHED = """
    SELECT coalesce(sum(least(published, recorded)), 0)::BIGINT,
        coalesce(sum(greatest(published - recorded, 0)), 0)::BIGINT
    FROM (
        SELECT p.block_hash, p.n AS published, coalesce(r.n, 0) AS recorded
        FROM (SELECT block_hash, count(*) AS n FROM kv_event WHERE op = ? AND coalesce(medium, 'GPU') = 'GPU'
                GROUP BY block_hash) AS p
            LEFT JOIN (SELECT block_hash, count(*) AS n FROM block_event WHERE op = ? AND pool = 0 GROUP BY block_hash)
                AS r USING (block_hash)
    )
"""


def load(target: Target, source_id: int, path: Path) -> list[str]:
    """Read a file of KV-event batches; returns warnings.

    Raises:
        KvtraceError: The file cannot be read, or no line of it is a batch. Others are left out and warned of.
    """
    counts: Counter[tuple[str, str | None]] = Counter()
    warnings: list[str] = []
    rows = Appender(target.connection, "kv_event", _COLUMNS)
    before: dict[Any, int] = {}
    lost = read = 0
    left_out = LeftOut(path, "no batch of KV events")
    for line, batch in _batches(path, left_out, warnings):
        try:
            events = [(event, _rows(batch, position, event)) for position, event in enumerate(batch.events)]
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            left_out.add(line, error)
            continue
        read += 1
        lost += max(0, batch.sequence - before.get(batch.rank, batch.sequence - 1) - 1)
        before[batch.rank] = batch.sequence
        for event, new in events:
            what = str(event.get("type"))[:LONGEST_TYPE]
            op = _OPS.get(what)
            counts[what, "kv_event" if op else None] += len(new) if op else 1
            for row in new:
                rows.add(source_id, *row)
        if not line.number % PROGRESS_LINES:
            target.progress("KV events", line.number, line.number)
    if left_out.count and not read:
        raise left_out.refusal(EXPECTED)
    rows.flush()
    warnings += left_out.warnings()
    if lost:
        warnings.append(f"{path.name}: {lost} batches are missing between those that were recorded")
    add_source(target.connection, source_id, "kv_events", path.name)
    for (what, table), n in sorted(counts.items(), key=str):
        count_source(target.connection, source_id, what, n, n if table else None, table)
    return warnings


class _Batch(NamedTuple):
    """Batch of events that vLLM published at once."""

    sequence: int
    rank: int | None
    time_ns: int
    events: list[Any]


def _batches(path: Path, left_out: LeftOut, warnings: list[str]) -> Iterator[tuple[Line, _Batch]]:
    for line in read_lines(path, EXPECTED, warnings):
        try:
            yield line, _batch(parse_json(line.text.encode()))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if not line.whole:
                warnings.append(f"{path.name}: the last line was being written and is left out")
                return
            left_out.add(line, error)


def _batch(fields: Any) -> _Batch:
    events, time_ns = fields["events"], nanoseconds(fields["ts"], 1e9)
    if not isinstance(events, list):
        raise TypeError("events is no list")
    if time_ns is None:
        raise ValueError(f"ts is {fields['ts']!r:.40}, no time in seconds")
    sequence = _number(fields, "sequence", 62)
    if sequence is None:
        raise ValueError("sequence is null")
    return _Batch(sequence, _number(fields, "data_parallel_rank"), time_ns, events)


def _number(fields: dict[str, Any], name: str, bits: int = 31) -> int | None:
    """A whole number, if there is one."""
    value = fields.get(name)
    found = whole(value, bits)
    if value is not None and found is None:
        raise ValueError(f"{name} is {value!r:.40}, no whole number of {bits} bits")
    return found


def _rows(batch: _Batch, position: int, event: dict[str, Any]) -> list[tuple[Any, ...]]:
    op = _OPS.get(str(event.get("type")))
    if op is None:
        return []
    medium, group = event.get("medium"), _number(event, "group_idx", 8)
    if group is not None and group < 0:
        raise ValueError(f"group_idx is {group}")
    head = (batch.sequence, position, batch.time_ns, op)
    tail = (
        _number(event, "block_size"), None if medium is None else str(medium)[:LONGEST_TYPE], group,
        batch.rank,
    )  # fmt: skip
    if op == "cleared":
        return [(*head, None, None, *tail)]
    rows = []
    parent = low_64_bits(event.get("parent_block_hash"))
    for block_hash in event["block_hashes"]:
        own = low_64_bits(block_hash)
        rows.append((*head, own, parent if op == "stored" else None, *tail))
        parent = own
    return rows


def low_64_bits(block_hash: object) -> int | None:
    """A published hash as block_event has it: vLLM publishes 64-bit integers, or the whole hash as hex text here."""
    if block_hash is None:
        return None
    if isinstance(block_hash, str):
        return int.from_bytes(bytes.fromhex(block_hash)[-8:], "big")
    if isinstance(block_hash, int):
        return block_hash & 0xFFFF_FFFF_FFFF_FFFF
    raise TypeError(f"a block hash is {block_hash!r:.40}")


def compare(connection: duckdb.DuckDBPyConnection) -> list[Join]:
    """Published events that were also recorded, by hash and how often; kept in table `join_count`."""
    counts: list[Join] = []
    if not connection.execute("SELECT 1 FROM block_event LIMIT 1").fetchall():
        return counts
    for published, recorded in _COMPARED:
        matched, unmatched = connection.execute(_UNMATCHED, [published, recorded]).fetchall()[0]
        counts.append((f"kv_event {published} -> block_event {recorded}", matched, unmatched))
        connection.execute("INSERT INTO join_count VALUES (?, ?, ?)", list(counts[-1]))
    return counts


def _recognises(path: Path, head: bytes) -> bool:
    return {"sequence", "events"} <= first_object(head).keys()


IMPORTER = Importer(
    kind="kv_events",
    option="--kv-events",
    help="vLLM's KV events, recorded (.jsonl)",
    says="blocks that vLLM stored and removed, by hash",
    lacks="block numbers, requests and steps",
    recognises=_recognises,
    load=load,
    compare=compare,
)
