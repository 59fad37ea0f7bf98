"""Tiers and prefetching on vLLM's own scheduler, without an engine: small generated jobs in virtual time."""

from __future__ import annotations

import multiprocessing
import random
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.lab.replay.recording import HIDDEN_COPY_NS, EngineFacts, Recording
from kvtrace.lab.replay.settings import changed_settings, recorded_settings
from kvtrace.lab.replay.timing import TimeModel
from kvtrace.lab.workloads.model import Job, Turn

PAGE = Path(__file__).parents[3] / "docs" / "add-a-policy.md"
ENGINE = EngineFacts(
    engine_id=1,
    model=None,
    vllm_version=None,
    block_size=16,
    hash_block_size=16,
    blocks=150,
    block_bytes=1 << 20,
    kv_groups=1,
    max_num_batched_tokens=512,
    max_num_seqs=8,
    max_model_len=2048,
    policy="fcfs",
    scheduler=None,
    prefix_caching=True,
    chunked_prefill=True,
    async_scheduling=False,
    connector=None,
    told={
        "scheduler": {"disable_hybrid_kv_cache_manager": False}
    },  # as engines on GPUs tell; a tier's connector cannot
)
MODEL = TimeModel([2e6, 1e4, 0, 0, 0], [2e6, 1e4, 5e4, 0, 0], 0, [])
"""A step takes 2 ms, and 50 us more for each prefill token."""
TOOLS = ("grep", "find", "grep", "")
"""A job's tools, by turn."""
FAST = (
    "tier_load_gb_per_s=1000000", "tier_store_gb_per_s=1000000", "tier_latency_us=0", "copy_begin_us=0",
    "connector_lookup_us=0",
)  # fmt: skip


def jobs(count: int, tools: tuple[str, ...]) -> list[Job]:
    return [Job(f"job-{n}", [Turn([0] * (200 + 7 * n), 10, tool, 0.5) for tool in tools]) for n in range(count)]


def generated(
    seed: int = 1, spread: float = 0.0, rate: float = 20.0, count: int = 6, tools: tuple[str, ...] = TOOLS
) -> Recording:
    from kvtrace.lab.replay.simulate import recording_of

    return recording_of(ENGINE, jobs(count, tools), rate, spread, seed)


