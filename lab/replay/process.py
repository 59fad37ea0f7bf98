"""The process of replays: `python -m kvtrace.lab.replay.process`, which `kept` starts and tells of plans.

A plan is a pickle that `run` wrote, and runs in a fork. Each of its jobs runs in a fork of that.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.lifetime import dies_with_us
from kvtrace.lab.replay.recording import EngineFacts
from kvtrace.lab.replay.resample import resampled
from kvtrace.lab.replay.settings import Settings


def main() -> int:
    """Run the plans that standard input names; when one is over, write a byte to standard output."""
    told = os.dup(1)
    os.dup2(2, 1)  # what vLLM prints
    import_vllm()
    die_with_us = dies_with_us()
    for line in sys.stdin:
        plan = os.fork()
        if plan == 0:
            die_with_us()
            os._exit(_run_plan(Path(line.rstrip("\n"))))
        os.waitpid(plan, 0)
        os.write(told, b".")
    return 0


def _run_plan(path: Path) -> int:
    """Run the jobs of a plan, some side by side."""
    with path.open("rb") as file:
        recording, jobs, at_once = pickle.load(file)  # written by our own parent
    warm(recording.engine, jobs[0].settings)
    die_with_us = dies_with_us()
    waiting = list(jobs)
    running: set[int] = set()
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            child = os.fork()
            if child == 0:
                die_with_us()
                os._exit(_run(recording if job.seed is None else resampled(recording, job.seed), job))
            running.add(child)
        child, _ = os.wait()
        running.discard(child)
    return 0


def import_vllm() -> None:
    """Import what every replay needs, once and without kvtrace's plugin."""
    os.environ.pop("KVTRACE_RUN_DIR", None)  # the hooks are installed here, not by vLLM's plugins
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    if not vllm.platforms.current_platform.device_type:  # a vLLM for GPUs, on a machine without one
        vllm.platforms._current_platform = CpuPlatform()
    import vllm.engine.arg_utils
    import vllm.v1.core.sched.async_scheduler


def warm(engine: EngineFacts, settings: Settings) -> None:
    """Prepare for forks: import what a replay needs, and keep the garbage collector from what they share."""
    import kvtrace.capture.recorder
    import kvtrace.probes.plugin  # noqa: F401
    from kvtrace.lab.replay.engine import build_scheduler

    with suppress(Exception):  # where it cannot be built, each fork says so
        build_scheduler(engine, settings)
    gc.collect()
    gc.freeze()
    # Schedulers make millions of objects and hardly any cycles.
    gc.set_threshold(200_000, 20, 100)


