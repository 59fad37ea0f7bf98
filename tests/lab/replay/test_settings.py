from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.errors import KvtraceError
from kvtrace.lab.policies import TTL_PIN
from kvtrace.lab.replay.policies import prefetch_policy
from kvtrace.lab.replay.policies.base import Movement, Turn
from kvtrace.lab.replay.recording import EngineFacts, StepTime
from kvtrace.lab.replay.settings import changed_settings, changes_between, check_launches, recorded_settings
from kvtrace.lab.replay.tiers.store import Store
from kvtrace.lab.replay.timing import Work, fit

ENGINE = EngineFacts(
    engine_id=1,
    model=None,
    vllm_version="0.32.0",
    block_size=16,
    hash_block_size=16,
    blocks=127,
    block_bytes=1024,
    kv_groups=1,
    max_num_batched_tokens=256,
    max_num_seqs=8,
    max_model_len=512,
    policy="fcfs",
    scheduler="vllm.v1.core.sched.scheduler.Scheduler",
    prefix_caching=True,
    chunked_prefill=True,
    async_scheduling=False,
    connector=None,
)
BASE = recorded_settings(ENGINE)


def test_factors_count_the_null_block_as_vllm_does() -> None:
    assert BASE.num_gpu_blocks == 128
    assert changed_settings(ENGINE, BASE, ["num_gpu_blocks=2x"]).num_gpu_blocks == 256


def test_larger_blocks_keep_the_memory_of_the_pool() -> None:
    changed = changed_settings(ENGINE, BASE, ["block_size=2x"])
    assert (changed.block_size, changed.num_gpu_blocks) == (32, 64)
    given = changed_settings(ENGINE, BASE, ["block_size=32", "num_gpu_blocks=100"])
    assert given.num_gpu_blocks == 100


def test_cuda_graphs_follow_max_num_seqs_as_vllms_default_does_and_are_set() -> None:
    engine = dataclasses.replace(ENGINE, max_num_seqs=64, graph_tokens=128)
    base = recorded_settings(engine)
    tokens = {
        change: changed_settings(engine, base, [change]).max_cudagraph_capture_size
        for change in ("num_gpu_blocks=2x", "max_num_seqs=16", "max_num_seqs=400", "max_cudagraph_capture_size=2x")
    }
    assert list(tokens.values()) == [128, 32, 512, 256]
    other = dataclasses.replace(engine, graph_tokens=64)  # not the default, so it was set
    assert changed_settings(other, recorded_settings(other), ["max_num_seqs=16"]).max_cudagraph_capture_size == 64
    assert changed_settings(ENGINE, BASE, ["max_num_seqs=16"]).max_cudagraph_capture_size == 0
    with pytest.raises(KvtraceError, match="decode"):
        changed_settings(engine, base, ["max_cudagraph_capture_size=32"])


def test_other_cuda_graphs_are_refused_where_no_launch_tells_what_they_give() -> None:
    model = fit(_steps())
    check_launches(["num_gpu_blocks=2x"], model)
    with pytest.raises(KvtraceError, match="max_cudagraph_capture_size=512: what launching"):
        check_launches(["max_cudagraph_capture_size=512"], model)


def test_ttl_pins_take_their_options() -> None:
    changed = changed_settings(ENGINE, BASE, ["policy=ttl-pin", "ttl_s=0.5"])
    assert changes_between(BASE, changed) == {"scheduler_cls": TTL_PIN, "pins": {"ttl_s": 0.5}}


def test_further_options_of_the_scheduler_keep_their_kinds() -> None:
    options = ["watermark=0.01", "long_prefill_token_threshold=64", "scheduler_reserve_full_isl=false"]
    changed = changed_settings(ENGINE, BASE, options)
    assert changes_between(BASE, changed) == {
        "scheduler": {"watermark": 0.01, "long_prefill_token_threshold": 64, "scheduler_reserve_full_isl": False}
    }


def test_a_tier_takes_what_its_kind_implies() -> None:
    tier = changed_settings(ENGINE, BASE, ["tier=lmcache", "tier_bytes=2GiB", "tier_evict=fifo"]).tier
    assert (tier["chunk_tokens"], tier["bytes"], tier["evict"], tier["write"]) == (256, 2 << 30, "fifo", "through")
    assert changed_settings(ENGINE, BASE, ["tier=none"]) == BASE


