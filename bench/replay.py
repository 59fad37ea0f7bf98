"""Speed of a replay: steps a second on one core, and how much faster than the recorded engine it is.

    python -m bench.replay TRACE [REPEATS]

Seconds are processor time. A step is one of vLLM's own scheduler, recorded by kvtrace's hooks. Starting the process
and ingest are not counted.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay import timing
from kvtrace.lab.replay.drive import Loop, loop_of
from kvtrace.lab.replay.recording import read_recording
from kvtrace.lab.replay.run import Job, replay
from kvtrace.lab.replay.settings import recorded_settings


def main(trace: Path, repeats: int) -> None:
    recording = read_recording(trace)
    settings, model = recorded_settings(recording.engine), timing.fit(recording.steps)
    kinds = (("recorded times", None, Loop()), ("fitted times", model, Loop(loop_of(recording))))
    with tempfile.TemporaryDirectory() as folder:
        for name, used, loop in kinds:
            jobs = [Job(name, settings, used, loop, Path(folder, f"{n}.duckdb")) for n in range(repeats)]
            speeds, ratios = [], []
            for done in replay(recording, jobs):
                if isinstance(done, KvtraceError):
                    raise done
                speeds.append(done.steps / done.seconds)
                ratios.append(done.virtual_s / done.seconds)
            print(
                f"{name}: {statistics.median(speeds):,.0f} steps/s ({min(speeds):,.0f} to {max(speeds):,.0f}), "
                f"{statistics.median(ratios):,.0f} times real time"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
