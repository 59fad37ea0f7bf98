"""Distances, curves and bounds against models that do what the words say, one block at a time."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.errors import KvtraceError
from kvtrace.queries.reuse import COLD, HitCurve, References, Retentions, lru_distances, miss_ratios, sample

Event = list[tuple[int, bool]]
"""Blocks of an event, each with whether it counts as a lookup."""


def references_of(events: list[Event]) -> References:
    rows = [(key, number, counted) for number, event in enumerate(events) for key, counted in event]
    key, number, counted = zip(*rows, strict=True) if rows else ((), (), ())
    return References.of(np.array(key, np.uint64), number, counted)


def events_of(keys: int, most: int, longest: int = 4) -> st.SearchStrategy[list[Event]]:
    """Events of different blocks, in any order and with any of them counted."""
    event = st.lists(
        st.tuples(st.integers(0, keys - 1), st.booleans()), max_size=longest, unique_by=lambda reference: reference[0]
    )
    return st.lists(event, max_size=most)


@st.composite
def prompts(draw: st.DrawFn, tokens: int = 2, longest: int = 3, most: int = 7) -> list[Event]:
    """Chains of block hashes, tail first: a block's key stands for all that comes before it, as vLLM's hashes do."""
    events = []
    for _ in range(draw(st.integers(0, most))):
        prompt = tuple(draw(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=longest)))
        counted = draw(st.sampled_from([True, True, False]))
        names = [
            sum((token + 1) * 4**place for place, token in enumerate(prompt[: end + 1])) for end in range(len(prompt))
        ]
        events.append([(name, counted) for name in reversed(names)])
    return events


def stack_distances(events: list[Event]) -> list[int]:
    """Return each block's place in a list of blocks, the most recent first, when its event begins."""
    recent: list[int] = []
    distances = []
    for event in events:
        distances += [recent.index(key) if key in recent else COLD for key, _ in event]
        for key, _ in event:
            if key in recent:
                recent.remove(key)
            recent.insert(0, key)
    return distances


def lru_hits(events: list[Event], size: int) -> int:
    """Lookups found by a cache that holds the most recent `size` blocks between events."""
    cache: list[int] = []
    hits = 0
    for event in events:
        hits += sum(counted and key in cache for key, counted in event)
        for key, _ in event:
            cache = [key, *(other for other in cache if other != key)]
        cache = cache[:size]
    return hits


def most_hits(events: list[Event], size: int, prefixes: bool = False) -> int:
    """The best of all ways to choose what to retain between events. A tail-first prompt may need its whole prefix."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for event in events:
        after: dict[frozenset[int], int] = {}
        for cache, hits in best.items():
            found = [counted and key in cache for key, counted in event]
            if prefixes:
                found = [
                    counted and all(key in cache for key, _ in event[at:]) for at, (_, counted) in enumerate(event)
                ]
            reachable = cache | {key for key, _ in event}
            for kept in combinations(sorted(reachable), min(size, len(reachable))):
                total = hits + sum(found)
                after[frozenset(kept)] = max(total, after.get(frozenset(kept), 0))
        best = after
    return max(best.values())


@given(events_of(keys=12, most=40))
def test_distances_are_positions_in_the_stack(events: list[Event]) -> None:
    assert lru_distances(references_of(events)).tolist() == stack_distances(events)


@given(st.lists(st.integers(0, 60), max_size=400))
def test_distances_of_single_blocks_are_positions_in_the_stack(keys: list[int]) -> None:
    """Every length of the merge sort's last group."""
    assert lru_distances(References.of(keys)).tolist() == stack_distances([[(key, True)] for key in keys])


@given(prompts(tokens=3, longest=6, most=25))
def test_of_a_prompt_an_lru_cache_finds_a_prefix(events: list[Event]) -> None:
    """GIVEN prompts from tail to head THEN no block is further away than one that follows it."""
    references = references_of(events)
    distances = lru_distances(references)
    for number in range(len(events)):
        tail_first = [d if d != COLD else np.inf for d in distances[references.event == number]]
        assert all(later >= earlier for later, earlier in pairwise(tail_first))


@given(events_of(keys=8, most=30), st.integers(0, 10))
def test_curve_is_that_of_lru_caches(events: list[Event], size: int) -> None:
    references = references_of(events)
    curve = HitCurve.of(lru_distances(references), references.counted, references.lookups)
    lookups = sum(counted for event in events for _, counted in event)

    ratio = curve.hit_ratio(size)

    assert np.isnan(ratio) if not lookups else ratio == pytest.approx(lru_hits(events, size) / lookups)


