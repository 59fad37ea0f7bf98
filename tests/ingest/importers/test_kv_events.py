"""vLLM's own KV events from a file, and their comparison with what kvtrace recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import BLOCK_EVENT, BlockOp
from kvtrace.ingest.run import ingest
from kvtrace.ingest.sources import Sources
from kvtrace.probes.kv_events import as_line

STORED = {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": 10, "block_size": 16, "medium": "GPU"}
REMOVED = {"type": "BlockRemoved", "block_hashes": [11], "medium": "GPU"}


def write(path: Path, *batches: tuple[int, list[dict[str, Any]]]) -> Path:
    lines = [json.dumps({"sequence": number, "ts": 1.5, "events": events}) for number, events in batches]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def load(path: Path, query: Callable, run: Path | None = None) -> tuple[Any, Callable]:
    summary = ingest(run, path.with_name("trace.duckdb"), sources=Sources(kv_events=(path,)))
    return summary, query(summary.target)


def test_a_row_a_block(tmp_path: Path, query: Callable) -> None:
    path = write(tmp_path / "e.jsonl", (0, [STORED]), (1, [REMOVED, {"type": "AllBlocksCleared"}]))
    summary, ask = load(path, query)
    assert ask(
        "SELECT sequence, position, time_ns, op::VARCHAR, block_hash, parent_hash, block_size_tokens FROM kv_event"
    ) == [
        (0, 0, 1_500_000_000, "stored", 11, 10, 16),
        (0, 0, 1_500_000_000, "stored", 12, 11, 16),
        (1, 0, 1_500_000_000, "removed", 11, None, None),
        (1, 1, 1_500_000_000, "cleared", None, None, None),
    ]
    assert not summary.warnings


def test_published_events_that_were_not_recorded_are_counted(tmp_path: Path, query: Callable) -> None:
    """Stored 11 and 12 twice, recorded 11 once and 12 three times: three of four are matched."""
    run = tmp_path / "run"
    run.mkdir()
    recorder = Recorder(run)
    recorder.note("role", role="engine")
    emit = recorder.stream(BLOCK_EVENT)
    for number in (11, 12, 12, 12):
        emit(10**12, 1, number, BlockOp.cache, 1, 0, number, 0, 0)
    emit(10**12, 1, 11, BlockOp.evict, 0, 0, 11, 0, 0)
    elsewhere = {**STORED, "medium": "CPU"}
    path = write(tmp_path / "e.jsonl", (0, [STORED, STORED, REMOVED, elsewhere]))
    summary, _ = load(path, query, run)
    joins = {join.name: (join.matched, join.unmatched) for join in summary.joins}
    assert joins["kv_event stored -> block_event cache"] == (3, 1)
    assert joins["kv_event removed -> block_event evict"] == (1, 0)


def test_missing_batches_and_a_torn_line_are_reported(tmp_path: Path, query: Callable) -> None:
    path = write(tmp_path / "e.jsonl", (0, [REMOVED]), (4, [REMOVED]))
    with path.open("a") as file:
        file.write('{"sequence": 5, "ts"')
    summary, ask = load(path, query)
    assert ask("SELECT count(*) FROM kv_event") == [(2,)]
    assert any("3 batches are missing" in warning for warning in summary.warnings)
    assert any("last line was being written" in warning for warning in summary.warnings)


@pytest.mark.parametrize("line", ["{}", "nonsense", '{"sequence": 0, "ts": 1, "events": 3}', "[1, []]"])
def test_a_line_that_is_no_batch_is_named_and_left_out(tmp_path: Path, query: Callable, line: str) -> None:
    """WHEN a line is no batch THEN the others are read; WHEN none is one THEN the file is refused."""
    path = write(tmp_path / "e.jsonl", (0, [REMOVED]))
    size = path.stat().st_size
    path.write_text(path.read_text() + f"{line}\n")
    summary, ask = load(path, query)
    assert ask("SELECT count(*) FROM kv_event") == [(1,)]
    [warning] = [each for each in summary.warnings if "left out" in each]
    assert warning.startswith(f"e.jsonl: 1 lines are no batch of KV events and were left out: line 2, byte {size}: ")
    path.write_text(f"{line}\n")
    with pytest.raises(KvtraceError, match=r"e\.jsonl, line 1, byte 0: "):
        load(path, query)


class TestRecordedLine:
    def test_tokens_and_sessions_stay_behind(self) -> None:
        event = {**STORED, "token_ids": [1, 2], "extra_keys": [["salt"]], "session_id": "s", "lora_id": None}
        line = json.loads(as_line(3, [1.5, [event], 0]))
        assert line == {"sequence": 3, "ts": 1.5, "events": [STORED], "data_parallel_rank": 0}

    def test_lists_of_older_versions_and_whole_hashes(self, tmp_path: Path, query: Callable) -> None:
        whole = bytes(range(32))
        line = as_line(0, [2.0, [["BlockStored", [whole], None, [7], 16, None, "GPU"]]])
        path = tmp_path / "e.jsonl"
        path.write_text(line + "\n")
        _, ask = load(path, query)
        assert ask("SELECT block_hash, block_size_tokens, medium FROM kv_event") == [
            (int.from_bytes(whole[-8:], "big"), 16, "GPU")
        ]
