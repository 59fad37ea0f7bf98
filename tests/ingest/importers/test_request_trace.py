"""Request traces of Mooncake's and Qwen-Bailian's make, as requests with their block hashes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import KvtraceError
from kvtrace.ingest.importers.options import Options
from kvtrace.ingest.run import Summary, ingest
from kvtrace.ingest.sources import Sources

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
    assert ask("SELECT DISTINCT queued_ns, local_cached_tokens, finished_ns FROM request") == [(None, None, None)]


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
     '{"timestamp": 1e300, "input_length": 1}', '{"timestamp": 1, "input_length": 99999999999}'],
)  # fmt: skip
def test_a_line_that_is_no_request_is_named(line: str, load: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(MOONCAKE[0]) + f"\n{line}\n")
    with pytest.raises(KvtraceError, match=r"r\.jsonl, line 2: ") as error:
        load(path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("trace*"))


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
    assert warning.startswith("r.jsonl: no request has hash_ids")
