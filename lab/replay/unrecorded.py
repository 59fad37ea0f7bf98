"""Replays of workloads that were never recorded, beside the check of the trace that engine and times come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvtrace.lab.replay import check
from kvtrace.lab.replay.check import Outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.run import Job, replay_all
from kvtrace.lab.replay.session import Session
from kvtrace.lab.replay.settings import (
    changed_settings,
    changes_between,
    check_launches,
    check_sessions,
    recorded_settings,
)
from kvtrace.lab.replay.workload import (
    engine_like,
    is_workload,
    read_workload,
    recording_of_requests,
    recording_of_workloads,
)

BASE = "as recorded"
"""The replay of the workload on the other trace's engine as it was."""


class Unrecorded:
    """A workload on an engine as another trace has it.

    Args:
        source: A matrix or workload file, or a trace of requests.
        other: The trace that the engine and step times come from.
        folder: Where traces go that are not kept.
        loop: A kind of `Loop`, or `auto`: closed for workloads, open for request traces.
        workload: Which workload of a matrix.
        told: Settings of the other trace's engine that it does not tell, as `NAME=VALUE`.
    """

    def __init__(
        self,
        source: Path,
        other: Path,
        folder: Path,
        loop: str = "auto",
        workload: str | None = None,
        told: Sequence[str] = (),
    ) -> None:
        self.other = Session(other, folder, told=told)
        like, model = self.other.recording, self.other.own_model
        if is_workload(source):
            made = read_workload(source, workload)
            engine = engine_like(like.engine, max_model_len=max(like.engine.max_model_len, made.longest_tokens))
            self.recording = recording_of_workloads([made], engine, like)
            self.loop = "closed" if loop == "auto" else loop
        else:
            self.recording = recording_of_requests(source, like)
            self.loop = "open" if loop == "auto" else loop
        self.base = recorded_settings(self.recording.engine)
        self.model, self._folder = model, folder

    def what_if(self, name: str, changes: Sequence[str], rate: float = 1.0, target: Path | None = None) -> Job:
        """A replay of the workload with changed settings.

        Raises:
            KvtraceError: No engine could have these settings, or the workload lacks what they need.
        """
        settings = changed_settings(self.recording.engine, self.base, changes)
        check_sessions(settings, self.recording)
        check_launches(changes, self.model)
        facts = {
            "replay_changes": changes_between(self.base, settings),
            "replay_time": f"fitted to {self.other.recording.trace.name}",
            "replay_unrecorded": "a workload that was never recorded",
        }
        place = self._folder / f"{name.replace(' ', '-')}.duckdb"
        return Job(name, settings, self.model, Loop(self.loop, rate), target or place, facts)

    def run(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Replay; `outcomes` and `prefetches` by name, the `errors` of the other trace's own check, and `warnings`.

        Raises:
            KvtraceError: A replay failed.
        """
        checked = self.other.run([])
        outcomes, prefetches, warnings = {}, {}, list(checked["warnings"])
        for job, done in zip(jobs, replay_all(self.recording, jobs, len(jobs)), strict=True):
            outcomes[job.name] = check.outcome(job.target)
            warnings += done.warnings
            if done.prefetch:
                prefetches[job.name] = done.prefetch
        warnings = list(dict.fromkeys(warnings))
        return {"outcomes": outcomes, "prefetches": prefetches, "errors": checked["errors"], "warnings": warnings}

    def table(self, results: dict[str, Any]) -> list[str]:
        """The figures as lines of text, and the errors of the other trace's own check."""
        outcomes: dict[str, Outcome] = results["outcomes"]
        errors: dict[str, float] = results["errors"]
        found = [f"{'':16}" + "".join(f"{name:>14}" for name in outcomes) + f"{'error':>10}"]

        def line(title: str, values: list[str], key: str) -> None:
            error = f"{errors[key]:+.1%}" if key in errors else ""
            found.append(f"{title:16}" + "".join(f"{value:>14}" for value in values) + f"{error:>10}")

        each = list(outcomes.values())
        line("steps", [f"{one.steps:,}" for one in each], "")
        line("hit tokens", [f"{one.hit_tokens:,}" for one in each], "")
        line("hit share", [f"{one.hit_share:.1%}" for one in each], "")
        line("evictions", [f"{one.evictions:,}" for one in each], "evictions")
        line("preemptions", [f"{one.preemptions:,}" for one in each], "preemptions")
        line("output tokens/s", [f"{one.tokens_per_s:,.1f}" for one in each], "tokens_per_s")
        for key, title in check.LATENCIES.items():
            for place, quantile in enumerate(("mean", *(f"p{q}" for q in check.QUANTILES))):
                if all(key in one.latency_ms for one in each):
                    values = [f"{one.latency_ms[key][place]:,.1f}" for one in each]
                    line(f"{title} {quantile} ms", values, f"{key}_{quantile}")
        found.append(
            f"never recorded: engine and step times are those of {self.other.recording.trace.name}; `error` is how far "
            "off the fitted replay of that trace's own requests is"
        )
        return found

    def to_json(self, results: dict[str, Any]) -> dict[str, Any]:
        """The results as JSON."""
        return {
            "never_recorded": True,
            "workload": str(self.recording.trace),
            "time_from": str(self.other.recording.trace),
            "loop": self.loop,
            "outcomes": {
                name: {**asdict(one), "hit_share": one.hit_share, "tokens_per_s": one.tokens_per_s}
                for name, one in results["outcomes"].items()
            },
            "prefetches": results["prefetches"],
            "expected_errors": results["errors"],
            "warnings": results["warnings"],
        }
