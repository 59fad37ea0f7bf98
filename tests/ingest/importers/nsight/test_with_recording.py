"""Exports beside a recording: clocks, steps without NVTX, KV windows on kernels, and the manifest's own exports."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.errors import KvtraceError
from kvtrace.events import FORWARD, KV_WINDOW, STEP_SCHEDULE, STEP_UPDATE, Event, GraphMode, WindowKind
from kvtrace.format import layout
from kvtrace.ingest.gpu import refine
from kvtrace.ingest.run import ingest
from kvtrace.ingest.schema.trace import TRACE_VERSION
from kvtrace.ingest.sources import Sources

from .conftest import Ingested, SmallExport, global_tid, ingest_export

PID = os.getpid()
START = 10**15
"""CLOCK_MONOTONIC when the recorded work begins, ns."""
STEP = 10_000_000
LAYERS = 2
ATTENTION, WRITE = "void flash::flash_fwd_kernel<int>(T1)", "void vllm::reshape_and_cache_flash_kernel<int>(T1)"


def emit(recorder: Recorder, event: Event, **values: Any) -> None:
    recorder.stream(event)(*(values.get(field.name, 0) for field in event.fields))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An engine and worker in one process: steps 1 to 9, each with two layers timed on the GPU."""
    path = tmp_path / "run"
    path.mkdir()
    recorder = Recorder(path)
    for role in ("engine", "worker"):
        recorder.note("role", role=role)
    recorder.note("engine", model="tiny")
    for step in range(1, 10):
        at = START + step * STEP
        tokens = {"decode_tokens": 4} if step > 1 else {"prefill_tokens": 64}
        emit(recorder, STEP_SCHEDULE, start_ns=at, scheduled_ns=at + 1000, step=step, **tokens)
        mode = GraphMode.eager
        emit(recorder, FORWARD, start_ns=at + 2000, end_ns=at + 9000, engine_id=PID, step=step, graph_mode=mode)
        emit(recorder, STEP_UPDATE, update_ns=at + 60_000, end_ns=at + 61_000, step=step)
        for layer in range(LAYERS):
            for kind, offset in ((WindowKind.write, 0), (WindowKind.attention, 1000)):
                begin = at + 20_000 + layer * 5000 + offset
                emit(
                    recorder,
                    KV_WINDOW,
                    start_ns=begin,
                    end_ns=begin + 900,
                    engine_id=PID,
                    step=step,
                    layer=layer,
                    kind=kind,
                    observed=True,
                )
    return path


def offset_of(found: Ingested) -> int:
    return int(found.ask("SELECT DISTINCT offset_ns FROM clock")[0][0])


class Profile:
    """An export of the recorded work. Its clock began at another time and is slower, by `drift`."""

    def __init__(self, export: SmallExport, epoch_ns: int, drift: float = 0.0) -> None:
        self.export = export.epoch(epoch_ns)
        self.drift = drift

    def time(self, monotonic_ns: int) -> int:
        return 1000 + round((monotonic_ns - START) * (1 - self.drift))

    def kernels(self, *, calls: bool = True) -> None:
        number = 0
        for step in range(1, 10):
            for layer in range(LAYERS):
                for name, offset in ((WRITE, 100), (ATTENTION, 1100)):
                    number += 1
                    begin = START + step * STEP + 20_000 + layer * 5000 + offset
                    more = {"globalPid": global_tid(0, PID)}
                    self.export.kernel(self.time(begin), self.time(begin + 600), number, name, **more)
                    if calls:
                        launched = START + step * STEP + 3000 + number % 4 * 100
                        self.export.call(self.time(launched), number, globalTid=global_tid(PID, PID))

    def nvtx(self, *, clocks: bool, jitter: random.Random | None = None) -> None:
        self.export.kvtrace_domain()
        self.export.db.execute("UPDATE NVTX_EVENTS SET globalTid = ?", [global_tid(PID, PID)])
        for step in range(1, 10):
            at = START + step * STEP
            late = jitter.randrange(800) if jitter else 0
            self.range("forward", at + 2000 + late, at + 9000, step)
        if clocks:
            for tenth in range(100):
                now = START + tenth * 10**8  # ten seconds
                late = jitter.randrange(400) if jitter else 0
                self.range("clock", now + late, None, now)

    def range(self, name: str, start: int, end: int | None, payload: int) -> None:
        stop = None if end is None else self.time(end)
        self.export.range(name, self.time(start), stop, payload)
        self.export.db.execute(
            "UPDATE NVTX_EVENTS SET globalTid = ? WHERE rowid = last_insert_rowid()", [global_tid(PID, PID)]
        )
        self.export.db.commit()


