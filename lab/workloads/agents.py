"""Agents: jobs whose context grows turn by turn, with a tool call between two turns."""

from __future__ import annotations

import math
import random

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.model import Job, Turn, randomness, scaled, tokens

TOOL_MIX = {
    "cd": 0.26,
    "editor_view": 0.21,
    "editor_create": 0.13,
    "editor_str_replace": 0.12,
    "submit": 0.11,
    "find": 0.06,
    "rm": 0.05,
    "grep": 0.04,
    "others": 0.02,
}
"""Share of all calls, as measured on coding agents."""

TOOL_S = {
    "cd": 0.1,
    "editor_view": 0.2,
    "editor_create": 0.3,
    "editor_str_replace": 0.3,
    "submit": 1.0,
    "find": 1.0,
    "rm": 0.1,
    "grep": 0.6,
    "others": 4.0,
}
"""Median time of a call, s: our choice, since how long a tool takes depends on where it runs."""

MEAN_TURNS = 17.9
TURNS_SIGMA = 0.5
"""Turns a job: log-normal. The mean is measured, the spread our choice; so below."""

FIRST_TOKENS, FIRST_SIGMA = 2200.0, 0.3
RESULT_TOKENS, RESULT_SIGMA = 315.0, 1.0
"""Medians of the first prompt and of what a tool's result adds, such that the median prompt of all turns has the
measured 6,945 tokens."""

OUTPUT_TOKENS, OUTPUT_SIGMA = 30.0, 0.7
TOOL_SIGMA = 0.25


def agent(
    seed: int,
    *,
    jobs: int = 30,
    turns: int | None = None,
    tool_s: float | None = None,
    tool_scale: float = 1.0,
    scale: float = 1.0,
    longest: int = 65_536,
) -> list[Job]:
    """Trajectories with the tool mix and the lengths that were measured on coding agents.

    Every job ends with `submit`, which is not waited for; a job ends early rather than grow beyond `longest`.

    Args:
        seed: Of lengths, tools and tokens.
        jobs: How many.
        turns: Turns of each job; by default 17.9 in the mean.
        tool_s: Time of every call, s; by default by tool (`TOOL_S`, log-normal).
        tool_scale: Of those times.
        scale: Of all token counts.
        longest: Tokens of the longest prompt and its output.
    """
    return [_agent(seed, number, turns, tool_s, tool_scale, scale, longest) for number in range(jobs)]


def eight_turns(
    seed: int,
    *,
    jobs: int = 30,
    turns: int = 8,
    prompt: int | list[int] = 2048,
    output: int = 20,
    tool_s: float = 0.5,
) -> list[Job]:
    """Jobs of eight turns that each add about 2 K tokens, with tool calls of half a second.

    Args:
        seed: Of lengths, tools and prompts.
        jobs: Jobs.
        turns: Turns of a job.
        prompt: Tokens that a turn adds, within a tenth; or a list of what each turn adds, as it is.
        output: Tokens of an output.
        tool_s: Duration of a tool call, s.

    Raises:
        KvtraceError: The list has a length below 1, or not as many as there are turns.
    """
    if isinstance(prompt, list) and (len(prompt) != turns or min(prompt) < 1):
        raise KvtraceError(f"workload eight-turns: expected {turns} lengths of at least 1, found {prompt}")
    made = []
    for number in range(jobs):
        rng = randomness(seed, "eight", number)
        lengths = prompt if isinstance(prompt, list) else [scaled(prompt * rng.uniform(0.9, 1.1)) for _ in range(turns)]
        tools = [_draw(rng) for _ in range(turns - 1)] + [""]
        made.append(
            Job(
                f"agent-{number}",
                [
                    Turn(tokens(rng, length), output, tool, tool_s if tool else 0.0)
                    for length, tool in zip(lengths, tools, strict=True)
                ],
            )
        )
    return made


def _agent(
    seed: int, number: int, turns: int | None, tool_s: float | None, tool_scale: float, scale: float, longest: int
) -> Job:
    rng = randomness(seed, "agent", number)
    count = turns or max(2, round(rng.lognormvariate(math.log(MEAN_TURNS) - TURNS_SIGMA**2 / 2, TURNS_SIGMA)))
    made: list[Turn] = []
    length = 0
    for index in range(count):
        median, sigma = (RESULT_TOKENS, RESULT_SIGMA) if index else (FIRST_TOKENS, FIRST_SIGMA)
        new = scaled(rng.lognormvariate(math.log(median), sigma), scale)
        output = scaled(rng.lognormvariate(math.log(OUTPUT_TOKENS), OUTPUT_SIGMA), scale)
        tool = _draw(rng)
        seconds = rng.lognormvariate(math.log(TOOL_S[tool]), TOOL_SIGMA) * tool_scale if tool_s is None else tool_s
        length += new + output
        if length > longest:
            break
        made.append(Turn(tokens(rng, new), output, tool, round(seconds, 6)))
    if not made:
        raise KvtraceError(
            f"workload agent: longest ({longest} tokens) is too short for a first turn; scale is {scale}"
        )
    made[-1] = Turn(made[-1].new, made[-1].output_tokens, "submit", 0.0)
    return Job(f"agent-{number}", made)


def _draw(rng: random.Random) -> str:
    """A tool of a turn that is not the last: fewer submits, since every job ends with one."""
    rest = (TOOL_MIX["submit"] * MEAN_TURNS - 1) / (MEAN_TURNS - 1)
    others = (1 - rest) / (1 - TOOL_MIX["submit"])
    weights = [rest if tool == "submit" else share * others for tool, share in TOOL_MIX.items()]
    return rng.choices(list(TOOL_MIX), weights)[0]