def _run(recording: Any, job: Any) -> int:
    """Run one job; its result is a file beside its recording, written last."""
    result: dict[str, Any]
    try:
        result = replayed(recording, job)
    except KvtraceError as error:
        result = {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.flush()
    sys.stderr.flush()
    temporary = Path(f"{job.result}.tmp")
    temporary.write_text(json.dumps(result))
    temporary.replace(job.result)
    return 0


def replayed(recording: Any, job: Any) -> dict[str, Any]:
    """Run one job in this process, whose clocks are replaced for good; its result as JSON."""
    from kvtrace.lab.replay.clock import VirtualClock

    moments = [*(step.start_ns for step in recording.steps[:1]), *(r.arrival_ns for r in recording.requests)]
    clock = VirtualClock(min(moments) - 1_000_000)
    clock.install()
    return _counted(recording, job, clock) if job.figures_only else _recorded(recording, job, clock)


def _recorded(recording: Any, job: Any, clock: Any) -> dict[str, Any]:
    """Replay with kvtrace's hooks, which write a run directory."""
    import vllm

    from kvtrace.capture.recorder import Recorder
    from kvtrace.events import REQUEST_ARRIVAL, REQUEST_OWNER
    from kvtrace.lab.replay import engine
    from kvtrace.probes import block_hashes, plugin
    from kvtrace.probes.hooks import Patches

    block_hashes.Chains.has_tokens = False
    failed: list[str] = []
    recorder = Recorder(Path(job.run_dir))
    recorder.note("vllm", inherited=True, version=str(vllm.__version__))

    def report(hook: str, state: str, detail: str) -> None:
        if state == "fired":
            recorder.note("fired", hook=hook)
        else:
            recorder.note("hook", inherited=True, opens=state == "disabled", hook=hook, state=state, detail=detail)
        if state == "disabled":
            failed.append(f"{hook}: {detail}")

    patches = Patches(report)
    patches.install(plugin.hooks(recorder, patches, {}))
    scheduler = engine.build_scheduler(recording.engine, job.settings)
    recorder.note("role", opens=True, role="frontend")
    emit_arrival, emit_owner = recorder.stream(REQUEST_ARRIVAL), recorder.stream(REQUEST_OWNER)
    rows = _copy_rows(recorder, job.settings, scheduler)
    said = _driven(recording, job, clock, scheduler, None, rows)
    if rows is not None:
        rows.flush()
    for request in recording.requests:
        if request.external_id is not None:
            internal, external = recorder.intern_once(request.internal_id, request.external_id)
            emit_arrival(request.arrival_ns, internal, external)
        if request.tenant or request.lora:
            texts = (request.internal_id, request.tenant or "", request.lora or "")
            emit_owner(request.arrival_ns, *recorder.intern_once(*texts))
    return {**said, "failed_hooks": failed}


def _counted(recording: Any, job: Any, clock: Any) -> dict[str, Any]:
    """Replay without hooks; only figures are kept."""
    from kvtrace.lab.replay import engine
    from kvtrace.lab.replay.tally import Tally

    scheduler = engine.build_scheduler(recording.engine, job.settings)
    tally = Tally(scheduler)
    said = _driven(recording, job, clock, scheduler, tally, None)
    return {**said, "failed_hooks": [], "figures": asdict(tally.outcome(said["steps"]))}


def _copy_rows(recorder: Any, settings: Settings, scheduler: Any) -> Any:
    """The writer of emulated copies into the trace; None for a scheduler without a connector."""
    from kvtrace.events import Tier
    from kvtrace.lab.replay.tiers.rows import CopyRows

    if scheduler.connector is None:
        return None
    tier = Tier.disk if settings.tier.get("name") == "disk" else Tier.cpu
    return CopyRows(recorder, type(scheduler.connector).__name__, tier)


def _driven(recording: Any, job: Any, clock: Any, scheduler: Any, tally: Any, rows: Any) -> dict[str, Any]:
    import vllm

    from kvtrace.lab.replay import drive, engine
    from kvtrace.lab.replay.recording import in_job_order
    from kvtrace.lab.replay.tiers import worker

    if job.settings.order == "jobs":
        recording = replace(recording, requests=in_job_order(recording.requests))
    copier = worker.emulated_worker(scheduler, recording, job.settings, job.model, clock, rows)
    requests = engine.Requests(recording.engine, job.settings)
    driven = drive.Drive(scheduler, requests, recording, clock, copier, tally)
    first_ns = clock.now_ns
    began = time.process_time()  # of this core, however busy the machine is
    if job.model is None:
        drive.replay_recorded(driven)
    else:
        drive.replay_timed(driven, job.model.with_graphs(job.settings.max_cudagraph_capture_size), job.loop)
    took = time.process_time() - began
    prefetcher = getattr(scheduler.connector, "prefetcher", None)
    return {"prefetch": {} if prefetcher is None else vars(prefetcher.counts),
            "steps": driven.steps, "seconds": took, "virtual_s": (clock.now_ns - first_ns) / 1e9,
            "vllm_version": str(vllm.__version__), "end_ns": clock.now_ns,
            "left": len(scheduler.requests), "timed": job.model is not None}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
