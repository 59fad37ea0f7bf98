"""Replays of recordings with recorded times, beside what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import check
from kvtrace.lab.replay.check import Agreement, Outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, replay
from kvtrace.lab.replay.settings import changed_settings, recorded_settings, untold_settings
from kvtrace.queries import Trace

COUNTED = ("steps", "hit_tokens", "evictions", "preemptions", "output_tokens")


_MISSES = """
SELECT r.internal_id, m.step, m.resumed, m.verdict, m.gate_rule, m.known_tokens, m.recomputed_tokens, m.avoidable_tokens
FROM prefix_miss m JOIN request r USING (request) WHERE m.engine_id = {engine} ORDER BY r.internal_id, m.step, m.resumed
"""


_PINS = """
SELECT r.internal_id, min(p.time_ns) AS time_ns FROM pin_start p JOIN request r USING (request)
WHERE p.cause = 'ttl' AND {where} GROUP BY r.internal_id ORDER BY r.internal_id
"""


class Repeated(NamedTuple):
    """A recording, and its replay with recorded times.

    `misses` are the verdicts on both's lookups, with what they say of them, and `pins` when TTL pins began.
    """

    recorded: Outcome
    replayed: Outcome
    agreement: Agreement
    warnings: list[str]
    misses: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    pins: tuple[list[dict[str, Any]], list[dict[str, Any]]]

    def check(self) -> None:
        """Hits, evictions, preemptions and verdicts on misses are equal, and so are 99.9% of the steps."""
        counts = [{name: getattr(outcome, name) for name in COUNTED} for outcome in (self.replayed, self.recorded)]
        assert counts[0] == counts[1], self.agreement.departs
        assert self.agreement.identical_steps >= 0.999, self.agreement.departs
        for recorded, replayed in zip(*self.misses, strict=True):
            if recorded["verdict"] == "different_key":  # a replay has a prompt's hashes, not its tokens
                assert replayed["verdict"] == "never_stored"
            else:
                assert replayed == recorded
        for recorded, replayed in zip(*self.pins, strict=True):
            assert replayed["internal_id"] == recorded["internal_id"]
            assert abs(replayed["time_ns"] - recorded["time_ns"]) < 1000  # it ends that much later


def repeated(trace: Path, engine_id: int | None, folder: Path, recorded: Sequence[str] = ()) -> Repeated:
    """Replay one engine of a trace; an error is raised. `recorded` has settings that the trace does not tell."""
    recording = read_recording(trace, engine_id)
    settings = changed_settings(recording.engine, recorded_settings(recording.engine), recorded)
    recording.warnings += untold_settings(recording.engine, settings)
    number = recording.engine.engine_id
    [done] = replay(recording, [Job("repeated", settings, None, Loop(), folder / "again.duckdb")])
    if isinstance(done, KvtraceError):
        raise done
    agreement = check.agreement(trace, done.trace, number)
    misses = _rows(trace, _MISSES.format(engine=number)), _rows(done.trace, _MISSES.format(engine="m.engine_id"))
    pins = _rows(trace, _PINS.format(where=f"p.engine_id = {number}")), _rows(done.trace, _PINS.format(where="true"))
    return Repeated(check.outcome(trace, number), check.outcome(done.trace), agreement, done.warnings, misses, pins)


def _rows(path: Path | None, sql: str) -> list[dict[str, Any]]:
    assert path is not None
    with Trace(path) as trace:
        rows: list[dict[str, Any]] = trace.sql(sql, format="arrow").to_pylist()
    return rows


def check_all(
    traces: Mapping[str, Path | tuple[Path, int]], folder: Path, recorded: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Repeated]:
    """Check the replays of several traces, or engines of traces, two at a time.

    Args:
        traces: By name.
        folder: Where they go.
        recorded: Settings that a trace does not tell, by its name.
    """

    def one(name: str) -> Repeated:
        (folder / f"repeated {name}").mkdir()
        where = traces[name]
        told = (recorded or {}).get(name, ())
        return repeated(*(where if isinstance(where, tuple) else (where, None)), folder / f"repeated {name}", told)

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(traces, pool.map(one, traces), strict=True))
    for each in found.values():
        each.check()
    return found
