"""Whole inputs of every reader, as small as they can be and still reach all of it."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
import struct
from typing import Any

from kvtrace.events import EVENTS, SCHEMA_VERSION, Event
from kvtrace.format import layout
from kvtrace.format import tile_file as tile_files
from tests.ingest.importers.unboxkv_files import STEPS, USAGE, Patterns, log_text

PROCESS = f"{layout.PROCESSES}/host-7-1"
STRINGS = ["req-1", "chat", "req-2", "cmpl-2", "engine.layer.0"]
CLOCK = {"realtime_ns": 1_790_000_000 * 10**9, "monotonic_ns": 5_000 * 10**9, "uncertainty_ns": 50}
SQL = b"WITH a AS (SELECT step, count(*) FILTER (op = 'hit') AS n FROM block_event GROUP BY ALL) SELECT * FROM a -- x"


def lines(values: list[Any]) -> bytes:
    """Values as JSON, one a line."""
    return "".join(json.dumps(each) + "\n" for each in values).encode()


def recording() -> dict[str, bytes]:
    """A run directory of one process that recorded three records of each event."""
    counters = bytearray(layout.COUNTERS_BYTES)
    layout.COUNTERS_HEADER.pack_into(counters, 0, layout.COUNTERS_MAGIC, layout.FORMAT_VERSION, 0)
    manifest = {"format_version": 1, "kvtrace_version": "0.1.0", "command": ["vllm"], "started_ns": 1, "pid": 7}
    seen = {"request_id": "cmpl-2", "send_ns": 5, "session": "chat", "turn": 3, "last": True, "tool": "cd"}
    return {
        layout.MANIFEST: json.dumps(manifest | {"ended_ns": 3, "exit_code": 0, "nsight": []}).encode(),
        layout.CLIENT: lines([seen, seen | {"request_id": "req-1", "token_ns": [6, 8], "tool_ms": 0.5}]),
        f"{PROCESS}/{layout.JOURNAL}": lines(_journal()),
        f"{PROCESS}/{layout.STRINGS}": lines([[number, text] for number, text in enumerate(STRINGS, 1)]),
        f"{PROCESS}/{layout.COUNTERS}": bytes(counters),
        **{f"{PROCESS}/{layout.segment_name(name, 0)}": _segment(event) for name, event in EVENTS.items()},
    }


def _journal() -> list[dict[str, Any]]:
    process = {"kvtrace": "0.1.0", "python": "3.11.7", "host": "host", "boot_id": "boot", "pid": 7, "ppid": 1}
    engine = {"model": "tiny", "blocks": 100, "block_size_tokens": 16, "prefix_caching": True, "block_bytes": 4096}
    return [
        {"kind": "process", "format_version": 1, **process, "streams": list(EVENTS), **CLOCK},
        {"kind": "vllm", "version": "0.32.0"},
        {"kind": "role", "role": "engine"},
        {"kind": "rank", "dp_rank": 0, "tp_rank": 0, "pp_rank": 0},
        {"kind": "engine", **engine, "kv_groups": 1, "policy": "fcfs", "max_num_batched_tokens": 256},
        {"kind": "hook", "hook": "vllm.x:Y.z", "state": "installed", "detail": ""},
        {"kind": "device", "name": "GPU", "level": "layer", "uuid": "u"},
        {"kind": "layer", "index": 0, "name": "engine.layer.0", "kv_group": 0, "shape": [2, 8], "dtype": "bf16"},
        {"kind": "connector", "connector": "Simple", "tier": "cpu", "blocks": 10, "block_bytes": 4096},
        {"kind": "gpu_clock", "monotonic_ns": 5_000 * 10**9, "gpu_ns": 9, "uncertainty_ns": 5},
        {"kind": "clock", **CLOCK},
    ]


def _segment(event: Event) -> bytes:
    records = b"".join(
        event.struct.pack(*(_value(field.type.code, field.type.name, nth) for field in event.fields), 1)
        for nth in range(1, 4)
    )
    size = layout.SEGMENT_HEADER_BYTES + len(records) + 2 * event.struct.size
    fields = [[field.name, field.type.name, field.type.code] for field in event.fields]
    facts = {"event": event.name, "schema_version": SCHEMA_VERSION, "fields": fields, "pid": 7, "sequence": 0}
    header = json.dumps({**facts, "segment_bytes": size, **CLOCK}).encode()
    head = layout.SEGMENT_HEADER.pack(layout.SEGMENT_MAGIC, layout.FORMAT_VERSION, event.struct.size, len(header))
    return ((head + header).ljust(layout.SEGMENT_HEADER_BYTES, b"\0") + records).ljust(size, b"\0")


def _value(code: str, type_: str, nth: int) -> int | bool:
    return 5_000 * 10**9 + nth if type_ == "time" else 7 if type_ == "process" else nth == 1 if code == "?" else nth


def tiles() -> bytes:
    """A file of two steps, each of two programs of two tiles and their block ids, and a write."""
    text = json.dumps({"pid": 7, "sequence": 0, "tick_ns": 32, "tile_tokens": 16}).encode()
    head = tile_files.FILE_HEADER.pack(tile_files.TILES_MAGIC, tile_files.TILES_VERSION, len(text)) + text
    chunks = []
    for step in (1, 2):
        flags = tile_files.HAS_SUM | 1 << 6
        listing = struct.pack("<IIHHBBHIHH", 100, 16, 0, 0, 0, 0, 0, 0, 2, flags | tile_files.LISTS_BLOCKS)
        other = struct.pack("<IIHHBBHIHH", 100, 16, 0, 0, 0, 1, 0, 6, 2, flags)
        ticks = bytes([1, 1, 2, 2, 4, 0, 0, 0, 4, 0, 0, 0, 1, 1, 2, 2])
        write = struct.pack("<IIHBBBBH", 100, 65, 0, 0, 0, 1, 1, 0)
        sections = [part.ljust(tile_files.padded(len(part)), b"\0") for part in (listing + other, ticks, write)]
        counts = 2, len(ticks) // 2, 1
        chunk = tile_files.CHUNK.pack(tile_files.CHUNK_MARK, 7, step, 10**9, 5_000 * 10**9, 0, *counts, 0, 0)
        chunks.append(chunk + b"".join(sections))
    return head.ljust(tile_files.FILE_HEADER_BYTES, b"\0") + b"".join(chunks)


NSIGHT = """
PRAGMA page_size = 1024;
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'kvtrace'), (2, 'forward'), (3, 'void f(int)'), (4, 'cudaLaunchKernel'), (5, 'step');
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.5.1.121'), ('EXPORT_SCHEMA_VERSION', '3.23.3');
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000, '', '');
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER, uuid TEXT);
INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'GPU', 1, 132, 'u');
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT);
INSERT INTO TARGET_INFO_GPU_METRICS VALUES (1, 0, 'SM active');
CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
INSERT INTO GPU_METRICS VALUES (1500, 1, 0, 50);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
INSERT INTO PROCESSES VALUES (281474976776192, 100, 'python');
CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
INSERT INTO ThreadNames VALUES (4, 0, 281476654547045);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
    mangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, registersPerThread INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER,
    dstKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1750, 1800, 0, 1, 7, 9, 281476654546944, 4096, 1, 1, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
    domainId INTEGER, int64Value INTEGER, uint64Value INTEGER, jsonText TEXT);
INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'kvtrace', 281476654547045, NULL, 3, NULL, NULL, NULL);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
INSERT INTO OSRT_API VALUES (1, 2, 281476654547045, 4);
"""


def nsight() -> dict[str, bytes]:
    """An export with every kind of table, three steps long."""
    with sqlite3.connect(":memory:") as database:
        database.executescript(NSIGHT)
        thread = 281476654547045
        for step in range(1, 4):
            start = step * 1000
            kernel = (start + 400, start + 700, 0, 1, 7, step, 281476654546944, 3, 3, 3, 1, 1, 1, 64, None)
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 15)})", kernel)
            call = (start + 5, start + 15, 0, thread, step, 4, 0)
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({','.join('?' * 7)})", call)
            for name, end in ((5, 950), (2, 900)):
                mark = (start, start + end, 59, None, thread, name, 3, step, None, None)
                database.execute(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * 10)})", mark)
        database.commit()
        return {"profile.sqlite": database.serialize()}


def torch() -> dict[str, bytes]:
    """A trace of a kernel, a copy and an operator; plain and packed."""
    head = {"ph": "X", "pid": 7, "tid": 8}
    kernel = {"device": 0, "context": 1, "stream": 7, "correlation": 41, "grid": [1, 2, 3], "block": [32, 1, 1]}
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "ts": 0, "args": {"name": "main"}},
        head | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 100.125, "dur": 4.5}
        | {"args": {"External id": 3, "correlation": 41}},
        head | {"cat": "kernel", "name": "void f<int>(T1)", "ts": 150.001, "dur": 10.999, "args": kernel},
        head | {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 170, "dur": 2}
        | {"args": {"device": 0, "stream": 7, "correlation": 42, "bytes": 4096}},
        head | {"cat": "cpu_op", "name": "aten::mm", "ts": "90.0", "dur": 30.0, "args": {"External id": 3}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 41, "pid": 7, "tid": 8, "ts": 100.125},
    ]  # fmt: skip
    whole = {"schemaVersion": 1, "baseTimeNanoseconds": 1_790_857_026 * 10**9, "traceEvents": events, "traceName": "x"}
    text = json.dumps(whole).encode()
    return {"trace.json": text, "list.json": json.dumps(events).encode(), "trace.json.gz": gzip.compress(text, mtime=0)}


def kv_events() -> dict[str, bytes]:
    """Three batches."""
    stored = {"type": "BlockStored", "block_hashes": [11, "0c" * 8], "parent_block_hash": 10, "block_size": 16}
    removed = {"type": "BlockRemoved", "block_hashes": [11], "medium": "GPU", "group_idx": 0}
    batches = [
        {"sequence": 0, "ts": 1.5, "data_parallel_rank": 0, "events": [stored | {"medium": "GPU"}, removed]},
        {"sequence": 1, "ts": 1.75, "events": [{"type": "AllBlocksCleared"}]},
        {"sequence": 3, "ts": 2, "events": [removed]},
    ]
    return {"events.jsonl": lines(batches)}


def unboxkv() -> dict[str, bytes]:
    """Patterns, utilisation, steps and a log."""
    patterns = Patterns([16, 5], 1, layers=1)
    return {
        "kv_write_pattern.json": lines(patterns.writes),
        "kv_read_pattern.json": lines(patterns.reads),
        "packed.json.xz": lzma.compress(lines(patterns.writes)),
        "swap.csv": USAGE.encode(),
        "swap_step.csv": STEPS.encode(),
        "a.log": log_text(chunked=True).encode(),
    }


def sched_trace() -> dict[str, bytes]:
    """A snapshot, a decision and a lookup."""
    shared = {"ts": 1_700_000_000.5, "step": 1}
    decision = {"num_scheduled_tokens": {"a": 16, "b": 1}, "num_prefill_tokens": 16, "token_budget": 2048}
    reason = {"blocked_reason": "KV blocks insufficient", "head_request": "d", "blocks_needed": 12, "preempted": ["c"]}
    lookup = {"request_id": "a", "session": "s", "turn": 2, "hit_tokens": 16, "query_tokens": 40, "admitted": True}
    return {
        "sched.jsonl": lines(
            [
                {"kind": "step_snapshot", **shared, "running": 2, "waiting": 3, "free_blocks": 10, "total_blocks": 100},
                {"kind": "step_decision", **shared, **decision, **reason, "step_duration_ms": 12.5},
                {"kind": "prefix_cache_lookup", **shared, **lookup},
            ]
        )
    }


def requests() -> dict[str, bytes]:
    """Mooncake's and Bailian's form."""
    chat = {"chat_id": 10, "parent_chat_id": -1, "timestamp": 0.25, "input_length": 33, "output_length": 5, "turn": 1}
    chats = [
        chat | {"type": "text", "hash_ids": [1, 2, 3]},
        chat | {"chat_id": 11, "parent_chat_id": 10, "timestamp": 4.5, "turn": 2, "hash_ids": [1, 2, 4]},
    ]
    plain = [
        {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3052, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]},
    ]
    return {"mooncake.jsonl": lines(plain), "chats.jsonl": lines(chats)}


def other_requests() -> dict[str, bytes]:
    """The other forms of request traces: Azure's, BurstGPT's, Dynamo's and vllm-vcr's."""
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
    burst = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    request = {"request_id": "r", "request_received_ms": 1_777_312_800_000, "output_tokens": 16, "ttft_ms": 12.5}
    replay = {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [7, 8]}
    head = {"schema": "dynamo.request.trace.v1", "event_time_unix_ms": 1_777_312_801_000}
    context = {"agent_context": {"session_id": "s"}}
    ended = {**head, **context, "event_type": "request_end", "request": {**request, "replay": replay}}
    gaps = {"ttft_ms": 15.5, "itl_ms": [10, 12.25], "itl_tokens": [3, 1], "block_hashes": [7, 8]}
    seen = {"prompt_tokens": 40, "cached_tokens": 16, "output_tokens": 5, "arrival_ms": 100.0, **gaps}
    return {
        "azure.csv": azure.encode(),
        "burst.csv": f"{burst}19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n".encode(),
        "dynamo.jsonl": lines([ended, {"timestamp": 1, "event": {**head, "event_type": "tool_end", "tool": {}}}]),
        "vcr.jsonl": lines([{"meta": {"block_size": 16}}, {**seen, "finish_reason": "stop"}]),
    }


def matrices() -> dict[str, bytes]:
    """A matrix in both forms."""
    cell = {"model": "tiny", "kv_tokens": "90k", "max_num_seqs": 16, "phases": ["cold", "warm"]}
    load = {"kind": "shared-prefix", "families": 8, "members": 3, "concurrency": 4, "seed": 38}
    policies = ["fcfs", {"name": "offloading", "host_gib": 4}]
    whole = {"name": "x", "repeats": 2, "compare": "policy", "cell": cell, "axes": {"policy": policies, "rate": [1, 2]}}
    text = """\
