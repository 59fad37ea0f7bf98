"""A recording, its replays with the recorded settings, and what-ifs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import check, timing
from kvtrace.lab.replay.check import Outcome
from kvtrace.lab.replay.loops import Loop, loop_of
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, Replayed, replay
from kvtrace.lab.replay.settings import (
    changed_settings,
    changes_between,
    check_launches,
    check_sessions,
    recorded_settings,
    untold_settings,
    with_copies_of,
)

EXACT, FITTED = "repeated", "fitted"
_MOST_STALLS = 0.1


class Session:
    """Session of `kvtrace replay` or `kvtrace advise` with a trace.

    Args:
        trace: The recording's trace.
        folder: Where traces go that are not kept.
        engine_id: Which engine of it; None for the only one.
        loop: A kind of `Loop`, or `auto`.
        time_from: A trace whose steps give the time model of what-ifs, and whose copies their bandwidths, if there
            are any.
        told: Settings of the recorded engine that the trace does not tell, as `NAME=VALUE`.
    """

    def __init__(
        self,
        trace: Path,
        folder: Path,
        engine_id: int | None = None,
        loop: str = "auto",
        time_from: Path | None = None,
        told: Sequence[str] = (),
    ) -> None:
        self.recording = read_recording(trace, engine_id)
        engine = self.recording.engine
        other = read_recording(time_from) if time_from else None
        self.base = changed_settings(engine, recorded_settings(engine), told)
        self.recording.warnings += untold_settings(engine, self.base)
        self.own_model = timing.fit(self.recording.steps)
        self.model = timing.fit(other.steps) if other else self.own_model
        self._engine = with_copies_of(engine, other.engine) if other else engine
        self._changed = changed_settings(self._engine, recorded_settings(self._engine), told)
        self.rates_recorded = self._engine.load_gb_per_s is not None
        if self.own_model.stalls > _MOST_STALLS:
            self.recording.warnings.append(
                f"{self.own_model.stalls:.0%} of the steps' time are outliers, such as stalls of a busy machine; "
                "the time model leaves them out"
            )
        if self.model.copies_taken_off:
            self.recording.warnings.append(timing.COPIES_TAKEN_OFF)
        self.loop = loop_of(self.recording) if loop == "auto" else loop
        self._folder, self._time_from = folder, time_from

    @cached_property
    def recorded(self) -> Outcome:
        """Figures of the recording."""
        return check.outcome(self.recording.trace, self.recording.engine.engine_id)

    def what_if(self, name: str, changes: Sequence[str], rate: float = 1.0, target: Path | None = None) -> Job:
        """A replay with changed settings. It is written to `target`, or to be looked at only.

        Raises:
            KvtraceError: No engine could have these settings, or the recording lacks what they need.
        """
        settings = changed_settings(self._engine, self._changed, changes)
        check_sessions(settings, self.recording)
        check_launches(changes, self.model)
        facts: dict[str, Any] = {"replay_changes": changes_between(self.base, settings)}
        if self._time_from:
            facts["replay_time"] = f"fitted to {self._time_from.name}"
        return Job(name, settings, self.model, Loop(self.loop, rate), target or self._place(name), facts)

    def fitted(self) -> Job:
        """The replay with the recorded settings and predicted times, which gains are told of."""
        return Job(FITTED, self.base, self.own_model, Loop(self.loop), self._place(FITTED))

    def _place(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-').replace('/', '-')}.duckdb"

    def run(self, what_ifs: Sequence[Job], at_once: int = 1, exact_to: Path | None = None) -> dict[str, Any]:
        """Replay the recorded settings and the what-ifs.

        Returns:
            `outcomes` by name (recorded, repeated, fitted, then the what-ifs'), `prefetches` by name (of those with a
            prefetch policy), `agreement`, `errors`, `warnings`, `failed` (messages by name) and `speed`.

        Raises:
            KvtraceError: The recorded settings cannot be replayed, or all what-ifs failed.
        """
        recording = self.recording
        exact = Job(EXACT, self.base, None, Loop(), exact_to or self._place(EXACT))
        fitted = self.fitted()
        done = replay(recording, [exact, fitted, *what_ifs], at_once)
        for each in done[:2]:
            if isinstance(each, KvtraceError):
                raise each
        outcomes = {"recorded": self.recorded}
        warnings, failed, prefetches = [], {}, {}
        speed = {"steps_per_s": 0.0, "times_real": 0.0}
        for job, each in zip((exact, fitted, *what_ifs), done, strict=True):
            if isinstance(each, Replayed):
                outcomes[job.name] = each.outcome
                warnings += each.warnings
                if each.prefetch:
                    prefetches[job.name] = each.prefetch
                speed = {
                    "steps_per_s": each.steps / max(each.seconds, 1e-9),
                    "times_real": each.virtual_s / max(each.seconds, 1e-9),
                }
            else:
                failed[job.name] = str(each)
        if what_ifs and len(failed) == len(what_ifs):
            raise KvtraceError(next(iter(failed.values())))
        agreement = check.agreement(recording.trace, exact.target, recording.engine.engine_id)
        return {
            "outcomes": outcomes,
            "prefetches": prefetches,
            "agreement": agreement,
            "errors": check.errors(outcomes["recorded"], outcomes[FITTED]),
            "warnings": list(dict.fromkeys(warnings)),
            "failed": failed,
            "speed": speed,
        }

    def table(self, outcomes: dict[str, Outcome]) -> list[str]:
        """The figures of all outcomes as lines of text, and the error to expect of a fitted one."""
        expected = check.errors(outcomes["recorded"], outcomes[FITTED])
        names = list(outcomes)
        lines = [f"{'':16}" + "".join(f"{name:>12}" for name in names) + f"{'error':>10}"]

        def line(title: str, values: list[str], error: str) -> None:
            lines.append(f"{title:16}" + "".join(f"{value:>12}" for value in values) + f"{error:>10}")

        def percent(key: str) -> str:
            return f"{expected[key]:+.1%}" if key in expected else ""

        line("steps", [f"{outcomes[n].steps:,}" for n in names], percent("steps"))
        line("hit tokens", [f"{outcomes[n].hit_tokens:,}" for n in names], "")
        line("hit share", [f"{outcomes[n].hit_share:.1%}" for n in names], f"{expected['hit_share'] * 100:+.1f} pp")
        line("evictions", [f"{outcomes[n].evictions:,}" for n in names], percent("evictions"))
        line("preemptions", [f"{outcomes[n].preemptions:,}" for n in names], percent("preemptions"))
        line("output tokens/s", [f"{outcomes[n].tokens_per_s:,.1f}" for n in names], percent("tokens_per_s"))
        for key, title in check.LATENCIES.items():
            for place, quantile in enumerate(("mean", *(f"p{q}" for q in check.QUANTILES))):
                values = [outcomes[n].latency_ms.get(key) for n in names]
                if any(values):
                    texts = [f"{value[place]:,.1f}" if value else "" for value in values]
                    line(f"{title} {quantile} ms", texts, percent(f"{key}_{quantile}"))
        return lines

    def to_json(self, results: dict[str, Any]) -> dict[str, Any]:
        """The results as JSON."""
        return {
            "trace": str(self.recording.trace),
            "loop": self.loop,
            "outcomes": {
                name: {**asdict(each), "hit_share": each.hit_share, "tokens_per_s": each.tokens_per_s}
                for name, each in results["outcomes"].items()
            },
            "prefetches": results["prefetches"],
            "agreement": asdict(results["agreement"]),
            "expected_errors": results["errors"],
            "time_model": self.model.to_json(),
            "warnings": results["warnings"],
            "failed": results["failed"],
            "speed": results["speed"],
        }
