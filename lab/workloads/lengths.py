"""Single requests of given lengths: fixed, listed, Zipf, as in ShareGPT."""

from __future__ import annotations

import itertools
import math
import random

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.model import Job, Turn, randomness, scaled, tokens

SHAREGPT_MEAN = (161.31, 337.99)
"""Mean tokens of prompts and outputs of ShareGPT as the vLLM paper gives them."""

SHAREGPT_SIGMA = (1.1, 0.8)
"""Standard deviations of the lengths' logarithms. kvtrace chose them, for a long tail."""

SHAREGPT_MOST = 4096


def fixed(seed: int, *, jobs: int = 32, prompt: int = 1024, output: int = 128) -> list[Job]:
    """Requests of one length; no two share a prefix.

    Args:
        seed: Of the prompts.
        jobs: Requests.
        prompt: Tokens of a prompt.
        output: Tokens of an output.
    """
    return _requests(seed, "fixed", [(prompt, output)] * jobs)


def listed(seed: int, *, lengths: list[list[int]]) -> list[Job]:
    """Requests of the lengths of a list, in its order; no two share a prefix.

    Args:
        seed: Of the prompts.
        lengths: Of each request, tokens of its prompt and of its output.

    Raises:
        KvtraceError: A length is missing or less than 1.
    """
    for pair in lengths:
        if len(pair) != 2 or not all(type(tokens) is int and tokens > 0 for tokens in pair):
            raise KvtraceError(f"workload listed: expected prompt and output tokens, found {list(pair)}")
    return _requests(seed, "listed", [(prompt, output) for prompt, output in lengths])


def zipf(
    seed: int,
    *,
    jobs: int = 32,
    shortest: int = 256,
    longest: int = 4096,
    theta: float = 0.6,
    ratio: float = 4.0,
) -> list[Job]:
    """Total lengths by Zipf's law from `shortest` to `longest`, each `ratio` parts prompt to one part output.

    A length of rank k, from the shortest, has a probability proportional to k ** -theta.

    Args:
        seed: Of lengths and prompts.
        jobs: Requests.
        shortest: The shortest total length, tokens.
        longest: The longest, tokens.
        theta: The exponent.
        ratio: Prompt tokens for each output token.

    Raises:
        KvtraceError: The lengths are not in order.
    """
    if not 2 <= shortest <= longest:
        raise KvtraceError(f"workload zipf: expected 2 <= shortest <= longest, found {shortest} and {longest}")
    weights = list(itertools.accumulate(rank**-theta for rank in range(1, longest - shortest + 2)))
    totals = randomness(seed, "zipf").choices(range(shortest, longest + 1), cum_weights=weights, k=jobs)
    pairs = []
    for total in totals:
        output = scaled(total / (1 + ratio))
        pairs.append((total - output, output))
    return _requests(seed, "zipf", pairs)


def sharegpt_like(seed: int, *, jobs: int = 100, scale: float = 1.0) -> list[Job]:
    """Log-normal prompt and output lengths with ShareGPT's means; lengths above `SHAREGPT_MOST` are drawn again."""
    rng = randomness(seed, "sharegpt")
    pairs = [tuple(_lognormal(rng, *of) for of in zip(SHAREGPT_MEAN, SHAREGPT_SIGMA, strict=True)) for _ in range(jobs)]
    return _requests(seed, "sharegpt", [(scaled(prompt, scale), scaled(output, scale)) for prompt, output in pairs])


def _lognormal(rng: random.Random, mean: float, sigma: float) -> float:
    while (value := rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)) > SHAREGPT_MOST:
        pass
    return value


def _requests(seed: int, label: str, pairs: list[tuple[int, int]]) -> list[Job]:
    rng = randomness(seed, label, "tokens")
    return [
        Job(f"{label}-{number}", [Turn(tokens(rng, prompt), output)]) for number, (prompt, output) in enumerate(pairs)
    ]
