"""Declares which tables of an export are read, each column's names over the years, and what becomes of it.

A `Read` names a value and the columns it may be in: the first that is there and not NULL counts. Columns are found by
name; tables and columns that a version lacks become NULL. The expressions of `insert` are DuckDB's, over the values
read. Four macros exist while a source is loaded: `unix_ns(t)`, and `host_of`, `pid_of` and `tid_of` of a global id.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from kvtrace.events import EnumType, enum_type
from kvtrace.ingest.gpu.enums import CallApi, CopyKind, MemoryKind, NvtxKind


class Kind(enum.Enum):
    """Conversion of a value."""

    integer = "integer"
    text = "text"  # '' is NULL
    name = "name"  # an id in StringIds that becomes its text
    real = "real"
    kernel = "kernel"  # an id in StringIds that becomes a `kernel_name_id`


class Read(NamedTuple):
    """A value and the columns it may be in."""

    alias: str
    columns: tuple[str, ...]
    kind: Kind = Kind.integer


class Import(NamedTuple):
    """A table of the export and what becomes of its rows.

    `key` is the target's key column, if it has one. A `detail` fills another table with more of the rows that the
    import before it read, under the same keys; an `optional` one only if it is asked for.
    """

    table: str
    target: str
    reads: tuple[Read, ...]
    insert: dict[str, str]
    key: str | None = None
    join: str = ""
    detail: bool = False
    optional: bool = False


def _read(alias: str, *columns: str, kind: Kind = Kind.integer) -> Read:
    return Read(alias, columns or (alias,), kind)


def _decode(alias: str, members: EnumType, codes: dict[int, str], other: str) -> str:
    """SQL that turns the export's code into an enum's value; NULL stays NULL."""
    cases = " ".join(f"WHEN {code} THEN '{name}'" for code, name in codes.items())
    return f"CASE WHEN {alias} IS NULL THEN NULL ELSE CASE {alias} {cases} ELSE '{other}' END END::{enum_type(members)}"


_COPY_KINDS = {kind.value: kind.name for kind in CopyKind if kind is not CopyKind.unknown}
_MEMORY_KINDS = {kind.value - 1: kind.name for kind in MemoryKind}
_NVTX_KINDS = {
    33: "category",
    34: "mark",
    39: "thread_name",
    59: "push_pop",
    60: "start_end",
    75: "domain",
}
_NONE = 0xFFFF_FFFF
"""CUPTI's number for "no stream" and "no event"."""

_SPAN = (_read("start"), _read("end"))
_ON_GPU = (
    *_SPAN,
    _read("deviceId"),
    _read("contextId"),
    _read("streamId"),
    _read("correlationId"),
    _read("globalPid"),
)
_SPAN_OUT = {"start_ns": "unix_ns(\"start\")", "end_ns": "unix_ns(\"end\")"}  # fmt: skip
_ON_GPU_OUT = {
    **_SPAN_OUT,
    "pid": "pid_of(globalPid)",
    "device": f"nullif(deviceId, {_NONE})",
    "context": f"nullif(contextId, {_NONE})",
    "stream": f"nullif(streamId, {_NONE})",
    "correlation": "correlationId",
}
_HOST_OUT = {"host": "host_of(globalPid)"}
_NODE = (_read("graphNodeId"), _read("graphId"))
_NODE_OUT = {"graph_node": "graphNodeId", "graph": "graphId"}
_ON_THREAD = (*_SPAN, _read("globalTid"))
_ON_THREAD_OUT = {**_SPAN_OUT, "pid": "pid_of(globalTid)", "tid": "tid_of(globalTid)"}

