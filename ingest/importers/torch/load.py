"""Reads PyTorch profiler traces: kernels, copies, runtime calls and host operators, into the GPU tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvtrace.errors import KvtraceError
from kvtrace.ingest.append import well_formed, whole
from kvtrace.ingest.gpu import align
from kvtrace.ingest.gpu.align import Alignment
from kvtrace.ingest.gpu.attribute import Marked
from kvtrace.ingest.gpu.enums import AlignmentMethod
from kvtrace.ingest.gpu.kernels import KernelNames, Name
from kvtrace.ingest.guard import LARGEST_TIME_BITS, LONGEST_NS
from kvtrace.ingest.importers.importer import Target
from kvtrace.ingest.importers.torch.chrome import ChromeTrace, Event, nanoseconds

BATCH_EVENTS = 50_000
_FAR = 1 << LARGEST_TIME_BITS
_LARGEST_ID = 1 << 31
_KINDS = {"kernel": "kernel", "concurrent_kernel": "kernel", "mtia_ccp_events": "kernel"}
_KINDS_ENDING = {"memcpy": "memcpy", "memset": "memset", "_sync": "sync"}
_APIS_ENDING = {"runtime": "runtime", "driver": "driver"}
"""Categories, in lower case, by how they end: PyTorch 1.8 wrote Runtime, later ones cuda_runtime, xpu_runtime, ..."""
_RANKED_PID = re.compile(r"\[(.+?)\]\s*(-?\d+)")
"""How SGLang writes the processes of merged ranks: "[TP00] 84"."""


def _schema(text: str, numbers: str) -> pa.Schema:
    names = numbers.split()
    types: dict[str, pa.DataType] = {text: pa.string(), **dict.fromkeys(names, pa.int64()), "name": pa.string()}
    return pa.schema(types)


_LAYOUT: dict[str, pa.Schema] = {
    "torch_activity": _schema(
        "kind",
        "start_ns duration_ns pid device context stream correlation graph_node kernel_name_id bytes "
        "grid_x grid_y grid_z block_x block_y block_z registers shared_bytes host",
    ),
    "torch_call": _schema("api", "start_ns duration_ns pid tid correlation host"),
    "torch_sync": _schema("kind", "start_ns duration_ns device context stream correlation event host"),
    "torch_op": _schema("category", "start_ns duration_ns pid tid external_id"),
}
_LEFT_OUT = ("gpu_user_annotation", "cuda_profiler_range")
"""PyTorch's copies of host annotations on the GPU's timeline; and kernels that CUPTI ran again to count: PyTorch
spreads them evenly over the time, so theirs is made up."""
_COPY_KINDS = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "HtoH": "host_to_host",
    "PtoP": "peer_to_peer",
}
_SYNC_TYPE = (
    "CASE name WHEN 'Event Sync' THEN 1 WHEN 'Stream Wait Event' THEN 2 WHEN 'Stream Sync' THEN 3 "
    "WHEN 'Context Sync' THEN 4 END"
)
"""CUPTI's codes, which Kineto turned into words."""
_MEMORY = {"Pageable": "pageable", "Pinned": "pinned", "Device": "device", "Managed": "managed", "Array": "array"}


def load_torch_trace(target: Target, source_id: int, path: Path) -> list[str]:
    """Read a trace; returns warnings.

    Raises:
        KvtraceError: The file cannot be read as such a trace.
    """
    trace = ChromeTrace(path)
    connection = target.connection
    staged = _Staged(connection, source_id, target.kernels)
    for number, event in enumerate(trace.events(), 1):
        staged.add(event, number)
        if number % BATCH_EVENTS == 0:
            staged.flush()
            target.progress("torch events", number, number)
    staged.flush()
    if not staged.counts:
        raise KvtraceError(f"{path} has no event; was anything profiled?")
    base_ns = _integer(trace.facts.get("baseTimeNanoseconds"), LARGEST_TIME_BITS)
    alignment = Alignment(AlignmentMethod.utc_epoch, base_ns or 0)
    version = trace.facts.get("pytorch_version")
    schema = trace.facts.get("schemaVersion")
    row = [source_id, "torch", path.name, _text(version), _text(schema), alignment.offset_ns or None]
    connection.execute("INSERT INTO source VALUES (?, ?, ?, ?, ?, ?)", row)
    align.insert(connection, source_id, alignment, [])
    staged.insert(alignment)
    target.profiles[source_id] = Marked([], alignment)  # kvtrace's own ranges are not in such traces
    mended = [f"{path.name}: {what} were mended: {count}" for what, count in sorted(trace.mended.items())]
    return [*staged.warnings(path), *mended]


