"""PyTorch profiler traces: a real one of the CPU, and GPU events in the form that Kineto writes."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.torch.chrome import CHUNK_CHARS, ChromeTrace, nanoseconds
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources

BASE_NS = 1_790_857_026_000_000_000
PROFILE = """
import json, sys, torch
from torch.profiler import profile, record_function
with profile() as profiler, record_function("outer"):
    for _ in range(20):
        torch.ones(8, 8).mm(torch.ones(8, 8)).relu()
profiler.export_chrome_trace(sys.argv[1])
print(json.dumps({event.key: event.count for event in profiler.key_averages()}))
"""


def trace_of(events: list[dict[str, Any]], **facts: Any) -> str:
    head = {"schemaVersion": 1, "deviceProperties": [], "baseTimeNanoseconds": BASE_NS, **facts}
    return json.dumps({**head, "traceEvents": events, "traceName": "x"}, indent=1)


GPU = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 8, "ts": 100.125, "dur": 4.5}
    | {"args": {"External id": 3, "cbid": 211, "correlation": 41}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 7, "tid": 8, "ts": 120.0, "dur": 4.0}
    | {"args": {"correlation": 42}},
    {"ph": "X", "cat": "kernel", "name": "void flash::flash_fwd_kernel<int>(T1)", "pid": 0, "tid": 7}
    | {"ts": 150.001, "dur": 10.999}
    | {
        "args": {
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": 41,
            "registers per thread": 64,
            "shared memory": 8,
        }
    }
    | {"id": 1},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7, "ts": 170, "dur": 2}
    | {"args": {"device": 0, "context": 1, "stream": 7, "correlation": 42, "bytes": 4096}},
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 7,
        "tid": 8,
        "ts": 90.0,
        "dur": 30.0,
        "args": {"External id": 3},
    },
    {"ph": "X", "cat": "gpu_user_annotation", "name": "outer", "pid": 0, "tid": 7, "ts": 150.0, "dur": 20.0},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 41, "pid": 7, "tid": 8, "ts": 100.125},
]
GPU[3]["args"] |= {"grid": [4, 2, 1], "block": [128, 1, 1]}


SYNCS = [
    {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": stream, "ts": 130 + number, "dur": 0.5,
     "args": {"cuda_sync_kind": kind, "wait_on_cuda_event_id": 9, "stream": stream, "correlation": 41, "device": 0,
              "context": 1}}
    for number, (kind, stream) in enumerate((("Stream Wait Event", 7), ("Event Sync", -1), ("Some Other Sync", 7)))
]  # fmt: skip


def call(
    correlation: int, pid: object = 7, cat: str = "cuda_runtime", name: str = "cudaLaunchKernel"
) -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 8, "ts": 100, "dur": 4}
    return event | {"args": {"correlation": correlation}}


def kernel(correlation: int, name: str = "k", pid: object = 0, cat: str = "kernel", dur: object = 10) -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 7, "ts": 150, "dur": dur}
    return event | {"args": {"device": 0, "stream": 7, "correlation": correlation}}


@pytest.fixture
def load(tmp_path: Path, query: Callable) -> Callable[[str | bytes], Callable]:
    def loaded(text: str | bytes) -> Callable:
        path = tmp_path / "t.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return query(ingest(None, tmp_path / "trace.duckdb", sources=Sources(torch=(path,))).target)

    return loaded


class TestGpuEvents:
    def test_kernels_find_names_calls_and_exact_times(self, load: Callable) -> None:
        ask = load(trace_of(GPU))
        assert ask(
            "SELECT k.name, category::VARCHAR, k.pid, device, stream, k.start_ns, duration_ns, c.name, c.start_ns, "
            "c.tid FROM gpu_kernel k JOIN gpu_call c USING (call_id)"
        ) == [
            (
                "flash_fwd_kernel",
                "attention",
                7,
                0,
                7,
                BASE_NS + 150_001,
                10_999,
                "cudaLaunchKernel",
                BASE_NS + 100_125,
                8,
            )
        ]
        assert ask("SELECT grid_x, grid_y, block_x, registers, static_shared_bytes FROM gpu_launch_shape") == [
            (4, 2, 128, 64, 8)
        ]

    def test_copies_know_their_direction_and_bandwidth(self, load: Callable) -> None:
        assert load(trace_of(GPU))(
            "SELECT direction::VARCHAR, source_memory::VARCHAR, target_memory::VARCHAR, bytes, bytes_per_s, pid "
            "FROM gpu_copy"
        ) == [("host_to_device", "pinned", "device", 4096, 4096 / 2e-6, 7)]

    def test_what_is_left_out_is_counted(self, load: Callable) -> None:
        ask = load(trace_of(GPU))
        assert ask("SELECT category, name, external_id FROM cpu_op") == [("cpu_op", "aten::mm", 3)]
        assert ask("SELECT source_table, rows FROM source_table WHERE target IS NULL ORDER BY 1") == [
            ("metadata", 1),
            ("ph X: gpu_user_annotation", 1),
            ("ph s: ac2g", 1),
        ]

    def test_a_trace_without_any_activity_warns(self, tmp_path: Path) -> None:
        events = [{"ph": phase, "cat": "blink", "name": "frame", "id": 1, "ts": 1, "pid": 1} for phase in "be"]
        (tmp_path / "t.json").write_text(trace_of(events))
        summary = ingest(None, tmp_path / "trace.duckdb", sources=Sources(torch=(tmp_path / "t.json",)))
        assert summary.warnings == [
            "t.json: none of its events is a kernel, a copy, a call or a range; it has ph b: blink, ph e: blink"
        ]

    def test_kernels_that_ran_again_to_be_counted_are_no_work_of_the_host(self, load: Callable) -> None:
        """CUPTI's range profiler runs kernels again; PyTorch gives each the same made-up time."""
        ranges = [
            {"ph": "X", "cat": "cuda_profiler_range", "name": "k", "pid": 0, "tid": 0, "ts": 10 * nth, "dur": 10}
            for nth in range(3)
        ]
        ask = load(trace_of([*GPU, *ranges]))
        assert ask("SELECT count(*) FROM cpu_op WHERE name = 'k'") == [(0,)]
        assert ask("SELECT rows FROM source_table WHERE source_table = 'ph X: cuda_profiler_range'") == [(3,)]

    def test_waits_for_a_gpu_are_no_work_of_the_host(self, load: Callable) -> None:
        """GIVEN waits, whose pid is the GPU THEN they are the calling process's, -1 is none, codes are CUPTI's."""
        ask = load(trace_of([*GPU, *SYNCS]))
        assert ask("SELECT count(*) FROM cpu_op") == [(1,)]
        assert ask("SELECT sync_type, start_ns, end_ns - start_ns, pid, device, stream, event FROM gpu_sync") == [
            (2, BASE_NS + 130_000, 500, 7, 0, 7, 9),
            (1, BASE_NS + 131_000, 500, 7, 0, None, 9),
            (None, BASE_NS + 132_000, 500, 7, 0, 7, 9),
        ]
        assert ask("SELECT rows, imported, target FROM source_table WHERE source_table = 'cuda_sync'") == [
            (3, 3, "gpu_sync")
        ]

    def test_old_traces_have_absolute_times(self, load: Callable) -> None:
        """Microseconds since 1970 with three decimals need more digits than a double has."""
        text = trace_of(GPU).replace("150.001", "1790857026123456.789").replace(str(BASE_NS), "null")
        assert load(text)("SELECT start_ns FROM gpu_kernel") == [(1_790_857_026_123_456_789,)]

    def test_kernels_and_copies_are_those_of_the_other_profiler(self, load: Callable) -> None:
        ask = load(trace_of(GPU))
        assert ask("SELECT kind::VARCHAR, method::VARCHAR FROM source JOIN alignment USING (source_id)") == [
            ("torch", "utc_epoch")
        ]
        assert ask("SELECT count(*), count(call_id) FROM gpu_attribution") == [(2, 2)]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_real_trace_has_the_operators_that_the_profiler_counts(tmp_path: Path, query: Callable) -> None:
    path = tmp_path / "real.json.gz"
    done = subprocess.run(
        [sys.executable, "-c", PROFILE, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    expected = json.loads(done.stdout.splitlines()[-1])
    ask = query(ingest(None, tmp_path / "trace.duckdb", sources=Sources(torch=(path,))).target)
    found = dict(ask("SELECT name, count(*) FROM cpu_op WHERE category IN ('cpu_op', 'user_annotation') GROUP BY name"))
    assert found == expected
    ((start, end),) = ask("SELECT min(start_ns), max(end_ns) FROM cpu_op")
    assert 0 < end - start < 60e9
    assert abs(end / 1e9 - path.stat().st_mtime) < 60


class TestReader:
    @pytest.mark.parametrize(
        "text", ['[{"ph": "X"}, {"ph": "M"}]', '{"a": [1, {}], "traceEvents": [{"ph": "X"}], "b": 2}']
    )
    def test_both_forms(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "t.json"
        path.write_text(text)
        assert next(iter(ChromeTrace(path).events())) == {"ph": "X"}

    def test_events_across_the_pieces_that_are_read(self, tmp_path: Path) -> None:
        events = [{"n": n, "text": 'é\\"' * (n % 700)} for n in range(4000)]
        path = tmp_path / "t.json.gz"
        path.write_bytes(gzip.compress(trace_of(events).encode()))
        assert len(trace_of(events)) > 3 * CHUNK_CHARS
        trace = ChromeTrace(path)
        assert list(trace.events()) == events
        assert trace.facts["traceName"] == "x"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", "truncated"),
            ("hello", "no trace"),
            ('{"a": 1}', "no traceEvents"),
            ('{"traceEvents": [{"a"', "damaged"),
        ],
    )
    def test_what_is_none_says_so(self, tmp_path: Path, load: Callable, text: str, expected: str) -> None:
        with pytest.raises(KvtraceError, match=expected):
            load(text)
        assert not (tmp_path / "trace.duckdb").exists()

    def test_a_trace_cut_anywhere_is_an_error(self, tmp_path: Path, load: Callable) -> None:
        whole = trace_of(GPU)
        packed = gzip.compress(whole.encode())
        for piece in (*(whole[: len(whole) * n // 7] for n in range(1, 7)), packed[: len(packed) // 2]):
            with pytest.raises(KvtraceError, match=r"t\.json"):
                load(piece)

    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ("1.5", 1500),
            (7, 7000),
            ("1790857026123456.789", 1790857026123456789),
            ("-0.001", -1),
            ("1e3", 10**6),
            ("x", None),
        ],
    )
    def test_microseconds_are_exact(self, written: object, expected: int | None) -> None:
        assert nanoseconds(written) == expected


JOINED = (
    "SELECT a.kind::VARCHAR, a.pid, a.host, c.name FROM gpu_activity a JOIN gpu_attribution USING (activity_id) "
    "LEFT JOIN gpu_call c USING (call_id) ORDER BY activity_id"
)


class TestCategories:
    """Categories of each version and device are told by their words, not by one spelling."""

    @pytest.mark.parametrize(
        ("runtime", "activities"),
        [
            ("Runtime", ["Kernel", "Memcpy", "Memset"]),  # PyTorch 1.8 to 1.10
            ("cuda_runtime", ["kernel", "gpu_memcpy", "gpu_memset"]),
            ("cuda_driver", ["kernel", "gpu_memcpy", "gpu_memset"]),
            ("hip_runtime", ["kernel", "gpu_memcpy", "gpu_memset"]),
            ("xpu_runtime", ["kernel", "gpu_memcpy", "gpu_memset"]),
            ("privateuse1_runtime", ["concurrent_kernel", "gpu_memcpy", "gpu_memset"]),
            ("mtia_runtime", ["mtia_ccp_events", "gpu_memcpy", "gpu_memset"]),
        ],
    )
    def test_activities_and_calls(self, load: Callable, runtime: str, activities: list[str]) -> None:
        events = [call(5, cat=runtime, name="launch"), *(kernel(5, cat=category) for category in activities)]
        ask = load(trace_of([*events, {"ph": "X", "cat": "Operator", "name": "aten::mm", "ts": 1, "dur": 2}]))
        assert ask(JOINED) == [(kind, 7, None, "launch") for kind in ("kernel", "memcpy", "memset")]
        assert ask("SELECT name FROM cpu_op") == [("aten::mm",)]


class TestProcesses:
    def test_merged_ranks_are_told_apart_by_the_text_of_their_pids(self, load: Callable) -> None:
        """Ranks count correlations for themselves, and on two hosts they can have one pid."""
        events = [call(5, f"[TP0{rank}] 80", name=f"launch{rank}") for rank in (0, 1)]
        ask = load(trace_of([*events, kernel(5, "a", "[TP01] 1"), kernel(5, "b", "[TP00] 0")]))
        assert ask(JOINED) == [("kernel", 80, 2, "launch1"), ("kernel", 80, 1, "launch0")]
        assert ask("SELECT pid, host, name FROM profiled_process WHERE pid = 80 ORDER BY host") == [
            (80, 1, "[TP00] 80"),
            (80, 2, "[TP01] 80"),
        ]

    def test_text_that_names_no_process_joins_calls_all_the_same(self, load: Callable) -> None:
        assert load(trace_of([call(5, "CPU functions"), kernel(5, pid="CUDA functions")]))(JOINED) == [
            ("kernel", None, None, "cudaLaunchKernel")
        ]

    def test_a_correlation_of_two_processes_is_given_to_neither(self, load: Callable) -> None:
        assert load(trace_of([call(5, 7), call(5, 8), call(6, 8), kernel(5), kernel(6)]))(JOINED) == [
            ("kernel", None, None, None),
            ("kernel", 8, None, "cudaLaunchKernel"),
        ]

    def test_correlation_0_joins_nothing(self, load: Callable) -> None:
        assert load(trace_of([call(0), kernel(0)]))(JOINED) == [("kernel", 7, None, None)]


class TestTimes:
    @pytest.mark.parametrize("duration", [-1, -0.001, 31 * 86_400_000_000, "nan"])
    def test_a_duration_that_cannot_be_is_left_out_and_warned_of(self, tmp_path: Path, duration: object) -> None:
        path = tmp_path / "t.json"
        path.write_text(trace_of([kernel(1, dur=10), kernel(2, dur=duration), kernel(3, dur=5)]))
        summary = ingest(None, tmp_path / "trace.duckdb", sources=Sources(torch=(path,)))
        [warning] = summary.warnings
        assert warning.startswith("t.json: 1 events of category kernel have no time, or one that cannot be")
        assert warning.endswith(": event 2")
        assert summary.records == 2


class TestBrokenJson:
    EVENTS = json.dumps([call(5), kernel(5, "k1")])[1:-1]

    def _ingest(self, tmp_path: Path, content: bytes) -> tuple[list[str], list[str]]:
        """Warnings, and names of host operators, beside a kernel that found its call."""
        path = tmp_path / "t.json"
        path.write_bytes(content)
        summary = ingest(None, tmp_path / "trace.duckdb", sources=Sources(torch=(path,)))
        with duckdb.connect(str(summary.target), read_only=True) as trace:
            assert trace.execute(JOINED).fetchall() == [("kernel", 7, None, "cudaLaunchKernel")]
            return summary.warnings, [name for (name,) in trace.execute("SELECT name FROM cpu_op").fetchall()]

    def _with_operator(self, name: bytes, more: bytes = b"{}") -> bytes:
        operator = b'{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 7, "tid": 8, "ts": 1, "dur": 1, "args": %s}'
        return b'{"schemaVersion": 1, "traceEvents": [%s, %s]}' % (self.EVENTS.encode(), operator % (name, more))

    @pytest.mark.parametrize(
        ("name", "more", "expected", "what", "count"),
        [
            (rb"torch\cuda\__init__.py", b"{}", r"torch\cuda\__init__.py", "single backslashes", 2),
            (rb"a\u12", b"{}", r"a\u12", "single backslashes", 1),
            (b"a\x01\n\x1b[31m", b"{}", "a\x01\n\x1b[31m", "values with control characters", 1),
            (b"op_\xff\xc3(", b"{}", "op_\ufffd\ufffd(", "bytes that are no UTF-8", 2),
            (b"n", b'{"a": inf, "b": -inf, "c": nan, "d": -nan(ind)}', "n", "numbers that are none (nan, inf)", 4),
        ],
    )
    def test_what_others_mend_is_mended_and_counted(
        self, tmp_path: Path, name: bytes, more: bytes, expected: str, what: str, count: int
    ) -> None:
        content = self._with_operator(name, more)
        assert self._ingest(tmp_path, content) == ([f"t.json: {what} were mended: {count}"], [expected])

    def test_a_byte_order_mark_is_no_fault(self, tmp_path: Path) -> None:
        assert self._ingest(tmp_path, b"\xef\xbb\xbf" + self._with_operator(b"n")) == ([], ["n"])

    def test_mended_values_across_the_pieces_that_are_read(self, tmp_path: Path) -> None:
        names = [rf"d\{'p' * (n % 90)}{n}" for n in range(20_000)]
        text = ", ".join(f'{{"ph": "X", "cat": "c", "name": "{name}", "ts": 1, "dur": nan}}' for name in names)
        path = tmp_path / "t.json"
        path.write_text(f'{{"traceEvents": [{text}]}}')
        assert path.stat().st_size > 2 * CHUNK_CHARS
        trace = ChromeTrace(path)
        assert [event["name"] for event in trace.events()] == names
        assert sum(trace.mended.values()) == 40_000

    def test_two_gzip_members_are_one_document(self, tmp_path: Path) -> None:
        content = self._with_operator(b"n")
        assert self._ingest(tmp_path, gzip.compress(content[:200]) + gzip.compress(content[200:])) == ([], ["n"])

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b'{"traceEvents": [{"ph": "X"},\n {"ph": X}]}', "line 2, byte 38: Expecting value at 'X}]}'"),
            (b'{"traceEvents": [{"ph": "X"},\n {"p', "line 2, byte 34: it ends in the middle"),
            (b'{"traceEvents": [{"ph": "\xc3\xa9"}]}\n{"traceEvents": []}', "line 2, byte 32: another document"),
            (b'{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "line 1, byte 29: expected ',' or ']'"),
        ],
    )
    def test_what_cannot_be_mended_names_line_byte_and_cause(
        self, tmp_path: Path, content: bytes, expected: str
    ) -> None:
        for packed in (content, gzip.compress(content)):
            (tmp_path / "t.json").write_bytes(packed)
            with pytest.raises(KvtraceError, match=re.escape(expected)):
                list(ChromeTrace(tmp_path / "t.json").events())