KERNEL = Import(
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "gpu_activity",
    (*_ON_GPU, *_NODE, _read("kernel", "demangledName", "shortName", "mangledName", kind=Kind.kernel)),
    {"kind": "'kernel'", **_ON_GPU_OUT, **_NODE_OUT, "kernel_name_id": "kernel", **_HOST_OUT},
    key="activity_id",
)
LAUNCH_SHAPE = Import(
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "gpu_launch_shape",
    (
        *(_read(name) for name in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")),
        *(_read(name) for name in ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")),
    ),
    {
        **{f"{what}_{axis.lower()}": f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"},
        "registers": "registersPerThread",
        "static_shared_bytes": "staticSharedMemory",
        "dynamic_shared_bytes": "dynamicSharedMemory",
    },
    key="activity_id",
    detail=True,
    optional=True,
)
MEMCPY, MEMSET = (
    Import(
        table,
        "gpu_activity",
        (*_ON_GPU, *_NODE),
        {"kind": kind, **_ON_GPU_OUT, **_NODE_OUT, **_HOST_OUT},
        key="activity_id",
    )
    for table, kind in (("CUPTI_ACTIVITY_KIND_MEMCPY", "'memcpy'"), ("CUPTI_ACTIVITY_KIND_MEMSET", "'memset'"))
)
COPIED = Import(
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "gpu_transfer",
    tuple(_read(name) for name in ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")),
    {
        "bytes": "bytes",
        "copy_kind": _decode("copyKind", CopyKind, _COPY_KINDS, "unknown"),
        "source_memory": _decode("srcKind", MemoryKind, _MEMORY_KINDS, "unknown"),
        "target_memory": _decode("dstKind", MemoryKind, _MEMORY_KINDS, "unknown"),
        "source_device": "srcDeviceId",
        "target_device": "dstDeviceId",
    },
    key="activity_id",
    detail=True,
)
FILLED = Import(
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "gpu_transfer",
    (_read("bytes"), _read("memKind"), _read("value")),
    {
        "bytes": "bytes",
        "target_memory": _decode("memKind", MemoryKind, _MEMORY_KINDS, "unknown"),
        "fill_value": "value",
    },
    key="activity_id",
    detail=True,
)
GRAPH = Import(
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "gpu_activity",
    (*_ON_GPU, _read("graphId")),
    {"kind": "'graph'", **_ON_GPU_OUT, "graph": "graphId", **_HOST_OUT},
    key="activity_id",
)
CALL = Import(
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "gpu_call",
    (
        *_ON_THREAD,
        _read("eventClass"),
        _read("correlationId"),
        _read("name", "nameId", kind=Kind.name),
        _read("returnValue"),
    ),
    {
        "api": _decode("eventClass", CallApi, {0: "runtime", 1: "driver"}, "other"),
        **_ON_THREAD_OUT,
        "name": "name",
        "correlation": "correlationId",
        "return_value": "returnValue",
        "host": "host_of(globalTid)",
    },
    key="call_id",
)
SYNC = Import(
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "gpu_sync",
    (*_ON_GPU, _read("syncType", "deprecatedSyncType"), _read("eventId")),
    {"sync_type": "syncType", **_ON_GPU_OUT, "event": f"nullif(eventId, {_NONE})"},
)
NVTX = Import(
    "NVTX_EVENTS",
    "nvtx",
    (
        *_ON_THREAD,
        _read("eventType"),
        _read("domainId"),
        _read("text", kind=Kind.text),
        _read("registered", "textId", kind=Kind.name),
        _read("payload", "int64Value", "uint64Value", "int32Value", "uint32Value"),
        _read("payloadReal", "doubleValue", "floatValue", kind=Kind.real),
        _read("category"),
    ),
    {
        "kind": _decode("eventType", NvtxKind, _NVTX_KINDS, "other"),
        **_ON_THREAD_OUT,
        "domain_id": "domainId",
        "name": "coalesce(text, registered)",
        "payload": "payload",
        "payload_real": "payloadReal",
        "category": "category",
    },
)
OS_CALL = Import(
    "OSRT_API",
    "os_call",
    (*_ON_THREAD, _read("name", "nameId", kind=Kind.name), _read("returnValue"), _read("nestingLevel")),
    {**_ON_THREAD_OUT, "name": "name", "return_value": "returnValue", "nesting": "nestingLevel"},
)
_NODE_READS = (
    _read("start"),
    _read("globalTid"),
    _read("name", "nameId", kind=Kind.name),
    _read("graphNodeId"),
    _read("originalGraphNodeId"),
)
_NODE_INSERT = {
    "time_ns": 'unix_ns("start")',
    "pid": "pid_of(globalTid)",
    "tid": "tid_of(globalTid)",
    "name": "name",
    "graph_node": "graphNodeId",
    "original_graph_node": "originalGraphNodeId",
}
METRIC = Import(
    "GPU_METRICS",
    "gpu_metric",
    (_read("time", "timestamp", "rawTimestamp", "start"), _read("typeId"), _read("metricId"), _read("value")),
    {
        "time_ns": "unix_ns(time)",
        "type_id": "typeId",
        "metric_id": "metricId",
        "metric": "known.metric",
        "value": "value",
    },
    join="LEFT JOIN source_metric AS known ON known.type_id = typeId AND known.metric_id = metricId",
)
DEVICE = Import(
    "TARGET_INFO_GPU",
    "gpu_device",
    (
        _read("id", "id", "pwGpuId"),
        _read("cuda", "cuDevice"),
        _read("name", kind=Kind.text),
        _read("chipName", kind=Kind.text),
        _read("busLocation", kind=Kind.text),
        _read("uuid", kind=Kind.text),
        *(_read(name) for name in ("smCount", "totalMemory", "memoryBandwidth", "computeMajor", "computeMinor")),
    ),
    {
        "gpu_id": "id",
        "cuda_id": "cuda",
        "name": "name",
        "chip": "chipName",
        "bus": "busLocation",
        "uuid": "uuid",
        "multiprocessors": "smCount",
        "memory_bytes": "totalMemory",
        "memory_bandwidth": "memoryBandwidth",
        "compute_capability": "computeMajor || '.' || computeMinor",
    },
)

IMPORTS: tuple[Import, ...] = (
    KERNEL,
    LAUNCH_SHAPE,
    MEMCPY,
    COPIED,
    MEMSET,
    FILLED,
    GRAPH,
    CALL,
    SYNC,
    NVTX,
    Import("CUDA_GRAPH_NODE_EVENTS", "graph_node", _NODE_READS, _NODE_INSERT),
    Import("CUDA_GRAPH_EVENTS", "graph_node", _NODE_READS, _NODE_INSERT),
    OS_CALL,
    METRIC,
    DEVICE,
    Import(
        "TARGET_INFO_CUDA_DEVICE",
        "gpu_visible_device",
        (_read("gpuId"), _read("cudaId"), _read("pid")),
        {"pid": "pid", "cuda_id": "cudaId", "gpu_id": "gpuId"},
    ),
    *(
        Import(
            table,
            "gpu_context",
            (_read("stream", "nullStreamId", "streamId"), _read("processId"), _read("deviceId"), _read("contextId")),
            {"pid": "processId", "device": "deviceId", "context": "contextId", "null_stream": "stream"},
        )
        for table in ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
    ),
    Import(
        "TARGET_INFO_CUDA_STREAM",
        "gpu_stream",
        tuple(_read(name) for name in ("streamId", "processId", "contextId", "priority", "flag")),
        {"pid": "processId", "context": "contextId", "stream": "streamId", "priority": "priority", "flag": "flag"},
    ),
    Import(
        "PROCESSES",
        "profiled_process",
        (_read("globalPid"), _read("pid"), _read("name", kind=Kind.text)),
        {"pid": "coalesce(pid, pid_of(globalPid))", "name": "name", "host": "host_of(globalPid)"},
    ),
    Import(
        "ThreadNames",
        "profiled_thread",
        (_read("globalTid"), _read("name", "nameId", kind=Kind.name)),
        {"pid": "pid_of(globalTid)", "tid": "tid_of(globalTid)", "name": "name"},
    ),
)
"""In the order they are read."""