def _text(value: object) -> str | None:
    return None if value is None else well_formed(str(value))


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


class _Staged:
    """Events on their way into the tables: first as rows of temporary tables, for the clock's base comes last."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, source_id: int, kernels: KernelNames) -> None:
        self._connection = connection
        self._source_id = source_id
        self._kernels = kernels
        self._keys: dict[str, int] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _LAYOUT}
        self._processes: dict[tuple[int, int | None], str] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._hosts: dict[str, int] = {}
        self._places: dict[str, tuple[str | None, str | None]] = {}
        self.counts: Counter[tuple[str, str | None]] = Counter()
        self._unusable: dict[str, list[int]] = {}
        for table, schema in _LAYOUT.items():
            columns = ", ".join(f"{f.name} {'VARCHAR' if pa.types.is_string(f.type) else 'BIGINT'}" for f in schema)
            connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} ({columns})")

    def add(self, event: Event, number: int) -> None:
        """Take the event of that number, or count it as one that kvtrace has no place for."""
        kind, category = str(event.get("ph")), well_formed(str(event.get("cat") or event.get("name") or ""))
        if kind == "M":
            self._name(event)
            self.counts["metadata", None] += 1
            return
        start_ns, duration_ns = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if kind != "X" or category in _LEFT_OUT:
            self.counts[well_formed(f"ph {kind}: {category}"), None] += 1
        elif start_ns is None or duration_ns is None or not _is_span(start_ns, duration_ns):
            self._unusable.setdefault(category, []).append(number)
            self.counts[category, None] += 1
        else:
            activity, api = self._places.get(category) or self._place(category)
            if activity == "sync":
                self._sync(event, start_ns, duration_ns)
                self.counts[category, "gpu_sync"] += 1
            elif activity is not None:
                self._activity(event, activity, start_ns, duration_ns)
                self.counts[category, "gpu_activity"] += 1
            elif api is not None:
                self._call(event, api, start_ns, duration_ns)
                self.counts[category, "gpu_call"] += 1
            else:
                self._op(event, category, start_ns, duration_ns)
                self.counts[category, "cpu_op"] += 1

    def _place(self, category: str) -> tuple[str | None, str | None]:
        """The kind of activity or the API of a category; neither of what the host did."""
        word = category.lower()
        kind = _KINDS.get(word) or next((k for end, k in _KINDS_ENDING.items() if word.endswith(end)), None)
        api = next((a for end, a in _APIS_ENDING.items() if word.endswith(end)), None)
        self._places[category] = kind, api
        return kind, api

    def _where(self, event: Event) -> tuple[int | None, int | None, int | None]:
        """Process, thread, and number of the rank where the pid names one."""
        given, tid = event.get("pid"), event.get("tid")
        if type(given) is int and type(tid) is int and 0 <= given < _LARGEST_ID and 0 <= tid < _LARGEST_ID:
            return given, tid, None
        if isinstance(given, str) and (match := _RANKED_PID.fullmatch(given)):
            host = self._hosts.setdefault(well_formed(match[1]), len(self._hosts) + 1)
            pid = _integer(match[2], 31)
            if pid is not None:
                self._processes.setdefault((pid, host), well_formed(given))
            return pid, _integer(tid, 31), host
        return _integer(given, 31), _integer(tid, 31), None

    def _rank(self, event: Event) -> int | None:
        """The number of the rank in the pid of what ran on a GPU: its pid is that of the device."""
        return self._where(event)[2] if self._hosts or isinstance(event.get("pid"), str) else None

    def _name(self, event: Event) -> None:
        text, (pid, tid, host) = _args(event).get("name"), self._where(event)
        if event.get("name") == "process_name" and pid is not None and isinstance(text, str):
            self._processes[pid, host] = self._processes.get((pid, host), well_formed(text))
        if event.get("name") == "thread_name" and pid is not None and tid is not None and isinstance(text, str):
            self._threads.setdefault((pid, tid), well_formed(text))

    def _activity(self, event: Event, kind: str, start_ns: int, duration_ns: int) -> None:
        args = _args(event)
        name = well_formed(str(event.get("name")))
        key = None
        if kind == "kernel":
            key = self._keys.get(name)
            if key is None:
                key = self._keys[name] = self._kernels.add(Name(self._source_id, None, name, None))
        grid, block = (_three(args.get(what)) for what in ("grid", "block"))
        sizes = [_integer(value) for value in (*grid, *block)]
        ids = [_integer(args.get(name)) for name in ("device", "context", "stream", "correlation", "graph node id")]
        rest = [_integer(args.get(name)) for name in ("bytes", "registers per thread", "shared memory")]
        pid = None  # PyTorch puts the device here; the process is that of the call
        host = self._rank(event)
        row = (kind, start_ns, duration_ns, pid, *ids[:4], ids[4] or None, key, rest[0], *sizes, *rest[1:], host, name)
        self._rows["torch_activity"].append(row)

    def _call(self, event: Event, api: str, start_ns: int, duration_ns: int) -> None:
        correlation, name = _integer(_args(event).get("correlation")), well_formed(str(event.get("name")))
        pid, tid, host = self._where(event)
        self._rows["torch_call"].append((api, start_ns, duration_ns, pid, tid, correlation, host, name))

    def _sync(self, event: Event, start_ns: int, duration_ns: int) -> None:
        args = _args(event)
        ids = [_natural(args.get(name)) for name in ("device", "context", "stream", "correlation")]
        waited = _natural(args.get("wait_on_cuda_event_id"))
        name = well_formed(str(event.get("name")))
        self._rows["torch_sync"].append(("sync", start_ns, duration_ns, *ids, waited, self._rank(event), name))

    def _op(self, event: Event, category: str, start_ns: int, duration_ns: int) -> None:
        external, name = _integer(_args(event).get("External id")), well_formed(str(event.get("name")))
        self._rows["torch_op"].append((category, start_ns, duration_ns, *self._where(event)[:2], external, name))

    def flush(self) -> None:
        """Move the rows taken so far to DuckDB."""
        for table, rows in self._rows.items():
            if not rows:
                continue
            batch = pa.RecordBatch.from_arrays(
                [
                    pa.array(values, field.type)
                    for values, field in zip(zip(*rows, strict=True), _LAYOUT[table], strict=True)
                ],
                schema=_LAYOUT[table],
            )
            self._connection.register("taken", pa.RecordBatchReader.from_batches(batch.schema, [batch]))
            try:
                self._connection.execute(f"INSERT INTO {table} FROM taken")
            finally:
                self._connection.unregister("taken")
            rows.clear()

    def insert(self, alignment: Alignment) -> None:
        """Fill the trace's tables."""
        self._connection.execute(f"CREATE OR REPLACE TEMP MACRO unix_ns(t) AS {alignment.sql('t')}")
        for statement in _inserts(self._source_id):
            self._connection.execute(statement)
        for table in _LAYOUT:
            self._connection.execute(f"DROP TABLE {table}")
        named = [(self._source_id, pid, text, host) for (pid, host), text in self._processes.items()]
        threads = [(self._source_id, *key, text) for key, text in self._threads.items()]
        counts = [
            (self._source_id, what, n, n if to else None, to) for (what, to), n in sorted(self.counts.items(), key=str)
        ]
        for table, rows in (("profiled_process", named), ("profiled_thread", threads), ("source_table", counts)):
            if rows:
                self._connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def warnings(self, path: Path) -> list[str]:
        """Say what could not be used."""
        found = sorted(what for what, _ in self.counts)
        none = f"{path.name}: none of its events is a kernel, a copy, a call or a range; it has {', '.join(found[:5])}"
        return ([] if any(to for _, to in self.counts) else [none]) + [
            f"{path.name}: {len(numbers)} events of category {category} have no time, or one that cannot be, and were "
            f"left out: event {', '.join(map(str, numbers[:3]))}{', ...' if len(numbers) > 3 else ''}"
            for category, numbers in sorted(self._unusable.items())[:10]
        ]