name = "x"
repeats = 2
estimate_s = 110
[cell]
kv_tokens = 90000
block_size = 16
[axes]
policy = ["fcfs", {name = "ttl-pin", ttl_s = 2.5}]
"workload.families" = [1, 2]
[workloads.cold]
kind = "shared-prefix"
size = "long"
share = 0.5
"""
    return {
        "matrix.json": json.dumps(whole | {"workloads": {"cold": load, "warm": load}}).encode(),
        "matrix.toml": text.encode(),
    }


def results() -> dict[str, bytes]:
    """Kept results of a study with two policies at two rates, one of its cells measured; as text and packed."""
    axes = {"policy": ["fcfs", "offloading 4 GiB"], "rate": ["1", "2"]}
    workload = {"name": "w", "sha256": "0f", "jobs": 2, "requests": 4, "parameters": {"arrival": "batch", "rate": 1.0}}
    figures = {
        "jct_s_mean": 1.5,
        "recomputed_tokens": 7,
        "wasted_share": 0.1,
        "passes": 20,
        "turn_ms_mean": 700.0,
        "ttft_ms_p50": 20.0,
        "cached_share": 0.5,
        "preemptions": 0,
    }
    phase = {
        "position": 0,
        "jct_s": {"a": 1.0, "b": 2.0},
        "ttft_ms": {"a": 10.0, "b": 30.0},
        "turns_ms": [500.0, 900.0],
        "first_passes_tokens": [512, *[2] * 19],
        "kv_cache_percent": [None, *[50.0] * 9],
        "running": [1.0] * 10,
    }
    draws = {"jct_s_mean": [1.4, 1.5, 1.6, 1.5]}
    kept: list[dict[str, Any]] = []
    for policy, rate, made in (("fcfs", 1, ""), ("fcfs", 1, "-predicted"), ("offloading 4 GiB", 2, "-predicted")):
        phases = [{**phase, "workload": workload, "figures": figures, "shape": "flat", "draws": draws if made else {}}]
        name, *size = policy.split()
        settings = {"name": name, **({"host_gib": int(size[0])} if size else {})}
        place = {"study": "x", "axes": {"policy": policy, "rate": rate}, "policy": settings, "kv_tokens": 1600}
        facts: dict[str, Any] = {"device": "gpu", "software": {"vllm": "0.33.0"}}
        if made:
            facts["predicted"] = {"time_from": "a.duckdb", "notes": ["no times"]}
        result = {"name": f"{name}-{rate}{made}", "status": "ok", "error": None, "seconds": 1.5, "facts": facts}
        result |= {"engine": {"blocks": 100}, "steps": [3.0, 6.0, 9.0, 14.0, 20.0, 30.0], "warnings": ["late"]}
        kept.append({"result": {**result, "phases": phases, "cell": place}})
    study = {"name": "x", "axes": axes, "compare": "policy", "cells": ["fcfs-1", "offloading-2"]}
    failed = {"status": "failed", "error": "boom", "steps": None, "phases": []}
    kept.append({"result": {**kept[-1]["result"], **failed, "name": "offloading-2"}})
    text = lines([{"kept": 1}, {"study": study}, *kept])
    return {"results.jsonl": text, "results.jsonl.gz": gzip.compress(text, mtime=0)}


def workloads() -> dict[str, bytes]:
    """Files that workloads replay, by the workload's kind."""
    call = {"function": {"name": "bash", "arguments": '{"command": "cd x"}'}}
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": [{"text": "2"}], "tool_calls": [call]}]
    said += [{"role": "tool", "content": "ok"}, {"role": "assistant", "content": "<function=edit>view</function>"}]
    talk = [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}]
    made = requests()
    return {
        "mooncake.jsonl": made["mooncake.jsonl"],
        "bailian.jsonl": made["chats.jsonl"],
        "trajectories.jsonl": lines([{"instance_id": "a", "messages": said}, {"messages": json.dumps(said)}]),
        "sharegpt.json": json.dumps([{"id": "a", "conversations": talk}]).encode(),
    }
