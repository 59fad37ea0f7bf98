"""How long a recording's own steps take by the times that are fitted to them, in the order in which they were recorded.

    python -m bench.step_times TRACE.duckdb...

A replay goes another way as soon as a step takes another time, and its figures then differ for two reasons. Here the
steps are the recorded ones: what is off is the step times. Time between results, while the engine had work, of traces
of vLLM with asynchronous scheduling; by kind of a step and of the one launched behind it (`D` decodes only, `P` has
prefill).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from kvtrace.lab.replay import timing
from kvtrace.lab.replay.recording import StepTime, read_recording

_IDLE_NS = 1_000_000


class Interval(NamedTuple):
    """Time between the results of a step and of the one before it, ns, recorded and predicted."""

    kind: str
    recorded_ns: int
    predicted_ns: int


def main() -> None:
    """Print a line for each trace."""
    for path in sys.argv[1:]:
        found = intervals(Path(path))
        if not found:
            print(f"{path}: the engine was idle before or behind each step")
            continue
        of_kind = {
            kind: [each for each in found if each.kind == kind] for kind in sorted({each.kind for each in found})
        }
        kinds = ", ".join(f"{kind} {_off(those)}" for kind, those in of_kind.items())
        print(f"{path}: {sum(each.recorded_ns for each in found) / 1e9:.2f} s, {_off(found)}: {kinds}")


def _off(found: list[Interval]) -> str:
    recorded_ns, predicted_ns = sum(each.recorded_ns for each in found), sum(each.predicted_ns for each in found)
    return f"{100 * (predicted_ns / recorded_ns - 1):+.1f}%"


def intervals(path: Path) -> list[Interval]:
    """The intervals of a trace's steps, but for those before and behind which the engine was idle."""
    recording = read_recording(path)
    model = timing.fit(recording.steps).with_graphs(recording.engine.graph_tokens)
    found: list[Interval] = []
    now = done = prefills = 0
    before: StepTime | None = None
    results: tuple[int, int] | None = None  # of the step two before, recorded and predicted
    for step in recording.steps:
        if step.update_ns is None or not step.decode_tokens + step.prefill_tokens:
            continue
        is_idle = before is None or step.start_ns > (before.update_ns or 0) + _IDLE_NS
        if is_idle:
            now = done = step.start_ns
        work = timing.work_of(step)
        launch_ns = model.launch(prefills, work)
        prefills += work.prefill_tokens > 0
        ends = model.end_ns(now, max(done, now), work, launch_ns)
        if is_idle or before is None:
            results = None
        else:
            taken_in = max(now, done, now + launch_ns)
            if results is not None:
                kind = "".join("P" if each.prefill_tokens else "D" for each in (before, step))
                found.append(Interval(kind, (before.update_ns or 0) - results[0], taken_in - results[1]))
            results = (before.update_ns or 0), taken_in
            now = taken_in + model.overhead_ns
        done, before = ends, step
    return found


if __name__ == "__main__":
    main()
