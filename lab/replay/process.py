"""The process of a replay: `python -m kvtrace.lab.replay.process JOBS.json`. Each job runs in a fork of its own."""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError


def main(path: Path) -> int:
    """Run the jobs of a file that `run` wrote, some side by side."""
    with path.open("rb") as file:
        recording, jobs, at_once = pickle.load(file)  # written by our own parent
    _import_vllm()
    gc.collect()
    gc.freeze()  # what is imported need not be looked through in each replay
    waiting = list(jobs)
    running: set[int] = set()
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            child = os.fork()
            if child == 0:
                os._exit(_run(recording, job))
            running.add(child)
        child, _ = os.wait()
        running.discard(child)
    return 0


def _import_vllm() -> None:
    os.environ.pop("KVTRACE_RUN_DIR", None)  # the hooks are installed here, not by vLLM's plugins
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm.engine.arg_utils
    import vllm.v1.core.sched.async_scheduler  # noqa: F401


def _run(recording: Any, job: Any) -> int:
    """Run one job; its result is a file beside its recording, written last."""
    result: dict[str, Any]
    try:
        result = _replay(recording, job)
    except KvtraceError as error:
        result = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.flush()
    sys.stderr.flush()
    temporary = Path(f"{job.result}.tmp")
    temporary.write_text(json.dumps(result))
    temporary.replace(job.result)
    return 0


def _replay(recording: Any, job: Any) -> dict[str, Any]:
    import vllm

    from kvtrace.capture.recorder import Recorder
    from kvtrace.events import REQUEST_ARRIVAL
    from kvtrace.lab.replay import drive, engine
    from kvtrace.lab.replay.clock import VirtualClock
    from kvtrace.probes import plugin
    from kvtrace.probes.hooks import Patches

    moments = [recording.steps[0].start_ns, *(r.arrival_ns for r in recording.requests)]
    first_ns = min(moments) - 1_000_000
    clock = VirtualClock(first_ns)
    clock.install()
    run_dir = Path(job.run_dir)
    failed: list[str] = []
    recorder = Recorder(run_dir)
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
    emit_arrival = recorder.stream(REQUEST_ARRIVAL)
    transfers = None
    if job.settings.cpu_bytes_to_use:
        from kvtrace.lab.replay.offload import Transfers

        transfers = Transfers(job.settings, recording.engine, clock)
    requests = engine.Requests(recording.engine, job.settings)
    driven = drive.Drive(scheduler, requests, recording, clock, transfers)
    began = time.process_time()  # of this core, however busy the machine is
    if job.model is None:
        drive.replay_recorded(driven)
    else:
        drive.replay_timed(driven, job.model, job.loop)
    took = time.process_time() - began
    virtual_s = (clock.now_ns - first_ns) / 1e9
    for request in recording.requests:
        if request.external_id is not None:
            internal, external = recorder.intern_once(request.internal_id, request.external_id)
            emit_arrival(request.arrival_ns, internal, external)
    return {"steps": driven.steps, "seconds": took, "virtual_s": virtual_s, "failed_hooks": failed,
            "vllm_version": str(vllm.__version__), "end_ns": clock.now_ns,
            "left": len(scheduler.requests), "timed": job.model is not None}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
