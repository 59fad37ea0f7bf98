"""Request traces of Mooncake's and Qwen-Bailian's make, as requests with their block hashes."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.run import Summary, ingest
from kvtrace.ingest.sources import Sources
from kvtrace.queries import Trace
from kvtrace.queries.facts import whole_span

Ask = Callable[[str], list[tuple[Any, ...]]]
MOONCAKE = [
    {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3052, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]},
]
CHATS = [
    {"chat_id": 10, "parent_chat_id": -1, "timestamp": 0.25, "input_length": 33, "output_length": 5, "type": "text",
     "turn": 1, "hash_ids": [1, 2, 3]},
    {"chat_id": 11, "parent_chat_id": 10, "timestamp": 4.5, "input_length": 50, "output_length": 7, "type": "text",
     "turn": 2, "hash_ids": [1, 2, 4, 5]},
    {"chat_id": 12, "parent_chat_id": 11, "timestamp": 5.5, "input_length": 16, "output_length": 1, "type": "text",
     "turn": 3, "hash_ids": [1]},
    {"chat_id": 20, "parent_chat_id": 19, "timestamp": 6, "input_length": 1, "output_length": 1, "type": "file",
     "turn": 2, "hash_ids": [9]},
]  # fmt: skip


@pytest.fixture
def load(tmp_path: Path, query: Callable[[Path], Ask]) -> Callable[..., tuple[Summary, Ask]]:
    """Ingest traces, a list of requests or a path each."""

    def loaded(*traces: list[dict[str, Any]] | Path, options: Options | None = None) -> tuple[Summary, Ask]:
        paths = []
        for nth, trace in enumerate(traces):
            path = trace if isinstance(trace, Path) else tmp_path / f"requests{nth}.jsonl"
            if not isinstance(trace, Path):
                path.write_text("".join(json.dumps(line) + "\n" for line in trace))
            paths.append(path)
        sources = Sources(requests=tuple(paths), options=options or Options())
        summary = ingest(None, tmp_path / "trace.duckdb", sources=sources)
        return summary, query(summary.target)

    return loaded


def test_mooncake(load: Any) -> None:
    summary, ask = load(MOONCAKE)
    assert not summary.warnings
    assert ask("SELECT request, engine_id, prompt_tokens, output_tokens, arrival_ns, session FROM request") == [
        (1, 1, 1030, 5, 0, None), (2, 1, 600, 7, 3_052_000_000, None),
    ]  # fmt: skip
    assert ask("SELECT request, list(block_hash ORDER BY position) FROM request_hash GROUP BY 1 ORDER BY 1") == [
        (1, [0, 1, 2]), (2, [0, 3]),
    ]  # fmt: skip
    assert ask("SELECT block_size_tokens, hash_block_tokens FROM engine") == [(512, 512)]


def test_chats_are_sessions_with_turns(load: Any) -> None:
    summary, ask = load(CHATS)
    assert ask("SELECT external_id, session, turn, arrival_ns FROM request ORDER BY request") == [
        ("10", "10", 1, 250_000_000), ("11", "10", 2, 4_500_000_000), ("12", "10", 3, 5_500_000_000),
        ("20", "19", 2, 6_000_000_000),
    ]  # fmt: skip
    assert ask("SELECT block_size_tokens FROM engine") == [(16,)]
    assert any("1 requests go on from chats not before them" in warning for warning in summary.warnings)


def test_nothing_is_claimed_that_the_trace_does_not_say(load: Any) -> None:
    _, ask = load(MOONCAKE)
    for table in ("prefix_lookup", "request_queued", "step_schedule", "block_event"):
        assert ask(f"SELECT count(*) FROM {table}") == [(0,)]
    assert ask("SELECT DISTINCT step FROM request_hash") == [(None,)]
    assert ask("SELECT count(*) FROM request_state") == [(0,)]  # nobody says that they waited, or still run
    assert ask("SELECT DISTINCT queued_ns, local_cached_tokens, finished_ns FROM request") == [(None, None, None)]


def test_mooncakes_form_may_name_sessions(load: Any) -> None:
    summary, ask = load([MOONCAKE[0] | {"session_id": "a"}, MOONCAKE[1]])
    assert ask("SELECT session FROM request ORDER BY request") == [("a",), (None,)]
    assert not summary.warnings


def test_two_traces_keep_their_requests_and_hashes_apart(load: Any) -> None:
    _, ask = load(MOONCAKE, CHATS)
    assert ask("SELECT engine_id, count(*), min(request) FROM request GROUP BY ALL ORDER BY ALL") == [
        (1, 2, 1),
        (2, 4, 3),
    ]
    assert ask("SELECT engine_id, count(*) FROM request_hash GROUP BY ALL ORDER BY ALL") == [(1, 5), (2, 9)]


def test_the_block_size_is_an_option_and_a_misfit_is_told(load: Any) -> None:
    summary, ask = load(MOONCAKE, options=Options(block_tokens=256))
    assert ask("SELECT block_size_tokens FROM engine") == [(256,)]
    assert any("2 requests have another number of hashes" in warning for warning in summary.warnings)


def test_hexadecimal_hashes_and_packed_files(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE[1] | {"hash_ids": ["ff", "0x10"], "mood": 1}).encode()))
    summary, ask = load(path)
    assert ask("SELECT block_hash FROM request_hash ORDER BY position") == [(255,), (16,)]
    assert any("mood" in warning for warning in summary.warnings)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"timestamp": "x", "input_length": 1}', '{"timestamp": 1, "input_length": -1}',
     '{"timestamp": 1, "input_length": 1, "hash_ids": [1.5]}', '{"timestamp": 1, "input_length": 1, "hash_ids": 3}',
     '{"timestamp": 1e300, "input_length": 1}', '{"timestamp": 1, "input_length": 99999999999}',
     '{"timestamp": -5, "input_length": 1}'],
)  # fmt: skip
def test_a_line_that_is_no_request_is_named_and_left_out(line: str, load: Any, tmp_path: Path) -> None:
    """WHEN a line is no request THEN the others are read; WHEN none is one THEN the file is refused."""
    path = tmp_path / "r.jsonl"
    first = json.dumps(MOONCAKE[0]) + "\n"
    path.write_text(f"{first}{line}\n{json.dumps(MOONCAKE[1])}\n")
    summary, ask = load(path)
    assert ask("SELECT arrival_ns FROM request") == [(0,), (3_052_000_000,)]
    [warning] = summary.warnings
    assert warning.startswith(f"r.jsonl: 1 lines are no requests and were left out: line 2, byte {len(first)}: ")
    assert ask("SELECT rows, imported FROM source_table WHERE source_table = 'no requests'") == [(1, None)]
    summary.target.unlink()
    path.write_text(f"{line}\n")
    with pytest.raises(KvtraceError, match=r"r\.jsonl, line 1, byte 0: ") as error:
        load(path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("trace*"))


def test_broken_json_is_named_by_line_byte_and_cause(load: Any, tmp_path: Path) -> None:
    """GIVEN a byte that is no UTF-8 before it THEN the place still is the file's."""
    path = tmp_path / "r.jsonl"
    bad = b'{"type": "\xff\xfe\xff", "timestamp": 7 "input_length": 3}'
    path.write_bytes(json.dumps(MOONCAKE[0]).encode() + b"\r\n\r\n  " + bad + b"\n")
    begin = path.read_bytes().index(bad)
    faulty, wrong = begin + bad.index(0xFF), begin + bad.index(b'"input')
    summary, _ = load(path)
    assert summary.warnings == [
        f"r.jsonl: bytes that are no UTF-8 were mended: line 3, byte {faulty} (0xff)",
        f"r.jsonl: 1 lines are no requests and were left out: line 3, byte {wrong}: Expecting ',' delimiter",
    ]