def _is_span(start_ns: int, duration_ns: int) -> bool:
    """Say whether something can have begun then and taken so long."""
    return -_FAR < start_ns < _FAR and 0 <= duration_ns <= LONGEST_NS


def _integer(value: object, bits: int = 63) -> int | None:
    """A whole number that fits, as JSON has it or in text."""
    return None if isinstance(value, float) else whole(value, bits)


def _natural(value: object) -> int | None:
    """A whole number that is none of PyTorch's -1, which stands for none."""
    number = _integer(value)
    return None if number is None or number < 0 else number


def _three(sizes: object) -> tuple[object, object, object]:
    x, y, z = (*(sizes if isinstance(sizes, list) else ()), None, None, None)[:3]
    return x, y, z


_CALLERS = """
    caller AS (
        SELECT coalesce(host, 0) AS rank, correlation, CASE WHEN min(pid) = max(pid) THEN min(pid) END AS pid
        FROM torch_call WHERE correlation <> 0 GROUP BY ALL
    ), alone AS (
        SELECT coalesce(host, 0) AS rank, CASE WHEN min(pid) = max(pid) THEN min(pid) END AS pid
        FROM torch_call GROUP BY ALL
    )
"""
"""The processes whose calls have a correlation id, and those that are the only one of their rank."""
_JOIN_CALLERS = """
    LEFT JOIN caller ON caller.correlation = t.correlation AND caller.rank = coalesce(t.host, 0)
    LEFT JOIN alone ON alone.rank = coalesce(t.host, 0)
"""


