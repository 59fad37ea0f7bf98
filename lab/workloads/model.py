"""Workloads: jobs of turns, as token ids, and when the jobs arrive."""

from __future__ import annotations

import hashlib
import random
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

LOWEST_TOKEN = 3
VOCABULARY = 4000
"""Token ids are drawn from LOWEST_TOKEN up to this, which every shape of the lab has."""


@dataclass(frozen=True)
class Turn:
    """A request of a job, which sends the job's whole history and what is new.

    Attributes:
        new: Tokens that the turn adds to the prompt.
        output_tokens: Tokens to generate, no more and no less.
        tool: The tool that the job calls when the turn has ended; empty if none.
        tool_s: How long that call takes, s.
        answer: What the history goes on with; None for what the model generates.
    """

    new: Sequence[int]
    output_tokens: int
    tool: str = ""
    tool_s: float = 0.0
    answer: Sequence[int] | None = None


@dataclass(frozen=True)
class Job:
    """Turns that follow each other. `first_turn` numbers the first; `recorded_s` is its time in a recorded trace, s."""

    session: str
    turns: Sequence[Turn]
    first_turn: int = 0
    recorded_s: float | None = None


@dataclass(frozen=True)
class Workload:
    """Jobs and their arrivals.

    Attributes:
        name: As the matrix or the command line calls it.
        parameters: What it was made of, the seed included.
        jobs: In order of arrival.
        arrivals_s: When each job arrives after the start, s; None: as soon as one of `concurrency` slots is free.
        concurrency: Jobs at a time; None: no limit.
        notes: What had to be left out or estimated.
    """

    name: str
    parameters: dict[str, Any]
    jobs: Sequence[Job]
    arrivals_s: Sequence[float] | None
    concurrency: int | None = None
    notes: list[str] = field(default_factory=list)

    def prompt_tokens(self) -> Iterator[int]:
        """The length of each turn's prompt, job by job."""
        for job in self.jobs:
            history = 0
            for turn in job.turns:
                history += len(turn.new)
                yield history
                history += turn.output_tokens if turn.answer is None else len(turn.answer)

    @property
    def batch(self) -> bool:
        """The engine takes no step before all jobs are in its queue."""
        return self.parameters.get("arrival") == "batch"

    @property
    def longest_tokens(self) -> int:
        """The longest sequence: a prompt and its output."""
        outputs = (turn.output_tokens for job in self.jobs for turn in job.turns)
        return max((prompt + output for prompt, output in zip(self.prompt_tokens(), outputs, strict=True)), default=0)

    def digest(self) -> str:
        """SHA-256 of everything a client does with it: equal digests are equal workloads."""
        found = hashlib.sha256()
        for number, job in enumerate(self.jobs):
            arrival = self.arrivals_s[number] if self.arrivals_s is not None else None
            found.update(f"{job.session}\0{job.first_turn}\0{arrival}\0".encode())
            for turn in job.turns:
                found.update(f"{turn.output_tokens}\0{turn.tool}\0{turn.tool_s}\0{len(turn.new)}\0".encode())
                found.update(array("i", turn.new).tobytes())
                found.update(b"-" if turn.answer is None else array("i", turn.answer).tobytes())
        found.update(f"{self.concurrency}{'batch' if self.batch else ''}".encode())
        return found.hexdigest()

    def describe(self) -> dict[str, Any]:
        """The description saved with a run: parameters, totals, and the digest."""
        turns = [turn for job in self.jobs for turn in job.turns]
        prompts = list(self.prompt_tokens())
        return {
            "name": self.name,
            "parameters": self.parameters,
            "sha256": self.digest(),
            "jobs": len(self.jobs),
            "requests": len(turns),
            "turns_a_job": _spread([len(job.turns) for job in self.jobs]),
            "prompt_tokens": _spread(prompts),
            "new_tokens": _spread([len(turn.new) for turn in turns]),
            "output_tokens": _spread([turn.output_tokens for turn in turns]),
            "tools": dict(Counter(turn.tool for turn in turns if turn.tool).most_common()),
            "tool_s": _spread([turn.tool_s for turn in turns if turn.tool]),
            "longest_tokens": self.longest_tokens,
            "arrivals_s": _spread(self.arrivals_s) if self.arrivals_s is not None else None,
            "concurrency": self.concurrency,
            "notes": self.notes,
        }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "sum": round(sum(values), 6),
        "mean": round(statistics.fmean(values), 3),
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 6),
        "max": round(max(values), 6),
    }


def randomness(seed: int, *parts: object) -> random.Random:
    """A generator of its own for each use, so that one part of a workload does not move another."""
    return random.Random("/".join(map(str, (seed, *parts))))


def tokens(rng: random.Random, count: int) -> list[int]:
    """Draw `count` token ids."""
    return rng.choices(range(LOWEST_TOKEN, VOCABULARY), k=count)


def scaled(count: float, scale: float = 1.0) -> int:
    """A number of tokens, at least 1."""
    return max(1, round(count * scale))