def test_a_torn_last_line_is_left_out(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(MOONCAKE[0]) + "\n" + json.dumps(MOONCAKE[1])[:30])
    summary, ask = load(path)
    assert ask("SELECT count(*) FROM request") == [(1,)]
    assert any("line, 2, is cut off" in warning for warning in summary.warnings)


def test_times_of_epoch_milliseconds_are_exact(tmp_path: Path, query: Any) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"timestamp": 1700000000123, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    target = ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=(path,))).target
    assert query(target)("SELECT arrival_ns FROM request") == [(1_700_000_000_123_000_000,)]


def test_a_trace_without_hashes_says_so_at_ingest(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"timestamp": 3, "input_length": 600, "output_length": 5}\n')
    [warning] = ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=(path,))).warnings
    assert warning.startswith("r.jsonl: no request has hashes of its blocks (hash_ids)")


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50,396,109\r
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.25,GPT-4,1087,0,1087,API log
"""
BURST_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.0,,2.5,ChatGPT,36,29,65,API log
19440170.0,d5983bf9,-1,ChatGPT,36,29,65,Conversation log
"""


def test_azures_csv_has_arrivals_without_hashes(load: Any, tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_bytes(AZURE.encode())
    summary, ask = load(tmp_path / "azure.csv")
    assert ask("SELECT prompt_tokens, output_tokens, arrival_ns, finished_ns FROM request ORDER BY request") == [
        (374, 44, 1_700_158_546_680_590_000, None), (396, 109, 1_700_158_550_000_000_000, None),
    ]  # fmt: skip
    assert ask("SELECT block_size_tokens FROM engine") == [(None,)]
    assert ask("SELECT value FROM run WHERE key LIKE '%format'") == [
        ("Azure: times of day, taken for UTC (by its fields)",)
    ]
    [warning] = summary.warnings
    assert "no request has hashes" in warning


def test_azures_later_csvs_have_zones_and_images(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = "2024-05-10 02:00:00.009930+02:00,2,2162,5\nyesterday,0,1,1\n2024-02-30 00:00:00,0,1,1\n"
    path.write_text("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n" + rows)
    summary, ask = load(path)
    assert ask("SELECT prompt_tokens, arrival_ns FROM request") == [(2162, 1_715_299_200_009_930_000)]
    assert (
        "2 lines are no requests and were left out: line 3, byte 92: TIMESTAMP is 'yesterday', no time"
        in (summary.warnings[0])
    )


def test_burstgpts_csv_has_arrivals_and_later_ones_sessions_and_ends(load: Any, tmp_path: Path) -> None:
    (tmp_path / "b1.csv").write_text(BURST)
    (tmp_path / "b3.csv").write_text(BURST_3)
    summary, ask = load(tmp_path / "b1.csv", tmp_path / "b3.csv")
    asked = "SELECT prompt_tokens, output_tokens, arrival_ns, finished_ns, session FROM request ORDER BY request"
    assert ask(asked) == [
        (472, 18, 5 * 10**9, None, None), (1087, 0, 45_250_000_000, None, None),
        (906, 446, 19_440_110 * 10**9, 19_440_153 * 10**9, "1722ac82"),
        (36, 29, 19_440_161 * 10**9, 19_440_163_500_000_000, None), (36, 29, 19_440_170 * 10**9, None, "d5983bf9"),
    ]  # fmt: skip
    assert "b3.csv: 1 times cannot be (before the arrival, or over 30 days after) and became NULL" in summary.warnings


def _dynamo(number: int, hashes: list[int], **more: Any) -> dict[str, Any]:
    replay = {"trace_block_size": 64, "input_length": 64 * len(hashes) - 3, "input_sequence_hashes": hashes}
    request = {"request_id": f"r{number}", "request_received_ms": 1_777_312_800_000 + number, "output_tokens": 16}
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end",
        "event_time_unix_ms": 1_777_312_801_000 + number, "request": {**request, "replay": replay, **more},
    }  # fmt: skip


def test_dynamos_records_are_requests_and_their_payloads_are_never_read(load: Any) -> None:
    big = 14_879_255_164_371_896_291
    head = {"schema": "dynamo.request.trace.v1", "event_time_unix_ms": 1}
    more = {"ttft_ms": 12.5, "cached_tokens": 64, "model": "m", "finish_reason_metadata": {"finish_reason": "stop"}}
    second = _dynamo(7, [big, 5], **more) | {"agent_context": {"session_id": "s", "parent_session_id": "t"}}
    payload = {"request_id": "r7", "request": {"messages": [{"content": "plain words"}]}}
    records = [
        _dynamo(0, [big, 3]), {"timestamp": 1, "event": second}, {**head, "event_type": "tool_end", "tool": {}},
        {**head, "event_type": "request_payload", "payload": payload},
    ]  # fmt: skip
    summary, ask = load(records)
    start = 1_777_312_800_000
    assert ask("SELECT external_id, session, prompt_tokens, output_tokens, arrival_ns // 1000000, first_token_ns, "
               "finished_ns // 1000000, finish_reason::VARCHAR FROM request ORDER BY request"
    ) == [
        ("r0", None, 125, 16, start, None, start + 1000, None),
        ("r7", "s", 125, 16, start + 7, (start + 7) * 10**6 + 12_500_000, start + 1007, "stop"),
    ]  # fmt: skip
    assert ask("SELECT list(block_hash ORDER BY position) FROM request_hash GROUP BY request ORDER BY request") == [
        ([big, 3],), ([big, 5],),
    ]  # fmt: skip
    assert ask("SELECT request_id, cached_tokens, send_ns // 1000000 FROM client_request") == [("r7", 64, start + 7)]
    assert ask("SELECT model, block_size_tokens FROM engine") == [("m", 64)]
    assert summary.warnings == [
        "requests0.jsonl: records that are no requests were left out: 1 request_payload, 1 tool_end"
    ]
    assert b"plain words" not in summary.target.read_bytes()


def test_vcrs_gaps_become_times_of_tokens(load: Any) -> None:
    meta = {"meta": {"model": "q", "block_size": 16, "source": "tap"}}
    first = {
        "prompt_tokens": 40, "cached_tokens": 16, "output_tokens": 5, "ttft_ms": 15.5, "itl_ms": [10, 12.25],
        "itl_tokens": [3, 1], "arrival_ms": 100.0, "block_hashes": [7, 8], "finish_reason": "length",
        "output_token_ids": [501, 502, 503, 504, 505], "concurrency": 1,
    }  # fmt: skip
    summary, ask = load([meta, first, {"prompt_tokens": 5, "output_tokens": 1, "ttft_ms": 4, "arrival_ms": 1}])
    assert ask("SELECT prompt_tokens, output_tokens, arrival_ns, first_token_ns, finished_ns, finish_reason::VARCHAR "
               "FROM request ORDER BY request"
    ) == [
        (40, 5, 100_000_000, 115_500_000, 137_750_000, "length"), (5, 1, 1_000_000, 5_000_000, 5_000_000, None),
    ]  # fmt: skip
    at = [115_500_000, 125_500_000, 125_500_000, 125_500_000, 137_750_000]
    assert ask("SELECT cached_tokens, token_ns FROM client_request ORDER BY request") == [(16, at), (None, None)]
    assert ask("SELECT block_hash FROM request_hash ORDER BY position") == [(7,), (8,)]
    assert ask("SELECT model, block_size_tokens FROM engine") == [("q", 16)]
    assert not summary.warnings


def test_vcrs_requests_without_an_arrival_are_said(load: Any) -> None:
    summary, ask = load([{"prompt_tokens": 32, "output_tokens": 3, "ttft_ms": 18.5, "itl_ms": [9, 9]}])
    assert ask("SELECT arrival_ns, first_token_ns FROM request") == [(None, None)]
    assert "requests0.jsonl: 1 requests have no arrival_ms: when they came is not known" in summary.warnings


def test_a_packed_trace_that_is_still_written_is_read_so_far(load: Any, tmp_path: Path) -> None:
    """GIVEN a gzip stream that was flushed after each line and has no end yet THEN its lines are read."""
    packer = zlib.compressobj(wbits=31)
    parts = [packer.compress((json.dumps(each) + "\n").encode()) + packer.flush(zlib.Z_SYNC_FLUSH) for each in MOONCAKE]
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(b"".join(parts))
    summary, ask = load(path)
    assert ask("SELECT count(*) FROM request") == [(2,)]
    assert summary.warnings == ["r.jsonl.gz: the packed file lacks its end, as while it is written; 2 lines were read"]


def test_the_trace_spans_from_the_first_arrival_to_the_last_end(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in MOONCAKE))
    with Trace(ingest(None, tmp_path / "t.duckdb", sources=Sources(requests=(path,))).target) as trace:
        assert whole_span(trace) == (0, 3_052_000_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"), ("v.jsonl", '{"meta": {"source": "tap"}}\n'),
     ("d.jsonl", '{"schema": "dynamo.request.trace.v1", "event_type": "tool_end"}\n')],
)  # fmt: skip
def test_a_trace_without_a_request_says_so(name: str, content: str, load: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(KvtraceError, match="holds no request"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [({"itl_ms": [1, -1]}, "itl_ms is -1, no duration"), ({"itl_tokens": [1]}, "have different lengths"),
     ({"itl_tokens": [9, 9]}, "does not add up to output_tokens"), ({"ttft_ms": "soon"}, "ttft_ms is 'soon'"),
     ({"cached_tokens": -1}, "cached_tokens is -1, no count")],
)  # fmt: skip
def test_what_is_wrong_with_a_vcr_line_is_said(wrong: dict[str, Any], cause: str, load: Any) -> None:
    good = {"prompt_tokens": 5, "output_tokens": 3, "ttft_ms": 4, "itl_ms": [1, 1], "arrival_ms": 1}
    summary, ask = load([good, good | wrong])
    assert ask("SELECT count(*) FROM request") == [(1,)]
    assert cause in summary.warnings[0]


def test_a_dynamo_hash_that_covers_no_token_is_left_out(load: Any) -> None:
    wrong = _dynamo(1, [7])
    wrong["request"]["replay"]["trace_block_size"] = 0
    summary, ask = load([_dynamo(0, [7]), wrong])
    assert ask("SELECT block_size_tokens, count(*) FROM engine, request GROUP BY 1") == [(64, 1)]
    assert "trace_block_size is 0" in summary.warnings[0]


def test_a_heading_that_is_no_csv_is_refused_in_one_line(load: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('TIMESTAMP,ContextTokens,Gen"erated\rTokens\n1,2,3\n')
    with pytest.raises(KvtraceError, match=r"a\.csv, line 1, byte 0: "):
        load(tmp_path / "a.csv")
