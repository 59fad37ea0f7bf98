"""Has replays run in a process of their own and ingests what kvtrace's probes recorded of them."""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.format.manifest import Manifest
from kvtrace.lab.replay import kept
from kvtrace.lab.replay.check import Outcome, outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import Recording
from kvtrace.lab.replay.settings import Settings, recorded_settings
from kvtrace.lab.replay.timing import TimeModel

LONGEST_S = 3600
"""For every `_FEW` replays of a call: draws of what-ifs are many."""
_FEW = 30

PYTHON: Sequence[str] = (sys.executable,)
"""Command of the interpreter that replays; `lab.warm` has one that has imported vLLM."""


@dataclass
class Job:
    """One replay.

    Attributes:
        name: Names it in messages, and its files.
        model: Predicts step times; None repeats the recorded ones exactly.
        seed: Replay a resample of the recording's jobs; None replays the recording's own.
        facts: Further facts for table `run` of its trace.
        figures_only: Count its figures, make no trace. Several times faster.
    """

    name: str
    settings: Settings
    model: TimeModel | None
    loop: Loop
    target: Path
    facts: dict[str, Any] = field(default_factory=dict)
    figures_only: bool = False
    run_dir: str = ""
    result: str = ""
    seed: int | None = None


@dataclass
class Replayed:
    """A finished replay: its trace or, without one, its figures, and what its process said.

    Attributes:
        seconds: Of processor time.
        prefetch: Counts of the prefetcher, as `tiers.prefetch.Counts`; empty without one.
    """

    job: Job
    trace: Path | None
    steps: int
    seconds: float
    virtual_s: float
    vllm_version: str
    warnings: list[str]
    prefetch: dict[str, int]
    figures: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """The replay's figures."""
        if self.figures is not None:
            return self.figures
        assert self.trace is not None
        return outcome(self.trace)


def replay(recording: Recording, jobs: Sequence[Job], at_once: int = 1) -> list[Replayed | KvtraceError]:
    """Run replays of one recording.

    Args:
        recording: What they start from.
        jobs: Which; their `target`s are replaced.
        at_once: How many run side by side.

    Returns:
        For each job the replay, or why there is none.
    """
    with tempfile.TemporaryDirectory(prefix="kvtrace-replay-") as folder:
        for number, job in enumerate(jobs):
            run_dir = Path(folder, f"run-{number}")
            run_dir.mkdir()
            job.run_dir, job.result = str(run_dir), str(Path(folder, f"result-{number}.json"))
        plan = Path(folder, "jobs.pickle")
        with plan.open("wb") as file:
            pickle.dump((recording, list(jobs), at_once), file)
        environment = {key: value for key, value in os.environ.items() if key != "KVTRACE_RUN_DIR"}
        said = kept.run(PYTHON, environment, plan, LONGEST_S * max(1, math.ceil(len(jobs) / _FEW)))
        return [finish(recording, job, said) for job in jobs]


def replay_all(recording: Recording, jobs: Sequence[Job], at_once: int = 1) -> list[Replayed]:
    """Run replays of one recording, all of which are needed; otherwise like `replay`.

    Raises:
        KvtraceError: One failed.
    """
    found = []
    for done in replay(recording, jobs, at_once):
        if isinstance(done, KvtraceError):
            raise done
        found.append(done)
    return found


def finish(recording: Recording, job: Job, stderr: str = "") -> Replayed | KvtraceError:
    """Ingest a replay whose process has ended, or say why there is none; `stderr` is what that process wrote."""
    from kvtrace.ingest.run import ingest

    engine = recording.engine
    try:
        said = json.loads(Path(job.result).read_text())
    except (OSError, ValueError):
        last = (stderr.strip().splitlines() or ["no message"])[-1]
        recorded = engine.vllm_version
        advice = f"; {_same_vllm(recorded)}" if recorded else ""
        hint = f"; is vLLM installed in this environment?{advice}" if "vllm" in last else ""
        return KvtraceError(f"the replay ended without a result: {last}{hint}")
    if "error" in said:
        return KvtraceError(said["error"], said.get("exit_code", 1))
    if said["left"] and said["timed"] and (engine.invented or job.settings != recorded_settings(engine)):
        return KvtraceError(
            f"{said['left']} requests could never be scheduled with these settings, and those that wait for them never "
            "came: there is nothing to compare",
            2,
        )
    process_warnings = _process_warnings(recording, said)
    told = (said["steps"], said["seconds"], said["virtual_s"], said["vllm_version"])
    if job.figures_only:
        figures = Outcome(**said["figures"])
        warnings = [*recording.warnings, *process_warnings]
        return Replayed(job, None, *told, warnings, said["prefetch"], figures)
    start_ns = recording.steps[0].start_ns
    command = ["kvtrace", "replay", recording.trace.name]
    Manifest(command, start_ns, os.getpid(), said["end_ns"], 0).write(Path(job.run_dir))
    temporary = job.target.with_name(f".{job.target.name}.replay")
    try:
        summary = ingest(Path(job.run_dir), temporary)
        warnings = [*recording.warnings, *process_warnings, *summary.warnings]
        _mark(temporary, recording, job, said, warnings)
        temporary.replace(job.target)
    except OSError as error:
        return KvtraceError(f"cannot write {job.target}: {error.strerror}")
    finally:
        temporary.unlink(missing_ok=True)
    return Replayed(job, job.target, *told, warnings, said["prefetch"])


def _process_warnings(recording: Recording, said: dict[str, Any]) -> list[str]:
    found = [f"hook {hook}" for hook in said["failed_hooks"]]
    recorded = recording.engine.vllm_version
    if recorded and recorded != said["vllm_version"]:
        found.append(
            f"recorded with vLLM {recorded}, replayed by vLLM {said['vllm_version']}, whose scheduler differs; "
            f"{_same_vllm(recorded)}"
        )
    if said["left"] and said["timed"]:
        found.append(f"{said['left']} requests could never be scheduled")
    return found


def _same_vllm(recorded: str) -> str:
    """Say how to replay with the recording's vLLM, of which only the Python part is needed."""
    version = recorded.partition("+")[0]
    folder = f"vllm-{version}"
    return (
        f"to replay with the same: pip install --no-deps --target {folder} vllm=={version}, "
        f"then PYTHONPATH={folder} before the command"
    )


def _mark(path: Path, recording: Recording, job: Job, said: dict[str, Any], warnings: Sequence[str]) -> None:
    """Say in table `run` that the trace is predicted, of what and how."""
    facts = {
        "source": "replay",
        "replayed": str(recording.trace.name),
        "replay_settings": json.dumps(vars(job.settings)),
        "replay_time": "recorded" if job.model is None else "fitted",
        "replay_loop": "recorded" if job.model is None else job.loop.kind,
        "replay_rate": str(job.loop.rate),
        "vllm_version": said["vllm_version"],
        **{key: value if isinstance(value, str) else json.dumps(value) for key, value in job.facts.items()},
    }
    if warnings:
        facts["warnings"] = "\n".join(warnings)
    with duckdb.connect(str(path)) as connection:
        for key, value in facts.items():
            connection.execute("DELETE FROM run WHERE key = ?", [key])
            connection.execute("INSERT INTO run VALUES (?, ?)", [key, value])
        engine = recording.engine  # the scheduler ran with a stand-in of its model
        block_bytes = engine.block_bytes and engine.block_bytes * job.settings.block_size // engine.block_size
        connection.execute("UPDATE engine SET model = ?, block_bytes = ?", [engine.model, block_bytes])