def replayed(changes: list[str], **options: Any) -> dict[str, Any]:
    """Figures of a replay and the state it left; runs in the process of `engine`."""
    from kvtrace.lab.replay.simulate import simulate

    settings = changed_settings(ENGINE, recorded_settings(ENGINE), changes)
    figures, scheduler = simulate(generated(**options), settings, MODEL)
    pool, store = scheduler.kv_cache_manager.block_pool, getattr(scheduler.connector, "store", None)
    return {
        **asdict(figures),
        "left": len(scheduler.requests),
        "held": [block.block_id for block in pool.blocks if block.ref_cnt and not block.is_null],
        "free": pool.get_num_free_blocks(),
        "blocks": settings.num_gpu_blocks,
        "chunks": len(store) if store is not None else 0,
        "tier_evictions": store.evictions if store is not None else 0,
    }


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessPoolExecutor]:
    """A process whose clocks may be replaced."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def run(engine: ProcessPoolExecutor, *changes: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine.submit(replayed, list(changes), **options).result(timeout=300)
    return found


def reusable_tokens(recording: Recording) -> int:
    """Prompt tokens in full blocks that an earlier request had computed: what an endless cache could supply."""
    size, total, seen = ENGINE.block_size, 0, set()
    for request in recording.requests:
        for position in range((request.prompt_tokens - 1) // size):
            if request.chain[position] not in seen:
                break
            total += size
        seen |= {request.chain[p] for p in range((request.prompt_tokens + request.output_tokens - 1) // size)}
    return total


@pytest.mark.parametrize("write", ["through", "lazy", "turn"])
def test_a_tier_without_limits_supplies_all_that_can_be_reused(engine: ProcessPoolExecutor, write: str) -> None:
    prefetch = ["prefetch=none"] if write == "turn" else []
    found = run(engine, "tier=host", "tier_bytes=1TiB", f"tier_write={write}", *FAST, *prefetch)
    assert found["hit_tokens"] == reusable_tokens(generated())
    assert run(engine)["hit_tokens"] < found["hit_tokens"]


def test_a_tier_hits_as_the_offloading_connector_of_its_size(engine: ProcessPoolExecutor) -> None:
    rates = ["load_gb_per_s=50", "store_gb_per_s=50"]
    vllm = run(engine, "cpu_bytes_to_use=1GiB", *rates)
    model = run(engine, "tier=host", "tier_bytes=1GiB", *(f"tier_{rate}" for rate in rates))
    assert model["hit_tokens"] == pytest.approx(vllm["hit_tokens"], rel=0.05)


def test_simple_cpu_offload_serves_what_the_gpu_evicted(engine: ProcessPoolExecutor) -> None:
    settings = ["cpu_bytes_to_use=1GiB", "connector=simple-cpu-offload"]
    plain, eager = run(engine), run(engine, *settings)
    assert plain["hit_tokens"] < eager["hit_tokens"] <= reusable_tokens(generated())
    assert plain["hit_tokens"] < run(engine, *settings, "lazy_offload=true")["hit_tokens"]
    assert eager["left"] == 0
    assert eager["held"] == []


def test_a_threads_copies_hold_up_launches() -> None:
    """A load from the launch on, a store from the results on, but for what is hidden; small ones do not."""
    from kvtrace.lab.replay.tiers.copies import SimpleCpuCopies

    copies = SimpleCpuCopies(1 << 20, 50.0, 25.0, 1000, SimpleNamespace(now_ns=0))

    def held(loads: int, stores: int) -> tuple[int, int, int]:
        told = SimpleNamespace(
            need_flush=False, load_event=int(loads > 0) - 1, load_gpu_blocks=[1] * loads, load_event_to_reqs={0: []},
            store_event=int(stores > 0) - 1, store_gpu_blocks=[1] * stores,
        )  # fmt: skip
        host = copies.begin(SimpleNamespace(kv_connector_metadata=told))
        return host.before_ns, host.launched_ns, host.computed_ns

    took_ns = (1000 << 20) // 50
    assert held(1000, 0) == (1_000_000, took_ns - HIDDEN_COPY_NS, 0)
    assert held(0, 1000) == (1_000_000, 0, 2 * took_ns - HIDDEN_COPY_NS)
    assert held(100, 100) == (200_000, 0, 0)


def test_others_wait_for_a_threads_copies(engine: ProcessPoolExecutor) -> None:
    """With copies as slow as these, a step with a load ends when it has nearly been copied."""
    free = ["store_gb_per_s=1000", "copy_begin_us=0", "connector_lookup_us=0"]
    slow = ["cpu_bytes_to_use=1GiB", "load_gb_per_s=0.5", *free]
    beside, held = (run(engine, *slow, f"connector={name}") for name in ("offloading", "simple-cpu-offload"))
    assert held["hit_tokens"] == pytest.approx(beside["hit_tokens"], rel=0.05)
    assert sum(held["first_s"]) > 1.1 * sum(beside["first_s"])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("write", ["through", "lazy", "turn"])
@pytest.mark.parametrize("policy", ["oracle", "fixed", "average", "by-tool"])
def test_blocks_and_bytes_stay_within_their_limits(
    engine: ProcessPoolExecutor, policy: str, write: str, seed: int
) -> None:
    evict = ("lru", "fifo")[seed % 2]
    tier = ["tier=disk", "tier_bytes=100MiB", f"tier_write={write}", f"tier_evict={evict}"]
    found = run(engine, *tier, f"prefetch={policy}", "prefetch_spread=0.5", seed=seed, spread=0.5)
    assert found["left"] == 0
    assert found["held"] == []
    assert found["free"] == found["blocks"] - 1
    assert found["chunks"] <= 100
    assert found["tier_evictions"] > 0


def test_a_prefetch_that_comes_too_late_changes_nothing(engine: ProcessPoolExecutor) -> None:
    tier = ["tier=host", "tier_bytes=1GiB"]
    none, oracle = (run(engine, *tier, f"prefetch={name}") for name in ("none", "oracle"))
    assert oracle["prefetch"]["blocks"] > 0
    assert oracle["first_s"] != none["first_s"]
    late = run(engine, *tier, "prefetch=fixed", "prefetch_seconds=60")
    assert late["first_s"] == none["first_s"]
    assert late["prefetch"]["begun"] == 0


def test_turns_of_a_recording_without_tools_may_all_be_followed_by_another(engine: ProcessPoolExecutor) -> None:
    """A chat's: an oracle brings back those that are, as with tools; others expect each job once more at its end."""
    tier, tools, chat = ["tier=host", "tier_bytes=1GiB"], TOOLS, ("",) * len(TOOLS)
    for policy, more in (("oracle", 0), ("average", 6)):
        named, unnamed = (run(engine, *tier, f"prefetch={policy}", tools=each)["prefetch"] for each in (tools, chat))
        assert named["planned"] == 6 * (len(TOOLS) - 1)
        assert unnamed["planned"] == named["planned"] + more
        assert unnamed["blocks"] > 0


