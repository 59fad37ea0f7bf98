"""Damaged, truncated, foreign and newer inputs: a clear message that names the file, or a trace; nothing else."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.capture.recorder import Recorder
from kvtrace.errors import DamageError, KvtraceError
from kvtrace.events import BLOCK_EVENT, EVENTS, REQUEST_QUEUED, SCHEMA_VERSION
from kvtrace.format import layout
from kvtrace.format.reader import open_recording
from kvtrace.ingest.run import Summary, ingest

RECORD = BLOCK_EVENT.struct.size
FIRST = layout.SEGMENT_HEADER_BYTES


@pytest.fixture
def segment(small_run: Path, process_dir: Callable) -> Path:
    return process_dir(small_run) / "block_event.00000.seg"


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def block_counts(summary: Summary) -> tuple[int, int]:
    (stream,) = (stream for stream in summary.streams if stream.event == "block_event")
    return stream.records, stream.torn


def edit_header(path: Path, **changes: object) -> None:
    data = path.read_bytes()
    magic, version, size, length = layout.SEGMENT_HEADER.unpack_from(data)
    start = layout.SEGMENT_HEADER.size
    header = json.dumps(json.loads(data[start : start + length]) | changes).encode()
    patch(path, 0, layout.SEGMENT_HEADER.pack(magic, version, size, len(header)) + header)


class TestTornRecords:
    def test_one_in_the_middle_is_skipped_and_counted(self, small_run: Path, segment: Path, query: Callable) -> None:
        patch(segment, FIRST + 41 * RECORD - 1, b"\0")
        summary = ingest(small_run)
        assert block_counts(summary) == (99, 1)
        assert query(summary.target)("SELECT count(*) FROM block_event WHERE block_id = 40") == [(0,)]
        assert any(
            "1 records of block_event were left out: something overwrote" in warning for warning in summary.warnings
        )

    def test_the_last_one_half_written_is_blamed_on_the_process(self, small_run: Path, segment: Path) -> None:
        patch(segment, FIRST + 100 * RECORD, b"\7" * 9)
        (warning,) = ingest(small_run).warnings
        assert warning.endswith("1 torn records of block_event were left out: the process died while it wrote them")

    @pytest.mark.parametrize(
        ("slot", "content"),
        [
            (40, bytes(RECORD)),  # whole records follow
            (100, b"\xff" * RECORD),  # no process sets a last byte to that
            (102, b"\7"),  # nor leaves a place before one it writes to
        ],
    )
    def test_overwritten_bytes_are_not_blamed_on_it(
        self, small_run: Path, segment: Path, slot: int, content: bytes
    ) -> None:
        patch(segment, FIRST + slot * RECORD, content)
        (warning,) = ingest(small_run).warnings
        assert "something overwrote their bytes" in warning

    def test_one_after_the_last_whole_one_is_counted(self, small_run: Path, segment: Path) -> None:
        patch(segment, FIRST + 101 * RECORD + 3, b"\7")
        assert block_counts(ingest(small_run)) == (100, 1)

    def test_a_reserved_place_that_nothing_was_written_to_is_nothing(self, small_run: Path, segment: Path) -> None:
        patch(segment, FIRST + 99 * RECORD, bytes(RECORD))
        assert block_counts(ingest(small_run)) == (99, 0)

    def test_an_empty_place_before_whole_records_is_torn(self, small_run: Path, segment: Path) -> None:
        patch(segment, FIRST, bytes(RECORD))
        assert block_counts(ingest(small_run)) == (99, 1)

    def test_an_empty_place_before_a_later_segment_is_torn(
        self, run_dir: Path, process_dir: Callable, blocks: Callable
    ) -> None:
        blocks(Recorder(run_dir), 10_000)
        first = process_dir(run_dir) / "block_event.00000.seg"
        slots = (first.stat().st_size - FIRST) // RECORD
        patch(first, FIRST + (slots - 1) * RECORD, bytes(RECORD))
        assert block_counts(ingest(run_dir)) == (9_999, 1)


class TestSegments:
    def expect(self, run: Path, *parts: str) -> None:
        with pytest.raises(KvtraceError) as raised:
            ingest(run)
        for part in parts:
            assert part in str(raised.value)
        assert not list(run.glob("trace.duckdb*"))

    def test_a_newer_format_names_both_versions(self, small_run: Path, segment: Path) -> None:
        patch(segment, 8, struct.pack("<I", 7))
        self.expect(small_run, str(segment), "format version 7", f"reads {layout.FORMAT_VERSION}", "newer")

    def test_a_newer_schema_names_both_versions(self, small_run: Path, segment: Path) -> None:
        edit_header(segment, schema_version=SCHEMA_VERSION + 1)
        self.expect(small_run, str(segment), f"schema version {SCHEMA_VERSION + 1}", f"reads {SCHEMA_VERSION}", "newer")

    def test_an_unknown_event(self, small_run: Path, segment: Path) -> None:
        edit_header(segment, event="tile_load")
        self.expect(small_run, str(segment), "'tile_load'", "newer")

    def test_a_foreign_file(self, small_run: Path, segment: Path) -> None:
        segment.write_bytes(b"SQLite format 3\0" * 1000)
        self.expect(small_run, str(segment), "no kvtrace segment", "SQLite f")

    @pytest.mark.parametrize("length", [3, 5_000, FIRST + 50 * RECORD])
    def test_a_truncated_file(self, small_run: Path, segment: Path, length: int) -> None:
        with segment.open("r+b") as file:
            file.truncate(length)
        self.expect(small_run, str(segment), "KVT" if length < 8 else "truncated")

    def test_a_damaged_header(self, small_run: Path, segment: Path) -> None:
        patch(segment, layout.SEGMENT_HEADER.size, b"}")
        self.expect(small_run, str(segment), "damaged")

    def test_a_wiped_magic_over_records(self, small_run: Path, segment: Path) -> None:
        patch(segment, 0, bytes(8))
        self.expect(small_run, str(segment), "damaged")

    def test_one_that_was_being_made_holds_nothing(self, small_run: Path, segment: Path) -> None:
        (segment.parent / "forward.00000.seg").write_bytes(bytes(1 << 18))
        (segment.parent / "step_update.00000.seg").write_bytes(b"")
        patch(segment.parent / "forward.00000.seg", 20, b'{"event": "forw')
        assert ingest(small_run).records == 101

    def test_a_missing_one_is_reported(self, run_dir: Path, process_dir: Callable, blocks: Callable) -> None:
        blocks(Recorder(run_dir, largest_segment_bytes=1 << 18), 20_000)
        (process_dir(run_dir) / "block_event.00001.seg").unlink()
        summary = ingest(run_dir)
        assert any("block_event.00001.seg is missing" in warning for warning in summary.warnings)

    def test_other_fields_are_left_out_and_missing_ones_are_null(
        self, small_run: Path, segment: Path, query: Callable
    ) -> None:
        fields = [[f.name, f.type.name, f.type.code] for f in BLOCK_EVENT.fields]
        fields[-1] = ["colour", "u8", "B"]
        edit_header(segment, fields=fields)
        summary = ingest(small_run)
        assert query(summary.target)("SELECT count(*), count(pool) FROM block_event") == [(100, 0)]
        assert any("colour" in warning for warning in summary.warnings)
        assert any("block_event.pool was not recorded" in warning for warning in summary.warnings)

    def test_values_that_mean_nothing_are_null_and_counted(
        self, small_run: Path, segment: Path, query: Callable
    ) -> None:
        operation = struct.calcsize("<qii")
        patch(segment, FIRST + operation, b"\xc8")
        request = struct.calcsize("<qiiBi")
        patch(segment, FIRST + 5 * RECORD + request, struct.pack("<I", 4_000_000_000))
        summary = ingest(small_run)
        assert query(summary.target)("SELECT count(op), count(request) FROM block_event") == [(99, 99)]
        assert any("1 values of block_event.op" in warning for warning in summary.warnings)
        assert any("1 values of block_event.request" in warning for warning in summary.warnings)


class TestJournals:
    def test_a_torn_last_line_is_reported(self, small_run: Path, process_dir: Callable) -> None:
        journal = process_dir(small_run) / layout.JOURNAL
        with journal.open("a") as file:
            file.write('{"kind": "hook", "hook": "x')
        summary = ingest(small_run)
        assert summary.records == 101
        assert any("journal.jsonl" in warning and "torn" in warning for warning in summary.warnings)

    def test_a_torn_last_string_is_reported(self, small_run: Path, process_dir: Callable) -> None:
        with (process_dir(small_run) / layout.STRINGS).open("a") as file:
            file.write('[3, "half')
        assert any("strings.jsonl" in warning and "torn" in warning for warning in ingest(small_run).warnings)

    def test_tiles_that_were_all_lost_are_told_of(self, run_dir: Path, small_run: Path) -> None:
        none = {"steps": 0, "filtered_steps": 0, "tiles": 0, "bytes": 0}
        Recorder(run_dir).note("tiles", opens=True, lost_steps=12, unwritten_steps=3, **none)
        warnings = " ".join(ingest(small_run).warnings)
        assert "tiles of 12 steps were dropped whole" in warnings
        assert "tiles of the last 3 steps could not be written" in warnings

    @pytest.mark.parametrize("name", [layout.JOURNAL, layout.STRINGS])
    def test_a_damaged_line_is_named(self, small_run: Path, process_dir: Callable, name: str) -> None:
        path = process_dir(small_run) / name
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(lines[0] + "\0garbage\n" + "".join(lines[1:]))
        with pytest.raises(KvtraceError, match=f"{name} is damaged: line 2"):
            ingest(small_run)

    def test_a_newer_one_names_both_versions(self, small_run: Path, process_dir: Callable) -> None:
        path = process_dir(small_run) / layout.JOURNAL
        path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 3'))
        with pytest.raises(KvtraceError, match=r"journal.jsonl has format version 3, this kvtrace reads 1"):
            ingest(small_run)

    def test_unknown_kinds_keys_and_odd_values_do_not_matter(
        self, small_run: Path, process_dir: Callable, query: Callable
    ) -> None:
        with (process_dir(small_run) / layout.JOURNAL).open("a") as file:
            file.write('{"kind": "weather", "sun": true}\n')
            file.write('{"kind": "engine", "max_num_seqs": "many", "colour": 3, "policy": "fcfs"}\n')
            file.write('{"kind": "hook", "hook": "vllm.x:Y.z", "state": "disabled", "detail": "it failed"}\n')
        summary = ingest(small_run)
        select = query(summary.target)
        assert select("SELECT model, max_num_seqs, policy, blocks FROM engine") == [("tiny", None, "fcfs", 100)]
        assert select("SELECT hook, state, detail FROM hook") == [("vllm.x:Y.z", "disabled", "it failed")]
        assert any("max_num_seqs is 'many'" in warning for warning in summary.warnings)

    def test_an_engine_of_an_older_kvtrace_keeps_its_settings(
        self, small_run: Path, process_dir: Callable, query: Callable
    ) -> None:
        with (process_dir(small_run) / layout.JOURNAL).open("a") as file:
            file.write('{"kind": "engine", "max_seqs": 8, "max_batched_tokens": 512, "max_model_tokens": 1024}\n')
        select = query(ingest(small_run).target)
        assert select("SELECT max_num_seqs, max_num_batched_tokens, max_model_len FROM engine") == [(8, 512, 1024)]

    def test_a_process_that_ended_at_once_is_reported(self, small_run: Path) -> None:
        (small_run / layout.PROCESSES / "host-7-9").mkdir()
        recording = open_recording(small_run)
        assert len(recording.processes) == 1
        assert any("host-7-9 holds nothing" in warning for warning in recording.warnings)

    def test_damaged_counters(self, small_run: Path, process_dir: Callable) -> None:
        path = process_dir(small_run) / layout.COUNTERS
        patch(path, 0, b"X")
        with pytest.raises(KvtraceError, match=r"counters.bin is damaged"):
            ingest(small_run)

    def test_more_lost_records_than_can_be(self, small_run: Path, process_dir: Callable) -> None:
        patch(process_dir(small_run) / layout.COUNTERS, layout.COUNTERS_HEADER_BYTES, b"\xff" * 8)
        with pytest.raises(KvtraceError, match=r"counters.bin is damaged: it counts 18446744073709551615 records"):
            ingest(small_run)


class TestManifest:
    def test_a_missing_one_is_a_warning(self, small_run: Path, query: Callable) -> None:
        (small_run / layout.MANIFEST).unlink()
        summary = ingest(small_run)
        assert any("manifest.json is missing" in warning for warning in summary.warnings)
        # and the trace names no path of this machine
        ((kept,),) = query(summary.target)("SELECT value FROM run WHERE key = 'warnings'")
        assert kept.startswith("manifest.json is missing")

    def test_a_damaged_one(self, small_run: Path) -> None:
        (small_run / layout.MANIFEST).write_text('{"format')
        with pytest.raises(KvtraceError, match=r"manifest.json is damaged"):
            ingest(small_run)


class TestSkipDamaged:
    """`skip_damaged`: what is whole is in the trace, and what is not is named."""

    @pytest.fixture
    def left(self, small_run: Path, query: Callable) -> Callable[..., Callable]:
        """Ingests what is left, checks that each of `parts` is told of, and returns a way to ask the trace."""

        def ingested(*parts: str) -> Callable:
            with pytest.raises(DamageError):
                ingest(small_run)
            summary = ingest(small_run, skip_damaged=True)
            told = "\n".join(summary.warnings)
            for part in ("left out: ", *parts):
                assert part in told
            assert len(set(summary.warnings)) == len(summary.warnings)
            return query(summary.target)

        return ingested

    def test_a_whole_recording_is_the_same_with_it(self, small_run: Path) -> None:
        summary = ingest(small_run, skip_damaged=True)
        assert (summary.records, summary.warnings) == (101, [])

    @pytest.mark.parametrize("content", [b"SQLite format 3\0" * 1000, b"KVT", b"KVTRACE\n" + bytes(8000)])
    def test_a_segment_that_is_none(self, segment: Path, left: Callable, content: bytes) -> None:
        segment.write_bytes(content)
        select = left(str(segment))
        assert select("SELECT count(*) FROM block_event") == [(0,)]
        assert select("SELECT prompt_tokens FROM request_queued") == [(7,)]

    def test_a_segment_cut_off_keeps_its_records(self, segment: Path, left: Callable) -> None:
        with segment.open("r+b") as file:
            file.truncate(FIRST + 50 * RECORD + 3)
        select = left(f"{segment} is truncated")
        assert select("SELECT count(*), max(block_id) FROM block_event") == [(50, 49)]

    def test_something_appended_to_a_segment(self, segment: Path, left: Callable) -> None:
        with segment.open("ab") as file:
            file.write(b"\1" * 10 * RECORD)
        assert left(str(segment))("SELECT count(*) FROM block_event") == [(100,)]

    def test_an_emptied_segment_before_others(
        self, run_dir: Path, process_dir: Callable, blocks: Callable, query: Callable
    ) -> None:
        blocks(Recorder(run_dir, largest_segment_bytes=1 << 18), 20_000)
        (process_dir(run_dir) / "block_event.00001.seg").write_bytes(b"")
        with pytest.raises(DamageError, match=r"block_event.00001.seg is damaged: it is empty"):
            ingest(run_dir)
        summary = ingest(run_dir, skip_damaged=True)
        assert 0 < summary.records < 20_000
        assert sum("block_event.00001.seg is empty" in warning for warning in summary.warnings) == 1

    def test_times_that_cannot_be(self, small_run: Path, segment: Path) -> None:
        patch(segment, FIRST + 7 * RECORD, struct.pack("<q", 1 << 62))
        summary = ingest(small_run, skip_damaged=True)
        assert block_counts(summary) == (99, 1)
        assert any(
            "1 records of block_event were left out: something overwrote" in warning for warning in summary.warnings
        )

    def test_a_line_of_the_journal(self, small_run: Path, process_dir: Callable, left: Callable) -> None:
        path = process_dir(small_run) / layout.JOURNAL
        lines = path.read_text().splitlines(keepends=True)
        (number,) = (n for n, line in enumerate(lines) if '"engine"' in line and '"model"' in line)
        lines[number] = '{"kind": "eng\0\n'
        path.write_text("".join(lines))
        select = left(f"journal.jsonl is damaged: line {number + 1}")
        assert select("SELECT count(*) FROM block_event") == [(100,)]
        assert select("SELECT count(*) FROM hook") == [(1,)]

    @pytest.mark.parametrize("rest", ["", "\n\0\0\n"])
    def test_the_journals_first_line_or_all_of_it(
        self, small_run: Path, process_dir: Callable, left: Callable, rest: str
    ) -> None:
        path = process_dir(small_run) / layout.JOURNAL
        others = path.read_text().splitlines(keepends=True)[1:]
        path.write_text(rest + ("".join(others) if rest else ""))
        select = left("pid and clock are those of block_event.00000.seg")
        assert select("SELECT count(*) FROM block_event") == [(100,)]
        assert select("SELECT pid FROM process") == [(os.getpid(),)]

    def test_a_process_of_which_nothing_is_whole(self, small_run: Path, process_dir: Callable, left: Callable) -> None:
        other = process_dir(small_run).parent / "host-7-9"
        other.mkdir()
        (other / layout.JOURNAL).write_text("\0\n\0\n")
        (other / "forward.00000.seg").write_bytes(b"\1" * 10_000)
        assert left("host-7-9, all of its process")("SELECT count(*) FROM process") == [(1,)]

    @pytest.mark.parametrize(
        ("line", "kept"),
        [
            ("\0garbage\n", ["a", "c", "d", "e"]),
            ('[900, "b"]\n', ["a", "c", "d", "e"]),
            ("\0\n\0\n\0\n", ["a", "c", "d", "e"]),
            ("\0" * 9, ["a", "d", "e"]),  # the end of the line went, too
        ],
    )
    def test_a_string(self, run_dir: Path, process_dir: Callable, query: Callable, line: str, kept: list[str]) -> None:
        recorder = Recorder(run_dir)
        for name in "abcde":
            recorder.stream(REQUEST_QUEUED)(10**12, recorder.intern(name), 1, 7, 3, 0, 0, 1, 0)
        path = process_dir(run_dir) / layout.STRINGS
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(lines[0] + line + "".join(lines[2:]))
        with pytest.raises(DamageError):
            ingest(run_dir)
        summary = ingest(run_dir, skip_damaged=True)
        assert any(str(path) in warning for warning in summary.warnings)
        assert any("values of request_queued.request mean nothing" in warning for warning in summary.warnings)
        select = query(summary.target)
        assert [name for (name,) in select("SELECT internal_id FROM request ORDER BY ALL")] == kept

    @pytest.mark.parametrize("name", [layout.COUNTERS, layout.KEPT])
    def test_counts_of_what_is_lost(self, small_run: Path, process_dir: Callable, left: Callable, name: str) -> None:
        (process_dir(small_run) / name).write_bytes(b"X" * 5000)
        assert left(f"{name} is damaged")("SELECT sum(records) FROM stream") == [(101,)]

    def test_the_manifest(self, small_run: Path, left: Callable) -> None:
        (small_run / layout.MANIFEST).write_text('{"format')
        assert left("manifest.json is damaged")("SELECT sum(records) FROM stream") == [(101,)]

    def test_what_clients_saw(self, small_run: Path, left: Callable) -> None:
        lines = ['{"request_id": "req-1", "send_ns": 5}', "\0", '{"request_id": 7, "send_ns": "x"}', '{"send_ns": 1}']
        (small_run / layout.CLIENT).write_text("\n".join([*lines, lines[0], ""]))
        with pytest.raises(KvtraceError):
            ingest(small_run)
        summary = ingest(small_run, skip_damaged=True)
        assert sum("client.jsonl" in warning for warning in summary.warnings) == 3

    def test_nothing_whole_is_an_error(self, small_run: Path, process_dir: Callable) -> None:
        for path in process_dir(small_run).iterdir():
            path.write_bytes(b"\1" * 5000)
        with pytest.raises(KvtraceError, match="holds no recorded process"):
            ingest(small_run, skip_damaged=True)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with all streams in it, kept small."""
    run = tmp_path_factory.mktemp("pristine") / "run"
    run.mkdir()
    recorder = Recorder(run, largest_segment_bytes=1 << 13)
    recorder.note("role", role="engine")
    recorder.note("engine", model="tiny")
    for event in EVENTS.values():
        for i in range(1, 4):
            recorder.stream(event)(*(recorder.intern(f"s{i}") if f.type.code == "I" else i % 2 for f in event.fields))
    manifest = {"format_version": 1, "kvtrace_version": "0.1.0", "command": ["x"], "started_ns": 1, "pid": 2}
    (run / layout.MANIFEST).write_text(json.dumps(manifest))
    return run


