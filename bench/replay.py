"""Speed and memory of replays: steps a second on one core, times real time, and bytes a request.

    python -m bench.replay                    # 64 sequences of Llama-8B's shape, and memory by number of requests
    python -m bench.replay TRACE [REPEATS]    # a recording, with and without a trace of the replay
    python -m bench.replay requests 1000000   # memory of so many streamed requests

Seconds are processor time. Starting the process and ingest are not counted. The generated workloads take the step times
that were fitted to a recording of Llama-3.1-8B's shape on an H100 (`docs/replay.md`, fcfs, 80,000 tokens, 1 job/s).
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from kvtrace.lab.replay import process, timing
from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.drive import Drive, replay_timed
from kvtrace.lab.replay.loops import Loop, loop_of
from kvtrace.lab.replay.recording import EngineFacts, RecordedRequest, Recording, read_recording
from kvtrace.lab.replay.run import Job, replay_all
from kvtrace.lab.replay.settings import recorded_settings

H100 = timing.TimeModel(
    decode=[6_415_239.2, 30_343.0, 0.0, 53.3568, 0.0],
    mixed=[2_594_231.5, 0.0, 21_367.8, 45.2979, 0.664798],
    overhead_ns=276_213,
    residuals=[],
    launches=timing.Launches([33_409_144], 36_489_842),
)
START_NS = 1_800_000_000_000_000_000
SEQUENCES = 64
REQUESTS = (10_000, 100_000)
BLOCKS = 20_000


def engine(blocks: int) -> EngineFacts:
    return EngineFacts(
        1, "llama-3.1-8b", None, 16, 16, blocks, 2_097_152, 1, 8192, SEQUENCES, 16_384, "fcfs", None,
        True, True, True, None,
    )  # fmt: skip


def request(
    number: int, session: int, turn: int, at_ns: int, prompt: int, output: int, ends_ns: int
) -> RecordedRequest:
    """A turn whose blocks are those of its session's conversation."""
    chain = {place: (session << 32 | place) + 1 for place in range((prompt + output) // 16)}
    return RecordedRequest(
        number, f"r{number}", None, f"s{session}", turn, None, 0, at_ns, at_ns, prompt, output, output, "length",
        ends_ns, chain,
    )  # fmt: skip


def conversations(new_tokens: int, output_tokens: int, turns: int, think_s: float) -> list[RecordedRequest]:
    """64 sessions at once, whose next turns come as soon as the last one has ended and its user has thought."""
    chance, made = random.Random(1), []
    for session in range(SEQUENCES):
        at_ns, prompt = START_NS + round(chance.random() * 5e9), 0
        for turn in range(turns):
            prompt += max(16, round(chance.lognormvariate(0, 0.5) * new_tokens))
            output = max(2, round(chance.lognormvariate(0, 0.5) * output_tokens))
            ends_ns = at_ns + 1_000_000
            made.append(request(len(made) + 1, session, turn, at_ns, prompt, output, ends_ns))
            at_ns, prompt = ends_ns + round(chance.expovariate(1 / (think_s * 1e9))), prompt + output
    return sorted(made, key=lambda made: made.queued_ns)


def offline() -> list[RecordedRequest]:
    """256 requests at once, of 256 to 768 prompt and as many output tokens: a throughput benchmark's."""
    chance = random.Random(3)
    return [
        request(number, number, 0, START_NS, chance.randrange(256, 769), chance.randrange(256, 769), 0)
        for number in range(1, 257)
    ]


def short_requests() -> Iterator[RecordedRequest]:
    """Requests of 64 to 256 tokens, half of which share a prefix, 16 a second."""
    chance, at_ns, number = random.Random(2), float(START_NS), 0
    while True:
        number += 1
        at_ns += chance.expovariate(16e-9)
        session = chance.randrange(1000) if number % 2 else 1000 + number
        yield request(number, session, 0, round(at_ns), chance.randrange(64, 256), chance.randrange(8, 48), 0)


def forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a process of its own, with own clocks and memory; returns its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said: dict[str, Any] = json.load(pipe)
    os.waitpid(child, 0)
    return said


def memory(count: int) -> dict[str, Any]:
    """Stream so many requests through a scheduler."""
    from kvtrace.lab.replay.engine import Requests, build_scheduler
    from kvtrace.lab.replay.tally import Tally

    facts = engine(BLOCKS)
    settings = recorded_settings(facts)
    clock = VirtualClock(START_NS)
    clock.install()
    scheduler = build_scheduler(facts, settings)
    tally = Tally(scheduler)
    recording = Recording(Path("generated"), facts, [], [], [], None, [])
    driven = Drive(scheduler, Requests(facts, settings), recording, clock, tally=tally)
    before, used = resident_bytes(), os.times().user
    replay_timed(driven, H100, Loop(), islice(short_requests(), count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"before": before, "peak": peak, "steps": driven.steps, "seconds": os.times().user - used,
            "hits": tally.outcome(driven.steps).hit_share}  # fmt: skip


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def generated() -> None:
    kinds = {
        "64 sequences, offline, 512 prompt and 512 output tokens on average": offline(),
        "64 chats, 300 new and 250 output tokens a turn": conversations(300, 250, 8, 0.3),
        "64 agents, 1,000 new and 30 output tokens a turn": conversations(1000, 30, 8, 1),
    }
    for name, requests in kinds.items():
        recording = Recording(Path("generated"), engine(60_000), requests, [], [], None, [])
        settings = recorded_settings(recording.engine)
        job = Job(name, settings, H100, Loop("closed"), Path("none"), figures_only=True)
        print_speed(name, [forked(lambda recording=recording, job=job: process.replayed(recording, job))])  # type: ignore[misc]
    streamed(REQUESTS)


def streamed(counts: tuple[int, ...]) -> None:
    """Print the peak memory by number of requests."""
    peaks = []
    for count in counts:
        said = forked(lambda count=count: memory(count))  # type: ignore[misc]
        peaks.append(said["peak"])
        print(
            f"{count:,} streamed requests: peak {said['peak'] / 1e6:,.0f} MB, {said['before'] / 1e6:,.0f} MB of it "
            f"before; {said['steps'] / said['seconds']:,.0f} steps/s, {count / said['seconds']:,.0f} requests/s"
        )
    if len(counts) > 1:
        print(f"slope of the peak: {(peaks[-1] - peaks[0]) / (counts[-1] - counts[0]):,.0f} B a request")


def print_speed(name: str, runs: list[dict[str, Any]]) -> None:
    speeds = [run["steps"] / run["seconds"] for run in runs]
    ratio = statistics.median(run["virtual_s"] / run["seconds"] for run in runs)
    print(
        f"{name}: {statistics.median(speeds):,.0f} steps/s ({min(speeds):,.0f} to {max(speeds):,.0f}), "
        f"{ratio:,.0f} times real time"
    )


def recorded(trace: Path, repeats: int) -> None:
    recording = read_recording(trace)
    settings, model = recorded_settings(recording.engine), timing.fit(recording.steps)
    loop = Loop(loop_of(recording))
    kinds = (
        ("recorded times", None, Loop(), False),
        ("fitted times", model, loop, False),
        ("fitted times, figures only", model, loop, True),
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, used, arriving, figures in kinds:
            jobs = [
                Job(name, settings, used, arriving, Path(folder, f"{n}.duckdb"), figures_only=figures)
                for n in range(repeats)
            ]
            runs = [
                {"steps": done.steps, "seconds": done.seconds, "virtual_s": done.virtual_s}
                for done in replay_all(recording, jobs)
            ]
            print_speed(name, runs)


def ready() -> None:
    """Import and prepare as the process of a replay does."""
    process.import_vllm()
    process.warm(engine(BLOCKS), recorded_settings(engine(BLOCKS)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["requests"]:
        ready()
        streamed(tuple(int(count) for count in sys.argv[2:]))
    elif len(sys.argv) > 1:
        recorded(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    else:
        ready()
        generated()