def test_a_question_costs_by_the_blocks_of_its_request(engine: ProcessPoolExecutor) -> None:
    """One job alone, so that nobody else's questions delay it; its turns grow by their prompts and answers."""
    free, dear = (
        run(engine, "cpu_bytes_to_use=1GiB", f"connector_lookup_us={cost}", rate=1.0, count=1) for cost in (0, 1000)
    )
    later = [after - before for before, after in zip(free["first_s"], dear["first_s"], strict=True)]
    prompts = [request.prompt_tokens for request in generated(rate=1.0, count=1).requests]
    assert later == pytest.approx([prompt // 16 * 1e-3 for prompt in prompts[1:]], rel=0.01)


def test_only_a_request_s_first_question_to_lmcache_takes_time(engine: ProcessPoolExecutor) -> None:
    """LMCache keeps its answers. With this many jobs requests wait for blocks, and are asked about in each step."""
    known = ["tier_blocking=false", "tier_generated=true", "tier_chunk_tokens=0", *FAST[:-1]]
    free, dear = (
        [run(engine, f"tier={tier}", *known, f"connector_lookup_us={cost}", count=12) for cost in (0, 300)]
        for tier in ("lmcache", "host")
    )
    once, always = (sum(costs[1]["first_s"]) - sum(costs[0]["first_s"]) for costs in (free, dear))
    assert 0 < once < 0.5 * always


def test_lmcache_is_asked_from_the_first_token_on_and_keeps_its_answer(engine: ProcessPoolExecutor) -> None:
    """Blocks 1 to 3 of a prompt, without the first; then block 0 as well, and others that press it."""
    without_the_first, first, again, released, order = engine.submit(asked).result(timeout=300)
    assert without_the_first == (0, False)  # the GPU has block 0, and the tier the next ones
    assert first == again == (32, False)  # blocks 1 and 2 of 0 to 2, also after others needed room
    assert released == [False, True]  # what it found stays until the request is scheduled
    assert order == ["new", "running"]


def asked() -> tuple[Any, ...]:
    from kvtrace.lab.replay.tiers.lmcache import LMCacheTier
    from kvtrace.lab.replay.tiers.store import Store

    def tier_with(*chunks: bytes) -> Any:
        tier: Any = object.__new__(LMCacheTier)
        tier.block_size, tier._chunk, tier._blocking, tier.prefetcher = 16, 1, True, None
        tier._answers, tier._matched, tier._matched_chunks, tier._looked_at, tier._loads = {}, {}, [], {}, {}
        tier.store = Store(3)
        for chunk in chunks:
            tier.store.reserve(chunk)
            tier.store.commit(chunk)
        return tier

    def fills() -> bool:
        found = [tier.store.reserve(bytes([number])) for number in range(3)]
        return all(found)

    request = SimpleNamespace(
        request_id="a", skip_reading_prefix_cache=False, num_tokens=80, block_hashes=[b"a", b"b", b"c", b"d"]
    )
    without_the_first = tier_with(b"b", b"c", b"d").get_num_new_matched_tokens(request, 16)
    tier = tier_with(b"a", b"b", b"c")
    first = tier.get_num_new_matched_tokens(request, 16)
    held = fills()
    again = tier.get_num_new_matched_tokens(request, 16)
    tier.update_state_after_alloc(request, None, 0)
    tier.store.loaded(tier._matched_chunks)
    scheduled = SimpleNamespace(
        num_scheduled_tokens={"running": 1, "new": 64}, scheduled_new_reqs=[SimpleNamespace(req_id="new")]
    )
    return without_the_first, first, again, [held, fills()], tier._storing_order(scheduled)


def test_chunks_of_256_tokens_hit_less_than_blocks(engine: ProcessPoolExecutor) -> None:
    blocks = run(engine, "tier=host", "tier_bytes=1GiB", *FAST)
    chunks = run(engine, "tier=lmcache", "tier_bytes=1GiB", *FAST)
    assert run(engine)["hit_tokens"] < chunks["hit_tokens"] < blocks["hit_tokens"]


@pytest.mark.parametrize("generated_too", [False, True])
def test_a_step_ends_with_the_stores_of_its_own_prompt(engine: ProcessPoolExecutor, generated_too: bool) -> None:
    """As LMCache's: one job alone, each of whose turns stores the blocks that its prompt has more than the one before.

    A block that an answer completes is stored with it, where the tier is told to; else with the next prompt.
    """
    tier = ["tier=host", "tier_blocking=true", f"tier_generated={generated_too}".lower(), "tier_latency_us=0"]
    fast, slow = (
        run(engine, *tier, "connector_lookup_us=0", f"tier_store_gb_per_s={rate}", rate=1.0, count=1)
        for rate in (1_000_000, 1)
    )
    later = [after - before for before, after in zip(fast["first_s"], slow["first_s"], strict=True)]
    prompts = [request.prompt_tokens for request in generated(rate=1.0, count=1).requests]
    stored = [0, *((prompt + (9 if generated_too else 0)) // 16 for prompt in prompts)]
    added = [prompt // 16 - known for prompt, known in zip(prompts[1:], stored[1:], strict=False)]
    assert later == pytest.approx([blocks * (1 << 20) / 1e9 for blocks in added], rel=0.01)
    assert slow["chunks"] == stored[-1]


def test_the_page_s_policy_runs(engine: ProcessPoolExecutor, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "longest.py").write_text(example)
    found = engine.submit(_with_path, str(tmp_path), ["tier=disk", "prefetch=longest.Longest"]).result(timeout=300)
    assert found["prefetch"]["planned"] > 0
    assert found["held"] == []


def _with_path(folder: str, changes: list[str]) -> dict[str, Any]:
    import sys

    sys.path.insert(0, folder)
    return replayed(changes)


@pytest.mark.parametrize("seed", range(8))
def test_stores_that_end_with_one_step_are_told_in_the_workers_order(seed: int) -> None:
    """Each step stores or not, and its store ends some steps later. vLLM's worker keeps a set of those that run."""
    from kvtrace.lab.replay.tiers.copies import SimpleCpuCopies

    numbers = random.Random(seed)
    steps = [(numbers.random() < 0.7, numbers.randrange(9)) for _ in range(400)]
    number, stores = 0, []
    for stored, _ in steps:
        stores.append(number if stored else -1)
        number += stored
    ends = {
        store: step + later for step, (store, (_, later)) in enumerate(zip(stores, steps, strict=True)) if store >= 0
    }
    pending: set[int] = set()
    expected = []
    for step, store in enumerate(stores):
        if store >= 0:
            pending.add(store)
        over = [each for each in pending if ends[each] <= step]
        for each in over:
            pending.discard(each)
        expected.append(over)

    clock = SimpleNamespace(now_ns=0)
    copies = SimpleCpuCopies(1 << 20, 50.0, 50.0, 0, clock, ends)
    outputs = [
        SimpleNamespace(
            kv_connector_metadata=SimpleNamespace(
                need_flush=False, load_event=-1, store_event=store, store_gpu_blocks=[1, 2]
            )
        )
        for store in stores
    ]
    told: list[list[int]] = []
    copies.begin(outputs[0])
    for step, output in enumerate(outputs):
        if step + 1 < len(outputs):  # launched before the results of the step before it come
            copies.begin(outputs[step + 1])
        report = copies(output, step)
        told.append(list(report.kv_connector_worker_meta.completed_store_events) if report else [])
    assert told == expected
    assert any(each != sorted(each) for each in told)