def truth(found: Ingested) -> int:
    """Return when the first kernel ran, UNIX ns, by the recording's clock."""
    return START + STEP + 20_100 + offset_of(found)


ALIGNMENTS = "SELECT method::VARCHAR, applied, readings, residual_p99_ns FROM alignment ORDER BY applied DESC, method"


class TestAlignment:
    def test_clock_marks_correct_an_epoch_that_is_off_and_a_clock_that_drifts(
        self, export: SmallExport, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        profile = Profile(export, 1_600_000_000_000_000_000, drift=30e-6)  # 300 us over the ten seconds
        profile.kernels()
        profile.nvtx(clocks=True, jitter=random.Random(5))
        found = ingested(run)
        ((first,),) = found.ask("SELECT min(start_ns) FROM gpu_kernel")
        assert abs(first - truth(found)) < 1000
        applied, *checks = found.ask(ALIGNMENTS)
        assert applied[:3] == ("clock_marks", True, 100)
        assert applied[3] < 1000
        assert [check[0] for check in checks] == ["forward_ranges", "utc_epoch", "kv_windows"]
        assert checks[0][3] < 1500
        assert checks[1][3] > 10**15
        assert found.ask("SELECT round(drift_ppb / 1000) FROM alignment WHERE applied") == [(30,)]

    def test_forward_ranges_align_without_clock_marks(
        self, export: SmallExport, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        profile = Profile(export, 1_600_000_000_000_000_000)
        profile.kernels()
        profile.nvtx(clocks=False)
        found = ingested(run)
        assert found.ask("SELECT min(start_ns) FROM gpu_kernel") == [(truth(found),)]
        assert found.ask(ALIGNMENTS)[0] == ("forward_ranges", True, 9, 0)

    def test_without_a_recording_the_export_is_taken_at_its_word(
        self, export: SmallExport, ingested: Callable[..., Ingested]
    ) -> None:
        profile = Profile(export, 1_600_000_000_000_000_000)
        profile.kernels()
        profile.nvtx(clocks=True)
        found = ingested()
        assert found.ask(ALIGNMENTS) == [("utc_epoch", True, 0, None)]
        assert found.ask("SELECT DISTINCT attribution::VARCHAR FROM gpu_kernel") == [("nvtx_forward",)]


@pytest.fixture
def aligned(export: SmallExport, run: Path, tmp_path: Path) -> Profile:
    """An export whose own epoch is right."""
    found = Ingested(ingest(run, tmp_path / "first.duckdb"))
    return Profile(export, START - 1000 + offset_of(found))


class TestSteps:
    def test_every_kernel_has_step_engine_phase_and_layer(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        aligned.kernels()
        aligned.nvtx(clocks=True)
        found = ingested(run)
        assert found.ask(
            "SELECT step, engine_id, phase, layer, layer_method::VARCHAR, layer_role::VARCHAR, attribution::VARCHAR "
            "FROM gpu_kernel WHERE step <= 2 ORDER BY start_ns"
        ) == [
            (step, 1, phase, layer, "kv_window", role, "nvtx_forward")
            for step, phase in ((1, "prefill"), (2, "decode"))
            for layer in range(LAYERS)
            for role in ("kv_write", "attention")
        ]

    def test_without_nvtx_the_recorded_forward_passes_tell(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        aligned.kernels()
        aligned.export.call(aligned.time(START + STEP + 30_000), 901, globalTid=global_tid(PID, PID))
        aligned.export.call(aligned.time(START + STEP + 80_000), 902, globalTid=global_tid(PID, PID))
        for correlation in (901, 902):
            more = {"globalPid": global_tid(0, PID)}
            aligned.export.kernel(
                aligned.time(START + STEP + 90_000), aligned.time(START + STEP + 91_000), correlation, **more
            )
        found = ingested(run)
        how = "SELECT attribution::VARCHAR, step, count(*) FROM gpu_kernel WHERE {} GROUP BY ALL ORDER BY ALL"
        assert found.ask(how.format("layer IS NOT NULL AND step < 3")) == [
            ("recorded_forward", 1, 4),
            ("recorded_forward", 2, 4),
        ]
        assert found.ask(how.format("layer_role IS NULL")) == [("after_range", 1, 1), (None, None, 1)]

    def test_without_calls_the_gpu_s_time_has_to_do(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        aligned.kernels(calls=False)
        found = ingested(run)
        assert found.ask("SELECT attribution::VARCHAR, count(*), count(DISTINCT step) FROM gpu_kernel GROUP BY 1") == [
            ("gpu_time", 36, 9)
        ]

    @pytest.mark.parametrize(("lost", "found_by_order"), [(1, 1), (3, 3), (4, 0)])
    def test_launches_whose_calls_were_lost_follow_their_stream_s_order(
        self, lost: int, found_by_order: int, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        """While a kernel of step 9 is known before them; without one they could be step 8's, queued for long."""
        aligned.kernels()
        table = "CUPTI_ACTIVITY_KIND_RUNTIME"
        aligned.export.db.execute(
            f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY correlationId DESC LIMIT {lost})"
        )
        aligned.export.db.commit()
        found = ingested(run)
        assert found.ask("SELECT count(*), count(call_id), count(step) FROM gpu_kernel") == [
            (36, 36 - lost, 36 - lost + found_by_order)
        ]
        assert found.ask("SELECT count(*) FROM gpu_kernel WHERE attribution = 'stream_order' AND step = 9") == [
            (found_by_order,)
        ]

    def test_a_profile_of_another_run_gets_no_steps_and_says_so(
        self, export: SmallExport, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        Profile(export, 1_600_000_000_000_000_000).kernels()
        found = ingested(run)
        assert found.ask("SELECT count(step), count(layer) FROM gpu_kernel") == [(0, 0)]
        assert any("not made at the same time" in warning for warning in found.summary.warnings)

    def test_a_process_that_was_not_recorded_gets_no_steps_and_says_so(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        for pid in (1, 2):
            aligned.export.call(aligned.time(START + STEP + 3000), 1, globalTid=global_tid(1, pid))
            aligned.export.kernel(
                aligned.time(START + STEP + 4000), aligned.time(START + STEP + 5000), 1, globalPid=global_tid(0, pid)
            )
        found = ingested(run)
        assert found.ask("SELECT count(*), count(step) FROM gpu_kernel") == [(2, 0)]
        assert any("(1, 2) was recorded" in warning for warning in found.summary.warnings)

    def test_a_container_s_only_process_is_the_only_worker(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        aligned.export.call(aligned.time(START + STEP + 3000), 1, globalTid=global_tid(1, 9))
        aligned.export.kernel(
            aligned.time(START + STEP + 4000), aligned.time(START + STEP + 5000), 1, globalPid=global_tid(0, 9)
        )
        found = ingested(run)
        assert found.ask("SELECT step, attribution::VARCHAR FROM gpu_kernel") == [(1, "recorded_forward")]
        assert found.ask("SELECT matched_by FROM gpu_process") == [("only_one",)]


class TestWindows:
    def test_windows_are_laid_on_the_kernels_of_their_layer(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        aligned.kernels()
        found = ingested(run)
        assert found.ask(
            "SELECT kind::VARCHAR, count(*), min(start_delta_ns), max(start_delta_ns), min(end_delta_ns), max(kernels) "
            "FROM kv_window_kernel GROUP BY kind ORDER BY kind"
        ) == [("write", 18, 100, 100, 200, 1), ("attention", 18, 100, 100, 200, 1)]
        assert found.ask("SELECT matched, unmatched FROM join_count WHERE name = 'kv_window -> gpu_kernel'") == [
            (36, 0)
        ]
        assert found.ask(ALIGNMENTS)[-1] == ("kv_windows", False, 36, 0)

    def test_what_reaches_out_of_a_window_is_the_residual(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested]
    ) -> None:
        """The profile's clock is 350 ns late: kernels of 600 ns that began 100 ns into 900 ns end 50 ns past them."""
        aligned.kernels()
        aligned.export.db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 250")
        aligned.export.db.commit()
        assert ingested(run).ask(ALIGNMENTS)[-1] == ("kv_windows", False, 36, 50)

    def test_enough_windows_move_the_profile_onto_them(
        self, aligned: Profile, run: Path, ingested: Callable[..., Ingested], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clock 400 ns off: afterwards each kernel lies in the middle of its window, 150 ns from both ends."""
        monkeypatch.setattr(refine, "FEWEST_WINDOWS", 36)
        aligned.kernels()
        aligned.export.db.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 400")
        aligned.export.db.commit()
        found = ingested(run)
        assert ("kv_windows", True, 36, 0) in found.ask(ALIGNMENTS)
        assert found.ask("SELECT count(*) FROM alignment WHERE applied") == [(1,)]
        assert found.ask("SELECT DISTINCT start_delta_ns, end_delta_ns FROM kv_window_kernel") == [(150, 150)]
        assert found.ask("SELECT DISTINCT method::VARCHAR FROM gpu_layer") == [("kv_window",)]


class TestManifest:
    def named(self, run: Path, *names: str) -> None:
        facts = {"format_version": 1, "kvtrace_version": "0.1.0", "command": ["vllm"], "started_ns": 1}
        (run / layout.MANIFEST).write_text(json.dumps({**facts, "nsight": list(names)}))

    def test_exports_of_the_run_are_taken_without_being_asked_for(self, aligned: Profile, run: Path) -> None:
        aligned.kernels()
        aligned.export.path.rename(run / "profile.sqlite")
        self.named(run, "profile.sqlite")
        assert Ingested(ingest(run)).ask("SELECT count(*), count(step) FROM gpu_kernel") == [(36, 36)]
        assert Ingested(ingest(run, nsight_of_run=False)).ask("SELECT count(*) FROM gpu_kernel") == [(0,)]
        twice = Sources(nsight=(run / "profile.sqlite",))
        assert Ingested(ingest(run, sources=twice)).ask("SELECT count(*) FROM source") == [(1,)]

    def test_one_that_is_gone_is_a_warning(self, run: Path) -> None:
        self.named(run, "profile.sqlite")
        summary = ingest(run)
        assert any("names profile.sqlite, which is not there" in warning for warning in summary.warnings)

    def test_one_that_is_damaged_is_an_error(self, run: Path) -> None:
        self.named(run, "profile.sqlite")
        (run / "profile.sqlite").write_bytes(b"half a file")
        with pytest.raises(KvtraceError, match="--no-nsight"):
            ingest(run)


def test_several_exports_are_kept_apart(export: SmallExport, tmp_path: Path) -> None:
    export.epoch().call(1, 1).kernel(10, 20, 1, "first")
    other = (
        SmallExport(tmp_path / "other.sqlite").epoch().call(1, 1).kernel(10, 20, 1, "second").kernel(30, 40, 1, "first")
    )
    sources = Sources(nsight=(export.path, other.path))
    found = Ingested(ingest(None, tmp_path / "trace.duckdb", sources=sources))
    assert found.ask(
        "SELECT k.source_id, k.name, k.activity_id, c.source_id FROM gpu_kernel k JOIN gpu_call c USING (call_id) "
        "ORDER BY 3"
    ) == [(1, "first", 1, 1), (2, "second", 2, 2), (2, "first", 3, 2)]


def test_a_trace_without_a_recording_has_its_facts(export: SmallExport, tmp_path: Path) -> None:
    export.epoch().kernel(1, 2, 1)
    found = ingest_export(export.path, tmp_path / "trace.duckdb")
    facts = dict(found.ask("SELECT key, value FROM run"))
    assert facts["source"] == "nsight"
    assert facts["trace_version"] == str(TRACE_VERSION)