def _damage(data: st.DataObject, path: Path) -> str:
    content = path.read_bytes()
    used = len(content.rstrip(b"\0")) or 1
    position = data.draw(st.integers(0, used - 1), label="position")
    kind = data.draw(st.sampled_from(["flip", "flip", "flip", "truncate", "empty", "insert", "remove"]), label="kind")
    if kind == "flip":
        flipped = content[position] ^ data.draw(st.integers(1, 255), label="bits")
        path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
    elif kind == "insert":
        path.write_bytes(content[:position] + data.draw(st.binary(min_size=1, max_size=9)) + content[position:])
    elif kind == "remove":
        path.unlink()
    else:
        path.write_bytes(content[: position if kind == "truncate" else 0])
    return kind


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_gives_a_trace_or_an_error_that_names_the_file(pristine: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        shutil.copytree(pristine, run)
        files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
        path = run / data.draw(st.sampled_from(files), label="file")
        _damage(data, path)
        error = _error_of_ingest(run)
        traces = [found.name for found in run.glob("trace.duckdb*")]
        assert traces == ([] if error else ["trace.duckdb"])
        assert not error or path.name in error
        if error:
            again = _error_of_ingest(run, skip_damaged=True)
            assert not again or "with the kvtrace that recorded it" in again  # a newer one's file is not damaged


def _error_of_ingest(run: Path, *, skip_damaged: bool = False) -> str:
    try:
        ingest(run, skip_damaged=skip_damaged)
    except KvtraceError as error:
        return str(error)
    return ""