def test_lmcache_takes_the_host_its_own_time_and_what_is_given() -> None:
    """Other connectors' say nothing of it; where it was recorded itself, that counts."""
    offloads = dataclasses.replace(
        ENGINE, connector="OffloadingConnector", copies_by="OffloadingConnector", copy_begin_us=50.0
    )
    lmcache = dataclasses.replace(
        ENGINE, connector="LMCacheConnectorV1", copies_by="LMCacheConnectorV1", copy_begin_us=11.0
    )
    found = []
    for engine in (ENGINE, offloads, lmcache):
        base = recorded_settings(engine)
        tier, host = (changed_settings(engine, base, [f"tier={name}"]).copy_begin_us for name in ("lmcache", "host"))
        given = changed_settings(engine, base, ["tier=lmcache", "copy_begin_us=3"])
        found.append((tier, host, given.copy_begin_us))
    assert found == [(14.0, 37.0, 3.0), (14.0, 50.0, 3.0), (11.0, 11.0, 3.0)]


@pytest.mark.parametrize(
    "changes",
    [
        ["prefetch=oracle"],
        ["tier=host", "cpu_bytes_to_use=1GiB"],
        ["tier=lmcache", "tier_write=lazy"],
        ["tier=host", "tier_chunk_tokens=24"],
        ["tier=host", "tier_load_gb_per_s=0"],
        ["tier_evict=lru"],
        ["tier=tape"],
        ["tier=host", "prefetch=no_such_module.Policy"],
    ],
)
def test_a_tier_that_makes_no_sense_is_refused(changes: list[str]) -> None:
    with pytest.raises(KvtraceError, match=r"tier|prefetch"):
        changed_settings(ENGINE, BASE, changes)


def test_estimates_are_by_tool_and_wrong_by_their_spread() -> None:
    turn = Turn("job", "grep", 0.0, 1600, 0.7)
    by_tool, average = prefetch_policy("by-tool", {}), prefetch_policy("average", {"seconds": 3.0})
    assert (by_tool.gap_s(turn), average.gap_s(turn)) == (0.5, 3.0)
    for policy in (by_tool, average):
        policy.saw(turn, 0.6)
        policy.saw(turn._replace(tool="find"), 1.0)
    assert by_tool.gap_s(turn) == pytest.approx(0.6)
    assert average.gap_s(turn) == pytest.approx(0.7)
    assert prefetch_policy("oracle", {}).gap_s(turn) == 0.7
    wrong = prefetch_policy("by-tool", {"spread": 0.5, "seed": 1})
    assert len({wrong.gap_s(turn) for _ in range(10)}) == 10
    with pytest.raises(KvtraceError, match="prefetch=nobody"):
        prefetch_policy("nobody", {})


def test_what_displaces_more_is_worth_less() -> None:
    policy, turn = prefetch_policy("oracle", {}), Turn("job", "grep", 0.0, 1600, 0.7)
    cheap, dear = Movement(1600, 0.2, 0.05, 0.0, 0.1, 0.5), Movement(1600, 0.2, 0.05, 0.0, 0.9, 0.5)
    assert policy.score(turn, cheap) > policy.score(turn, dear) > 0
    assert policy.score(turn, Movement(1600, 0.2, 0.05, 0.0, 1.2, 0.5)) < 0  # it does not fit
    assert policy.score(turn, Movement(1600, 0.2, 0.05, 0.01, 0.1, 0.5)) == 0  # others' copies are under way


def test_a_full_store_loses_the_end_of_a_prefix_and_keeps_its_beginning() -> None:
    """A chunk after a lost one is worth nothing, so LMCache and vLLM's connectors keep the beginning longest."""
    store = Store(4)
    prefix, others = [b"0", b"1", b"2"], [b"a", b"b", b"c"]
    for chunk in prefix:
        store.reserve(chunk)
        store.commit(chunk)
    store.use(prefix)
    for chunk in others:
        store.reserve(chunk)
        store.commit(chunk)
    assert [store.holds(chunk) for chunk in prefix] == [True, False, False]


