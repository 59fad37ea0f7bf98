"""Verdicts on misses, on traces of a few events."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrace.ingest.derive.misses import insert_misses
from kvtrace.ingest.derive.tiers import insert_transfer_rate

from .cache_model import CacheModel, Verdict
from .traces import Events

MS = 1_000_000


@pytest.fixture
def events() -> Events:
    """Request 1 was admitted at 10, stored its blocks 101, 102 and 103, and has ended; the others come later."""
    trace = Events()
    for number, name in enumerate(("ada", "ben", "cleo"), 1):
        trace.request(number, name)
    trace.lookup(10, 1, 50, chain=(101, 102, 103))
    trace.store(20, 1, 101, 102, 103)
    for block_id in (3, 2, 1):
        trace.block(30, "free", block_id)
    trace.turn(30, "finish", 1)
    return trace


def verdicts(trace: Events, columns: str = "verdict, known_tokens, avoidable_tokens, other_request") -> Any:
    """The row of each lookup but the first."""
    insert_misses(trace.connection)
    return trace.rows(f"SELECT {columns} FROM prefix_miss WHERE time_ns > 10 ORDER BY time_ns")


def test_never_stored_tells_how_far_earlier_requests_went(events: Events) -> None:
    events.lookup(50, 2, 60, 32, chain=(203,))
    events.lookup(60, 3, 60, 0, chain=(301, 302, 303))
    assert verdicts(events) == [("never_stored", 32, 0, None), ("never_stored", 0, 0, None)]


def test_what_a_flight_recorder_let_go_is_not_called_never_stored(events: Events) -> None:
    # GIVEN a recording whose beginning was let go: who stored what before is not known, who evicted what after is
    events.connection.execute("INSERT INTO discarded VALUES (1, 'block_event', 3, 30, 49152, 4, 5)")
    events.block(40, "evict", 2, 102, 3)
    events.lookup(50, 2, 50, 16, chain=(102, 103))
    events.lookup(60, 3, 60, 0, chain=(301, 302, 303))
    (first, second) = verdicts(events, "verdict, why")
    assert first[0] == "evicted"
    assert second == (
        "unknown",
        "Nobody stored it in the part of the recording that was kept; before that, nobody knows.",
    )


def test_without_block_events_nothing_is_called_never_stored(events: Events) -> None:
    # GIVEN a recording whose file of block events was damaged and left out
    events.connection.execute("DELETE FROM block_event")
    events.lookup(50, 2, 50, 16, chain=(102, 103))
    assert verdicts(events, "verdict, why") == [("unknown", "What happened to blocks was not recorded.")]


def test_a_block_evicted_before_is_told_from_one_evicted_after(events: Events) -> None:
    events.block(40, "evict", 2, 102, 3)
    events.block(40, "evict", 3, 103, 3)
    events.lookup(50, 2, 50, 16, chain=(102, 103))
    events.block(55, "evict", 1, 101, 2)
    assert verdicts(events) == [("evicted", 48, 32, 3)]
    assert events.rows("SELECT stored_ns, released_ns, lost_ns FROM prefix_miss WHERE request = 2") == [(20, 30, 40)]


def test_another_block_of_the_same_hash_still_counts(events: Events) -> None:
    # GIVEN two requests that computed the same block at once, and one of the two blocks evicted
    events.store(25, 3, 101, first_block=7)
    events.block(40, "evict", 1, 101, 3)
    events.lookup(50, 2, 16, 0, chain=(101,))
    # THEN it was findable: only the rule of the last token kept it from being a hit
    assert verdicts(events) == [("last_token", 16, 0, None)]


def test_a_block_that_was_there_and_not_used_is_not_explained_away(events: Events) -> None:
    events.lookup(50, 2, 50, 16, chain=(102, 103))
    assert verdicts(events) == [("not_used", 48, 32, None)]


def test_a_reset_loses_everything_without_an_eviction(events: Events) -> None:
    events.block(40, "reset", None)
    events.lookup(50, 2, 50, 0, chain=(101, 102, 103))
    events.store(51, 2, 101)
    events.block(60, "evict", 1, 101, 3)
    events.lookup(70, 3, 50, 0, chain=(101, 102, 103))
    assert verdicts(events, "verdict, lost_ns, other_request") == [("reset", 40, None), ("evicted", 60, 3)]


def test_a_prefix_that_is_just_being_computed(events: Events) -> None:
    events.lookup(50, 2, 40, 0, chain=(401, 402))
    events.store(51, 2, 401)
    events.lookup(52, 3, 40, 16, chain=(402,))
    events.store(60, 2, 402, first_block=9)
    assert verdicts(events)[1] == ("not_finished_storing", 32, 16, 2)
    assert events.rows("SELECT stored_ns FROM prefix_miss WHERE request = 3") == [(60,)]


@pytest.mark.parametrize("end", ["finish", "preempt"])
def test_who_left_the_batch_computes_nothing_any_more(events: Events, end: str) -> None:
    events.lookup(50, 2, 40, 0, chain=(401, 402))
    events.turn(51, end, 2)
    events.lookup(52, 3, 40, 0, chain=(401, 402))
    assert verdicts(events)[1] == ("never_stored", 32, 32, None)


@pytest.mark.parametrize(
    ("key", "difference"),
    [
        ({"salt_key": 5}, "cache_salt"),
        ({"lora_key": 5}, "lora"),
        ({"multimodal_key": 5}, "multimodal"),
        ({"salt_key": 5, "lora_key": 6}, "cache_salt, lora"),
    ],
)
def test_the_same_tokens_under_another_key(events: Events, key: dict[str, int], difference: str) -> None:
    events.add("request_key", engine_id=1, step=50, request=2, prompt_embeds=False, **key)
    events.lookup(50, 2, 50, 0, chain=(901, 902, 903), plain=(101, 102, 777))
    assert verdicts(events) == [("different_key", 32, 32, 1)]
    assert events.rows("SELECT key_difference FROM prefix_miss WHERE request = 2") == [(difference,)]


def test_a_plain_request_after_one_with_a_key(events: Events) -> None:
    events.add("request_key", engine_id=1, step=50, request=2, salt_key=5, prompt_embeds=False)
    events.lookup(50, 2, 40, 0, chain=(901, 902), plain=(801, 802))
    events.lookup(60, 3, 40, 0, chain=(801, 802))
    assert verdicts(events)[1] == ("different_key", 32, 32, 2)


def test_what_is_too_short_to_be_cached(events: Events) -> None:
    events.lookup(50, 2, 15)
    events.lookup(60, 3, 50, 48)
    assert verdicts(events, "verdict, recomputed_tokens, block_position") == [
        ("shorter_than_block", 15, 0),
        ("shorter_than_block", 2, 3),
    ]


def test_a_resumed_request_is_not_its_own_predecessor(events: Events) -> None:
    # GIVEN a request that stored one block, was preempted, and lost it
    events.lookup(50, 2, 40, 0, chain=(401, 402))
    events.store(51, 2, 401, first_block=4)
    events.turn(55, "preempt", 2)
    events.block(56, "evict", 4, 401, 3)
    events.lookup(60, 2, 40, 0, chain=(401, 402), resumed=True)
    # THEN the block it lost is avoidable, the one it never stored is not
    assert verdicts(events)[1] == ("evicted", 16, 16, 3)


def test_a_block_is_found_only_if_every_group_has_it(events: Events) -> None:
    events.store(21, 1, 101, 102, 103, first_block=11, kv_group=1)
    events.block(40, "evict", 11, 101, 3, kv_group=1)
    events.lookup(50, 2, 50, 0, chain=(101, 102, 103))
    assert verdicts(events) == [("evicted", 48, 48, 3)]


def test_hashes_finer_than_blocks_are_those_at_their_ends() -> None:
    events = Events()
    events.connection.execute("UPDATE engine SET hash_block_tokens = 8")
    events.lookup(10, 1, 40)
    for position, block_hash in enumerate((1, 2, 3, 4, 5)):
        events.add("request_hash", engine_id=1, step=10, request=1, position=position, block_hash=block_hash)
    events.store(20, 1, 2, 4)
    events.block(30, "evict", 2, 4, 9)
    events.lookup(50, 2, 40, 16)
    for position, block_hash in ((2, 3), (3, 4), (4, 5)):
        events.add("request_hash", engine_id=1, step=50, request=2, position=position, block_hash=block_hash)
    assert verdicts(events) == [("evicted", 40, 16, 9)]


def test_a_beginning_shorter_than_a_block_is_shared() -> None:
    # GIVEN requests of one engine that found nothing, in blocks of 16, and hashes of their first 4 and 8 tokens
    events = Events()
    events.block(1, "allocate", 9)
    heads = {1: (71, 72), 2: (71, 73), 3: (81, 82), 4: (71, 72), 5: (71, 72)}
    for number, (four, eight) in heads.items():
        events.lookup(10 * number, number, 40, 0, chain=(100 * number, 100 * number + 1), resumed=number == 5)
        for tokens, head_hash in ((4, four), (8, eight)):
            events.add(
                "request_head", engine_id=1, step=10 * number, request=number, tokens=tokens, head_hash=head_hash
            )
    # THEN one that begins as an earlier one is told so, with the longest of them and who had it first
    assert verdicts(events, "verdict, known_tokens, avoidable_tokens, other_request") == [
        ("part_of_block", 4, 0, 1),
        ("never_stored", 0, 0, None),
        ("part_of_block", 8, 0, 1),
        ("part_of_block", 8, 0, 1),
    ]
    assert events.rows("SELECT why FROM prefix_miss WHERE request = 4") == [
        ("Request #1 had at least its first 8 tokens, too, but not all of block 0, which has 16.",)
    ]


def test_hashes_finer_than_blocks_tell_of_a_part_of_any_block() -> None:
    events = Events()
    events.block(1, "allocate", 9)
    events.connection.execute("UPDATE engine SET hash_block_tokens = 4")
    for request, hit, first, chain in (
        (1, 0, 0, range(1, 11)),
        (2, 16, 4, (5, 6, 91, 92, 93, 94)),
        (3, 0, 0, (95, 96)),
    ):
        events.lookup(10 * request, request, 40, hit)
        for position, block_hash in enumerate(chain, first):
            events.add(
                "request_hash",
                engine_id=1,
                step=10 * request,
                request=request,
                position=position,
                block_hash=block_hash,
            )
    assert verdicts(events, "verdict, block_position, known_tokens, avoidable_tokens") == [
        ("part_of_block", 1, 24, 8), ("unknown", 0, 0, 0),
    ]  # fmt: skip


def test_caching_off_and_reading_skipped() -> None:
    for prefix_caching, verdict in ((False, "caching_off"), (True, "reading_skipped")):
        events = Events(prefix_caching=prefix_caching)
        events.lookup(20, 1, 50, enabled=False)
        assert verdicts(events) == [(verdict, None, None, None)]


def test_only_admitted_lookups_are_judged_and_a_lost_hash_is_said(events: Events) -> None:
    events.lookup(49, 2, 50, 0, admitted=False)
    events.lookup(50, 2, 50, 0)
    assert verdicts(events, "verdict, why") == [("unknown", "The hash of block 0 was not recorded.")]


def test_prices_come_from_the_fit_in_use(events: Events) -> None:
    fits = [(True, 1000.0, 2.0), (False, 9.0, 9.0)]
    for used, per_token, per_context in fits:
        fit = {"ns_per_token": per_token, "ns_per_token_context": per_context}
        events.add("cost_model", engine_id=1, composition=str(used), used=used, **fit)
    events.block(40, "evict", 3, 103, 3)
    events.lookup(50, 2, 60, 32, chain=(103,))
    # 28 tokens after 32: 28 * 1000 + 2 * (28 * 32 + 28 * 29 / 2), and 16 of them avoidable
    assert verdicts(events, "recompute_ns, avoidable_ns") == [(30_604, 17_296)]


def test_the_sentence_says_when_and_for_whom(events: Events) -> None:
    events.block(30 + 5 * MS, "evict", 2, 102, 3)
    events.lookup(30 + 2_000 * MS, 2, 50, 16, chain=(102, 103))
    assert verdicts(events, "why") == [
        (
            "Block 1 was stored 2.0 s before this lookup and evicted 2.0 s before it for request cleo, 5.0 ms after "
            "its last use.",
        )
    ]


class TestTiers:
    """With the tables of transfers that an offload recorder adds."""

    @pytest.fixture
    def tiered(self, events: Events) -> Events:
        events.replace("tier_block", "engine_id INTEGER, time_ns BIGINT, op VARCHAR, block_hash UBIGINT")
        events.block(40, "evict", 2, 102, 3)
        events.lookup(50, 2, 50, 16, chain=(102, 103))
        return events

    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ([], "evicted"),
            ([(35, "store")], "evicted"),
            ([(35, "store"), (45, "evict")], "evicted_from_tier"),
            ([(35, "store"), (45, "evict"), (47, "store")], "evicted"),
            ([(35, "store"), (55, "evict")], "evicted"),
            ([(35, "store"), (45, "reset")], "evicted_from_tier"),
            ([(35, "store"), (45, "reset"), (47, "store"), (55, "reset")], "evicted"),
        ],
    )
    def test_a_block_lost_there_too(self, tiered: Events, changes: list[tuple[int, str]], verdict: str) -> None:
        for time_ns, op in changes:
            block_hash = None if op == "reset" else 102
            tiered.add("tier_block", engine_id=1, time_ns=time_ns, op=op, block_hash=block_hash)
        assert verdicts(tiered, "verdict") == [(verdict,)]

    @pytest.fixture
    def moving(self, events: Events) -> Events:
        """Loads of two workers: 4 x 50 bytes in 300 ns, and 30 in 100; one unfinished, one failed, one from disk."""
        times = ", ".join(f"{name}_ns BIGINT" for name in ("submitted", "started", "finished", "device", "reported"))
        texts = "direction VARCHAR, from_tier VARCHAR, to_tier VARCHAR, success BOOLEAN"
        events.replace("transfer", f"process_id INTEGER, engine_id INTEGER, bytes BIGINT, {texts}, {times}")
        load = {"engine_id": 1, "direction": "load", "from_tier": "cpu", "to_tier": "gpu", "bytes": 50, "process_id": 2}
        for started, finished in ((100, 200), (150, 300), (160, 180), (1000, 1100), (2000, None)):
            events.add("transfer", **load, started_ns=started, finished_ns=finished)
        events.add("transfer", **load | {"process_id": 3, "bytes": 30}, submitted_ns=150, finished_ns=250)
        events.add("transfer", **load, started_ns=5000, finished_ns=9000, success=False)
        events.add("transfer", **load | {"from_tier": "disk", "to_tier": "cpu"}, started_ns=5000, finished_ns=9000)
        return events

    def test_transfers_at_the_same_time_share_their_workers_wall_time(self, moving: Events) -> None:
        insert_transfer_rate(moving.connection)
        assert moving.rows("SELECT * EXCLUDE bytes_per_s, round(bytes_per_s) FROM transfer_rate") == [
            (1, "load", "host", 5, 230, 400, 575_000_000)
        ]

    def test_the_gpus_own_time_counts_before_the_hosts(self, moving: Events) -> None:
        for name, value in (("reported_ns", 20), ("device_ns", 10)):
            moving.connection.execute(f"UPDATE transfer SET {name} = {value} WHERE started_ns < 200")
            moving.connection.execute("DELETE FROM transfer_rate")
            insert_transfer_rate(moving.connection)
            assert moving.rows("SELECT basis, transfers, bytes, busy_ns FROM transfer_rate") == [
                (name.removesuffix("_ns"), 3, 150, 3 * value)
            ]


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_are_those_of_a_cache_that_judges_itself(seed: int) -> None:
    model = CacheModel(seed)
    model.run(400)
    insert_misses(model.trace.connection)
    columns = "time_ns, verdict, known_tokens, other_request, lost_ns"
    found = {row[0]: Verdict(*row[1:]) for row in model.trace.rows(f"SELECT {columns} FROM prefix_miss")}
    assert found == model.expected
    assert len({verdict.verdict for verdict in found.values()}) >= 5