@given(events_of(keys=8, most=30), st.floats(0, 1))
def test_smallest_size_is_the_smallest(events: list[Event], hit_rate: float) -> None:
    whole = sample(references_of(events))
    if not whole.lookups:
        return
    for ratio, size in (
        (whole.lru, whole.lru_size_for(hit_rate)),
        (lambda size: float(whole.belady(size)[0]), whole.belady_size_for(hit_rate)),
    ):
        if size is None:
            assert ratio(100) < hit_rate
        else:
            assert ratio(size) >= hit_rate - 1e-9
            assert size == 0 or ratio(size - 1) < hit_rate


@given(events_of(keys=5, most=7, longest=3), st.integers(0, 5))
def test_bound_is_the_best_of_all_choices(events: list[Event], size: int) -> None:
    assert Retentions.of(references_of(events)).hits(size) == most_hits(events, size)


@given(prompts(), st.integers(0, 5))
def test_bound_of_prefixes_is_that_of_independent_blocks(events: list[Event], size: int) -> None:
    assert Retentions.of(references_of(events)).hits(size) == most_hits(events, size, prefixes=True)


@given(prompts(tokens=3, longest=5, most=30), st.integers(0, 12))
def test_lru_never_beats_the_bound(events: list[Event], size: int) -> None:
    assert lru_hits(events, size) <= Retentions.of(references_of(events)).hits(size)


def zipf(references: int, blocks: int, exponent: float) -> References:
    random = np.random.default_rng(7)
    weights = np.arange(1, blocks + 1) ** -exponent
    return References.of(random.choice(blocks, references, p=weights / weights.sum()).astype(np.uint64))


@pytest.mark.parametrize(("exponent", "rate", "within"), [(0.8, 0.1, 0.04), (1.0, 0.1, 0.02), (1.0, 0.02, 0.06)])
def test_sample_is_near_the_exact_curve_and_knows_its_error(exponent: float, rate: float, within: float) -> None:
    references = zipf(200_000, 50_000, exponent)
    sizes = [5000, 10_000, 20_000, 40_000]

    exact, sampled = miss_ratios(sample(references), sizes), miss_ratios(sample(references, rate), sizes)

    for policy in ("lru", "belady"):
        off = (exact[f"{policy}_miss_ratio"] - sampled[f"{policy}_miss_ratio"]).abs()
        assert off.max() < within
        assert (off < 4 * sampled[f"{policy}_error"] + 0.002).all()
        assert exact[f"{policy}_error"].isna().all()


def test_sample_of_all_blocks_is_exact() -> None:
    references = zipf(20_000, 3000, 0.8)
    whole, nearly = sample(references), sample(references, 1 - 1e-12)

    assert nearly.lru([1, 100, 2000]) == pytest.approx(whole.lru([1, 100, 2000]))
    assert nearly.belady([0, 100, 2000]) == pytest.approx(whole.belady([0, 100, 2000]))


def test_lookups_before_the_first_store_count_and_never_hit() -> None:
    references = References.of([1, 2, 1], uncached_lookups=1)
    whole = sample(references)

    assert whole.lru([0, 1, 2]).tolist() == [0, 0, 0.25]
    assert whole.belady([0, 1]).tolist() == [0, 0.25]
    assert whole.lru_size_for(0.3) is None
    assert whole.belady_size_for(0.25) == 1


def test_a_block_counts_once_an_event() -> None:
    references = References.of([5, 5, 6, 5], event=[0, 0, 0, 1])

    assert references.key.tolist() == [5, 6, 5]
    assert lru_distances(references).tolist() == [COLD, COLD, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": [1, 2], "event": [1, 0]}, "ascending"),
        ({"key": [1, 2], "event": [0]}, "one length"),
        ({"key": [1, 2], "counted": [True]}, "one length"),
    ],
)
def test_wrong_references_are_refused(arguments: dict[str, list[int]], message: str) -> None:
    with pytest.raises(KvtraceError, match=message):
        References.of(**arguments)


@pytest.mark.parametrize("rate", [0, -1, 1.5])
def test_wrong_rates_are_refused(rate: float) -> None:
    with pytest.raises(KvtraceError, match="share above 0"):
        sample(References.of([1]), rate)