def test_what_is_stored_without_a_look_takes_the_room_of_others_for_a_while() -> None:
    """As LMCache, which asks for memory for each chunk before it sees that it has one already."""
    store = Store(3)
    for chunk in (b"a", b"b", b"c"):
        assert store.reserve_again([chunk]) == [chunk]
        store.commit(chunk)
    assert store.reserve_again([b"c"]) == [b"c"]
    assert [store.holds(chunk) for chunk in (b"a", b"b", b"c")] == [False, True, True]
    assert store.reserve_again([b"c"]) == [b"c"]  # the room of `a` is free
    assert (len(store), store.evictions) == (2, 1)
    assert store.reserve_again([b"b", b"c", b"d"]) == [b"b", b"c", b"d"]  # `b` and `c` go for them, and come back
    assert ([store.known(chunk) for chunk in (b"b", b"c", b"d")], store.evictions) == ([True] * 3, 3)
    assert not any(store.holds(chunk) for chunk in (b"b", b"c", b"d"))


def test_of_a_prefix_is_stored_what_finds_room() -> None:
    store = Store(2)
    assert store.reserve_again([b"a", b"b", b"c"]) == [b"a", b"b"]
    store.commit(b"a")
    store.load([b"a"])
    assert store.reserve_again([b"c"]) == []
    assert store.refused == 2


@given(st.lists(st.tuples(st.sampled_from("sldcua"), st.integers(0, 9)), max_size=80), st.integers(0, 4))
def test_a_store_never_exceeds_its_capacity_nor_evicts_what_is_copied(steps: list[tuple[str, int]], size: int) -> None:
    store, loading, storing = Store(size), set(), set()
    for kind, number in steps:
        chunk = bytes([number])
        if kind == "s" and not store.known(chunk) and store.reserve(chunk):
            storing.add(chunk)
        elif kind == "a":
            prefix = [bytes([number + more]) for more in range(3)]
            found = store.reserve_again(prefix)
            assert found == prefix[: len(found)]
            storing |= {each for each in found if not store.holds(each)}
        elif kind == "c" and chunk in storing:
            store.commit(chunk)
            storing.remove(chunk)
        elif kind == "l" and store.holds(chunk) and chunk not in loading:
            store.load([chunk])
            loading.add(chunk)
        elif kind == "d" and chunk in loading:
            store.loaded([chunk])
            loading.remove(chunk)
        assert len(store) <= size
        assert all(store.holds(each) for each in loading)
        assert all(store.known(each) for each in storing)


@pytest.mark.parametrize(
    "change",
    [
        *("blocks=3", "num_gpu_blocks", "num_gpu_blocks=-1", "num_gpu_blocks=1", "block_size=24", "policy=lifo"),
        *("ttl_s=x", "watermark=1", "watermark=-0.1", "scheduler_reserve_full_isl=maybe"),
    ],
)
def test_what_makes_no_engine_is_refused(change: str) -> None:
    with pytest.raises(KvtraceError, match=change.partition("=")[0]):
        changed_settings(ENGINE, BASE, [change])


def test_a_cache_without_recorded_hashes_cannot_be_turned_on() -> None:
    engine = dataclasses.replace(ENGINE, prefix_caching=False)
    with pytest.raises(KvtraceError, match="no block hashes"):
        changed_settings(engine, recorded_settings(engine), ["enable_prefix_caching=true"])


def _steps(stall_every: int = 0) -> list[StepTime]:
    """Steps of known cost: 2 ms, 10 us a decode, 3 us a prefill token, 0.5 us a decode context."""
    steps, now = [], 0
    for number in range(300):
        decodes, prefill = 1 + number % 7, 40 * (number % 5 == 0)
        context = decodes * (100 + 13 * (number % 11))
        took = 2_000_000 + 10_000 * decodes + 3_000 * prefill + 500 * context
        if stall_every and number % stall_every == 3:
            took += 80_000_000
        steps.append(StepTime(number, now, now + took, now + took + 10_000, decodes, prefill, context, 0, 0))
        now += took + 50_000
    return steps


def test_the_time_model_finds_what_steps_cost() -> None:
    model = fit(_steps())
    assert model.step_ns(Work(4, 0, 800, 0)) == pytest.approx(2_440_000, rel=0.02)
    assert model.step_ns(Work(4, 40, 800, 0)) == pytest.approx(2_560_000, rel=0.02)
    assert model.overhead_ns == 50_000
    assert all(abs(each.total_error) < 0.02 for each in model.residuals)
    assert model.stalls < 0.01


