"""Layout of a run directory: the place of each file, and how files are told apart.

RUN/manifest.json                       what was launched, with what, when, how it ended
RUN/profile.nsys-rep, profile.sqlite    Nsight Systems' report and its export, if the run was profiled
RUN/nsys.log                            what nsys said
RUN/client.jsonl                        what clients saw, an object a request (`kvtrace lab` writes it)
RUN/workload.json                       what they were to send
RUN/processes/HOST-PID-START/           one directory a recorded process
    journal.jsonl                       rare facts, a JSON object a line: roles, hooks, clocks, configuration
    strings.jsonl                       interned strings, `[id, "text"]` a line
    counters.bin                        what was dropped, and whether recording stopped
    EVENT.NNNNN.seg                     fixed-width records of one event, in order
    tiles.NNNNN.kvt                     what GPU programs wrote, a chunk a step (`kvtrace.format.tile_file`)
    strings.NNNNN.jsonl                 further interned strings, where old ones are discarded (`--keep-last`)
    kept.json                           what was discarded, and from where on streams are whole (`discarded.py`)
RUN/.budget                             bytes taken of `--max-bytes`
RUN/.lock                               held while segments are discarded, or copied to a snapshot
"""

from __future__ import annotations

import struct

RUN_DIR_VARIABLE = "KVTRACE_RUN_DIR"
"""Environment variable that tells vLLM's processes where to record. Unset: kvtrace does nothing."""

KV_LEVEL_VARIABLE = "KVTRACE_KV_LEVEL"
"""Environment variable that tells them how deep to look: `host`, `layer` or `tile`."""

UNTRIED_KERNELS_VARIABLE = "KVTRACE_UNTRIED_KERNELS"
"""Environment variable that allows (`1`) rewritten kernels that have been compiled for a GPU, but never run on one."""

NVTX_VARIABLE = "KVTRACE_NVTX"
"""Environment variable that turns NVTX ranges on (`1`) even if no profiler is detected."""

FORMAT_VERSION = 1
"""Version of segments, counters and journals. A reader refuses versions it does not know."""

MANIFEST = "manifest.json"
PROCESSES = "processes"
PROFILE = "profile"
NSYS_LOG = "nsys.log"
COMMAND_PID = ".command.pid"
CLIENT = "client.jsonl"
WORKLOAD = "workload.json"
JOURNAL = "journal.jsonl"
STRINGS = "strings.jsonl"
COUNTERS = "counters.bin"
KEPT = "kept.json"
BUDGET = ".budget"
LOCK = ".lock"

SEGMENT_MAGIC = b"KVTRACE\n"
SEGMENT_HEADER = struct.Struct("<8sIII")
"""Magic, format version, record size in bytes, length in bytes of the JSON that follows.

The JSON holds `event`, `schema_version`, `fields` (a list of `[name, type, struct code]`), `pid`, `sequence`,
`segment_bytes` (the file's size, by which a truncated one is told) and the clock pair `realtime_ns`, `monotonic_ns`.
Records start at `SEGMENT_HEADER_BYTES`. The magic is written last: a segment without it was being made when its process
died, and holds nothing.
"""
SEGMENT_HEADER_BYTES = 4096

SEGMENT_SEAL = struct.Struct("<Q")
SEGMENT_SEAL_OFFSET = SEGMENT_HEADER_BYTES - SEGMENT_SEAL.size
"""Offset of the first place not given out, where recording went on to the next segment before this one was full.
0 otherwise. A record may still have been written behind the place after it."""

COUNTERS_MAGIC = b"KVTCOUNT"
COUNTERS_HEADER = struct.Struct("<8sII")
"""Magic, format version, 1 if recording stopped early."""
COUNTERS_ENTRY = struct.Struct("<QQ")
"""Per stream, in the order of `streams` in the journal's `process` line: records dropped; records written, which is
kept only when `KVTRACE_COUNT_WRITES=1` asks for it (the crash tests do)."""
COUNTERS_HEADER_BYTES = 64
COUNTERS_BYTES = 4096


def segment_name(event: str, sequence: int) -> str:
    """File name of an event's `sequence`-th segment (from 0) in a process directory."""
    return f"{event}.{sequence:05d}.seg"


def strings_name(sequence: int) -> str:
    """File name of a process's `sequence`-th file of strings (from 0)."""
    return STRINGS if sequence == 0 else f"strings.{sequence:05d}.jsonl"
