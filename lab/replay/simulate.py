"""Replays jobs in this process, without probes or a trace, for studies of many small replays.

Only processes that end afterwards import it: it replaces `time`'s clocks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrace.lab.replay import process
from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.drive import Drive, replay_timed
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import EngineFacts, RecordedRequest, Recording, StepTime
from kvtrace.lab.replay.settings import Settings
from kvtrace.lab.replay.timing import TimeModel
from kvtrace.lab.workloads.model import Job

_START_NS = 1_700_000_000_000_000_000
_NOMINAL_NS = 1_000_000  # of a turn in the recording; a closed loop only looks at gaps


def recording_of(engine: EngineFacts, jobs: Sequence[Job], rate: float, spread: float, seed: int) -> Recording:
    """Jobs as a recording for a closed loop.

    Args:
        engine: Facts of the engine.
        jobs: Their turns' `tool_s` are means.
        rate: Jobs a second; they arrive at random.
        spread: Sigma of a log-normal factor, of mean 1, on each tool call's time.
        seed: Of arrivals and tool times.
    """
    rng = random.Random(seed)
    requests: list[RecordedRequest] = []
    start_s = 0.0
    for job in jobs:
        start_s += rng.expovariate(rate)
        requests += _turns(engine, job, _START_NS + int(start_s * 1e9), spread, rng, len(requests))
    requests.sort(key=lambda request: (request.arrival_ns, request.number))
    steps = [StepTime(0, _START_NS, None, None, 0, 0, 0, 0, 0)]
    return Recording(Path("generated"), engine, requests, steps, [], None, [])


def _turns(
    engine: EngineFacts, job: Job, arrival_ns: int, spread: float, rng: random.Random, first: int
) -> list[RecordedRequest]:
    made = []
    chain: dict[int, int] = {}
    tokens = 0
    for number, turn in enumerate(job.turns):
        tokens += len(turn.new)
        for position in range(len(chain), (tokens + turn.output_tokens) // engine.hash_block_size):
            chain[position] = rng.getrandbits(63)
        name = f"{job.session}-{number}"
        finished_ns = arrival_ns + _NOMINAL_NS
        made.append(
            RecordedRequest(
                first + number + 1,
                name,
                name,
                job.session,
                number,
                turn.tool or None,
                0,
                arrival_ns,
                arrival_ns,
                tokens,
                turn.output_tokens,
                turn.output_tokens,
                "length",
                finished_ns,
                dict(chain),
            )
        )
        tokens += turn.output_tokens
        factor = math.exp(spread * rng.gauss(0, 1) - spread**2 / 2)
        arrival_ns = finished_ns + int(turn.tool_s * factor * 1e9)
    return made


@dataclass
class Figures:
    """Figures of a replay. Times in s.

    Attributes:
        first_s: Time to the first token of each turn after a session's first.
        job_s: Time of each job.
        prefetch: Counts of the prefetcher; empty without one.
    """

    first_s: list[float] = field(default_factory=list)
    job_s: list[float] = field(default_factory=list)
    hit_tokens: int = 0
    prompt_tokens: int = 0
    prefetch: dict[str, int] = field(default_factory=dict)


class _Watched(Drive):
    """A drive that remembers when requests came, had their first token and ended."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.came: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.finished: dict[str, int] = {}
        self.hits: dict[str, int] = {}

    def add(self, recorded: RecordedRequest, arrival_ns: int) -> None:
        """Queue a request."""
        super().add(recorded, arrival_ns)
        self.came[recorded.internal_id] = arrival_ns

    def results(self, output: Any, tokens: list[str], step: int = 0) -> list[Any]:
        """Hand in a step's results."""
        found = super().results(output, tokens, step)
        for each in found:
            if each.new_token_ids and each.request_id not in self.first:
                self.first[each.request_id] = self.clock.now_ns
                told = each.prefill_stats
                self.hits[each.request_id] = told.num_cached_tokens if told else 0
            if each.finish_reason is not None:
                self.finished[each.request_id] = self.clock.now_ns
        return found


def simulate(recording: Recording, settings: Settings, model: TimeModel) -> tuple[Figures, Any]:
    """Replay in a closed loop. Return its figures and the scheduler.

    Args:
        recording: What comes.
        settings: Of the scheduler.
        model: Times of steps.
    """
    process.import_vllm()
    from kvtrace.lab.replay import engine
    from kvtrace.lab.replay.tiers.worker import emulated_worker

    clock = VirtualClock(_START_NS)
    clock.install()
    scheduler = engine.build_scheduler(recording.engine, settings)
    worker = emulated_worker(scheduler, recording, settings, model, clock)
    drive = _Watched(scheduler, engine.Requests(recording.engine, settings), recording, clock, worker)
    replay_timed(drive, model.with_graphs(settings.max_cudagraph_capture_size), Loop("closed"))
    if settings.tier:
        scheduler.connector.drain()
    figures = Figures(
        hit_tokens=sum(drive.hits.values()), prompt_tokens=sum(r.prompt_tokens for r in recording.requests)
    )
    jobs: dict[str, list[int]] = {}
    for request in recording.requests:
        name = request.internal_id
        jobs.setdefault(request.session or name, []).extend((drive.came[name], drive.finished[name]))
        if request.turn:
            figures.first_s.append((drive.first[name] - drive.came[name]) / 1e9)
    figures.job_s = [(max(times) - min(times)) / 1e9 for times in jobs.values()]
    prefetcher = getattr(scheduler.connector, "prefetcher", None)
    if prefetcher is not None:
        figures.prefetch = vars(prefetcher.counts).copy()
    return figures, scheduler
