"""Requests that share prefixes, requests of the same lengths that share nothing, and pairs that evict each other."""

from __future__ import annotations

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.model import Job, Turn, randomness, tokens

SIZES = {"short": 512, "long": 4096, "xlong": 16_384}
"""Tokens of a prompt."""


def shared_prefix(
    seed: int,
    *,
    families: int = 8,
    members: int = 4,
    size: str | int = "short",
    share: float = 0.75,
    output: int = 32,
    unique: bool = False,
) -> list[Job]:
    """Families of prompts with a common prefix, one member of each family after another; no prompt comes twice.

    Args:
        seed: Of the tokens.
        families: How many.
        members: Prompts a family.
        size: Tokens of a prompt, or one of `SIZES`.
        share: Part of the prompt that a family has in common.
        output: Output tokens of each.
        unique: Prompts of the same lengths that have nothing in common, to compare with.
    """
    length = SIZES[size] if isinstance(size, str) and size in SIZES else size
    if not isinstance(length, int) or not 0 < share < 1:
        raise KvtraceError(f"workload shared-prefix: size is {', '.join(SIZES)} or a number, share from 0 to 1")
    common = max(1, min(length - 1, round(length * share)))
    prefixes = [tokens(randomness(seed, "family", family), common) for family in range(families)]
    jobs = []
    for member in range(members):
        for family in range(families):
            rng = randomness(seed, "unique" if unique else "shared", family, member)
            prefix = tokens(rng, common) if unique else prefixes[family]
            jobs.append(Job(f"family-{family}-{member}", [Turn([*prefix, *tokens(rng, length - common)], output)]))
    return jobs


def evict_pair(
    seed: int, *, evicted: int = 4096, pool: int = 0, mode: str = "cached", rounds: int = 1, block: int = 16
) -> list[Job]:
    """Two requests of which one evicts the other's KV, `rounds` times.

    `cached`: the first ends, the second fills the pool and so takes all its blocks, the first comes again with the same
    tokens and computes or fetches them. Send with arrival closed, concurrency 1. `preempt`: both run, the pool is full
    but for their growth, and the second is preempted with about `evicted` tokens. Send all at once, and one round.

    Args:
        seed: Of the tokens.
        evicted: Tokens whose KV is lost.
        pool: Tokens the GPU's pool has room for; a sweep puts in the cell's.
        mode: `cached` or `preempt`.
        rounds: Times, with new tokens each.
        block: Tokens a block; a sweep puts in the cell's.
    """
    if mode not in {"cached", "preempt"} or pool <= evicted + 8 * block:
        raise KvtraceError(
            f"workload evict-pair: mode is cached or preempt, and pool ({pool} tokens) has to hold evicted ({evicted}) "
            "and some blocks more"
        )
    jobs = []
    for number in range(rounds):
        rng = randomness(seed, "evict", number)
        victim, other = tokens(rng, evicted), tokens(rng, pool)
        if mode == "cached":
            last = [Turn([*victim, *tokens(rng, 1)], 1)]
            jobs.append(Job(f"evicted-{number}", [Turn(victim, 1)]))
            jobs.append(Job(f"evictor-{number}", [Turn(other[: pool - 1], 1)]))  # its last output takes no room
            jobs.append(Job(f"evicted-{number}", last, first_turn=1))
        else:
            first = pool - evicted - 2 * block
            jobs.append(Job(f"evictor-{number}", [Turn(other[:first], 4 * block)]))
            jobs.append(Job(f"evicted-{number}", [Turn(victim, 4 * block)]))
    return jobs