def test_stalls_are_no_step_times_and_are_told() -> None:
    model = fit(_steps(stall_every=20))
    assert model.step_ns(Work(4, 0, 800, 0)) == pytest.approx(2_440_000, rel=0.05)
    assert 0.4 < model.stalls < 0.8  # 4 ms a step of 2.5 ms in the mean


@pytest.mark.parametrize(("copying_every", "taken_off"), [(0, False), (10, False), (5, True)])
def test_prefills_that_all_copied_are_told(copying_every: int, taken_off: bool) -> None:
    """Prefills are every fifth step here. What copies took is not known well enough to tell what is left."""
    steps = [
        step._replace(copying_ns=1_500_000 * bool(copying_every and number % copying_every == 0))
        for number, step in enumerate(_steps())
    ]
    assert fit(steps).copies_taken_off is taken_off


def test_a_recording_of_a_few_steps_has_no_time_model() -> None:
    with pytest.raises(KvtraceError, match="too few"):
        fit(_steps()[:5])


def test_a_draw_has_the_recorded_noise_from_another_step_on() -> None:
    steps = [
        step._replace(update_ns=step.update_ns + (7919 * number % 31) * 1_500)
        for number, step in enumerate(_steps())
        if step.update_ns is not None
    ]
    model, work = fit(steps), Work(4, 0, 800, 0)
    assert {model.end_ns(0, 0, work) for _ in steps} == {model.step_ns(work)}
    draws = [model.draw(number, 8) for number in range(8)]
    times = [[draw.end_ns(0, 0, work) for _ in steps] for draw in draws]
    assert all(sorted(each) == sorted(times[0]) for each in times)
    assert len({tuple(each) for each in times}) == 8
    assert sum(times[0]) == pytest.approx(len(steps) * model.step_ns(work), rel=0.02)
    assert max(times[0]) > 1.015 * min(times[0])
    assert model.draw(0, 8).end_ns(0, 0, work) == times[0][0]  # the one before has not moved on


def test_a_draw_of_steps_ahead_has_the_recorded_launches_from_another_one_on() -> None:
    steps = [
        step._replace(update_ns=step.update_ns + number * 5_000)
        for number, step in enumerate(_steps_ahead())
        if step.update_ns is not None
    ]
    model = fit(steps)
    prefill = Work(0, 400, 0, 0)
    launches = [model.launch(number, prefill) for number in range(len(model.launches.each_ns))]
    assert len(set(launches)) > 8
    draw = model.draw(3, 8)
    first = 3 * len(launches) // 8
    assert [draw.launch(number, prefill) for number in range(len(launches))] == launches[first:] + launches[:first]
    assert draw.end_ns(0, 0, Work(1, 0, 0, 0)) == model.end_ns(0, 0, Work(1, 0, 0, 0))


def _steps_ahead() -> list[StepTime]:
    """Steps scheduled ahead: 6 ms a decode step, 25 us a prefill token on the device, 30 ms to launch a prefill."""
    steps, results, free = [], [0, 0], 0
    planned = [(1600 if number % 10 == 0 else 400) * (number % 5 == 0) for number in range(400)]
    starts, ends = [], []
    for number, prefill in enumerate(planned):
        start = results[-1] + 100_000  # after the results of the step before the last one
        launch = 30_000_000 if prefill else 0
        free = max(start + launch, max(start, free) + (25_000 * prefill if prefill else 6_000_000))
        if number:  # the engine takes results in after the launch
            results.append(max(ends[-1], start + launch))
        starts.append(start)
        ends.append(free)
    results = [*results[2:], ends[-1]]
    for number, prefill in enumerate(planned):
        update = results[number]
        steps.append(StepTime(number, starts[number], update, update + 10_000, int(not prefill), prefill, 0, 0, 0))
    return steps


def test_steps_scheduled_ahead_tell_what_the_device_takes_and_what_the_host() -> None:
    model = fit(_steps_ahead())
    assert model.launches.mean_ns == pytest.approx(30_000_000, rel=0.02)
    assert model.overhead_ns == pytest.approx(100_000, rel=0.02)
    assert model.step_ns(Work(1, 0, 0, 0)) == pytest.approx(6_000_000, rel=0.02)
    # a short prompt takes its launch, a long one its tokens
    assert model.end_ns(0, 0, Work(0, 400, 0, 0)) == pytest.approx(30_000_000, rel=0.03)
    assert model.end_ns(0, 0, Work(0, 1600, 0, 0)) == pytest.approx(40_000_000, rel=0.1)