def _inserts(source_id: int) -> list[str]:
    return [
        f"""
        INSERT INTO gpu_call BY NAME
        SELECT row_number() OVER () + (SELECT coalesce(max(call_id), 0) FROM gpu_call) AS call_id,
            {source_id} AS source_id, api, unix_ns(start_ns) AS start_ns, unix_ns(start_ns + duration_ns) AS end_ns,
            pid, tid, name, correlation, host
        FROM torch_call
        """,
        f"""
        CREATE OR REPLACE TEMP TABLE torch_numbered AS
        SELECT row_number() OVER () + (SELECT coalesce(max(activity_id), 0) FROM gpu_activity) AS activity_id, *,
            {_copy_fields()} FROM torch_activity
        """,
        f"""
        INSERT INTO gpu_activity BY NAME
        WITH {_CALLERS}
        SELECT activity_id, {source_id} AS source_id, kind, unix_ns(start_ns) AS start_ns,
            unix_ns(start_ns + duration_ns) AS end_ns, coalesce(caller.pid, alone.pid) AS pid, device, context, stream,
            t.correlation, graph_node, kernel_name_id, host
        FROM torch_numbered t {_JOIN_CALLERS}
        ORDER BY activity_id
        """,
        f"""
        INSERT INTO gpu_sync BY NAME
        WITH {_CALLERS}
        SELECT {source_id} AS source_id, {_SYNC_TYPE} AS sync_type, unix_ns(start_ns) AS start_ns,
            unix_ns(start_ns + duration_ns) AS end_ns, coalesce(caller.pid, alone.pid) AS pid, device, context, stream,
            t.correlation, event
        FROM torch_sync t {_JOIN_CALLERS}
        """,
        """
        INSERT INTO gpu_transfer BY NAME
        SELECT activity_id, bytes, copy_kind, source_memory, target_memory FROM torch_numbered WHERE kind <> 'kernel'
        """,
        """
        INSERT INTO gpu_launch_shape BY NAME
        SELECT activity_id, grid_x, grid_y, grid_z, block_x, block_y, block_z, registers,
            shared_bytes AS static_shared_bytes
        FROM torch_numbered WHERE kind = 'kernel'
        """,
        "DROP TABLE torch_numbered",
        f"""
        INSERT INTO cpu_op
        SELECT {source_id}, category, unix_ns(start_ns), unix_ns(start_ns + duration_ns), pid, tid, name, external_id
        FROM torch_op
        """,
    ]


def _copy_fields() -> str:
    """PyTorch names a copy "Memcpy HtoD (Pinned -> Device)"."""

    def cases(expression: str, values: dict[str, str], type_: str) -> str:
        whens = " ".join(f"WHEN '{text}' THEN '{name}'" for text, name in values.items())
        return f"CASE WHEN kind = 'memcpy' THEN CASE {expression} {whens} ELSE 'unknown' END END::{type_}"

    return ", ".join(
        (
            cases("split_part(name, ' ', 2)", _COPY_KINDS, "e_copy_kind") + " AS copy_kind",
            cases(r"regexp_extract(name, '\((\w+)', 1)", _MEMORY, "e_memory_kind") + " AS source_memory",
            cases(r"regexp_extract(name, '-> (\w+)', 1)", _MEMORY, "e_memory_kind") + " AS target_memory",
        )
    )
