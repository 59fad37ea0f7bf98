"""Of a synthetic trace: block tables, misses and prices, pins, transfers and offload tiers."""

from __future__ import annotations

from synthetic_sizes import (
    BLOCKS,
    BLOCKS_OF_TRANSFER,
    LAYERS,
    PINS,
    STEP_NS,
    STEPS,
    TIER_EVENTS,
    TOKEN_BYTES,
    TRANSFERS,
)

_BLOCK_BYTES = 16 * LAYERS * TOKEN_BYTES


def statements() -> tuple[str, ...]:
    """SQL that fills the tables, after steps and requests."""
    return (*_block_tables(), *_misses(), *_pins(), *_transfers(), _tiers())


def _block_tables() -> tuple[str, ...]:
    return (
        f"""
        INSERT INTO block_table
        WITH entry AS (
            SELECT step, request, 'set' AS op, unnest(range(new_blocks)) AS position
            FROM step_request WHERE phase IN ('prefill', 'resumed')
            UNION ALL
            SELECT step, request, 'append', computed_tokens // 16
            FROM step_request WHERE phase = 'decode' AND new_blocks > 0
        )
        SELECT 1, step, request, 0, op::e_table_op, position, 1 + roll(request, position, {BLOCKS})
        FROM entry ORDER BY step
        """,
        """
        INSERT INTO request_hash
        SELECT 1, step, request, position,
            CASE WHEN position < 16 THEN hash(position) ELSE hash(request, position) END, NULL
        FROM (SELECT step, request, unnest(range(10, 50)) AS position FROM step_request WHERE phase = 'prefill')
        """,
    )


def _misses() -> tuple[str, ...]:
    return (
        """
        INSERT INTO prefix_miss BY NAME
        SELECT 1 AS engine_id, time_ns, step, request, resumed, queried_tokens, local_hit_tokens,
            0 AS external_hit_tokens, first_missing_block AS block_position, hash(request) AS block_hash,
            16 * roll(request, 1, 50) AS known_tokens,
            (['never_stored', 'evicted', 'evicted_from_tier', 'different_key', 'last_token', 'reset',
                'shorter_than_block'])[1 + roll(request, 20, 7)] AS verdict,
            queried_tokens - local_hit_tokens AS recomputed_tokens, 16 * roll(request, 21, 10) AS avoidable_tokens,
            4000 * (queried_tokens - local_hit_tokens) AS recompute_ns, 64000 * roll(request, 21, 10) AS avoidable_ns,
            time_ns - 9000000 AS stored_ns, time_ns - 8000000 AS released_ns, time_ns - 5000000 AS lost_ns,
            1 + roll(request, 22, 1000) AS other_request, 'why' AS why
        FROM (
            SELECT time_ns, step, request, false AS resumed, queried_tokens, local_hit_tokens, first_missing_block
            FROM prefix_lookup WHERE admitted
            UNION ALL
            SELECT time_ns, step, request, true, 806, 496, 31 FROM request_event WHERE op = 'resume'
        ) ORDER BY time_ns
        """,
        "INSERT INTO kv_group VALUES (1, 0, 'full', 16, 32, NULL)",
        """
        INSERT INTO prefix_loss BY NAME
        SELECT engine_id, time_ns, step, request, resumed, unnest([0, 1])::INTEGER AS place,
            unnest(['partial_block', 'absent']) AS rule, unnest([NULL, 0])::UTINYINT AS kv_group,
            unnest([queried_tokens // 16 * 16, local_hit_tokens]) AS start_tokens,
            unnest([queried_tokens % 16, queried_tokens // 16 * 16 - local_hit_tokens]) AS lost_tokens,
            unnest([0, avoidable_tokens]) AS known_tokens,
            lost_tokens AS computed_tokens, 4000 * lost_tokens AS compute_ns
        FROM prefix_miss ORDER BY time_ns, place
        """,
        """
        INSERT INTO draft BY NAME
        SELECT r.engine_id, u.end_ns AS time_ns, r.step, r.request, 3 AS drafted_tokens,
            roll(r.step + r.request, 23, 4) AS accepted_tokens, 0 AS invalid_tokens
        FROM step_request r JOIN step_update u USING (engine_id, step)
        WHERE r.phase = 'decode' AND r.step % 2 = 0
        """,
        """
        INSERT INTO cost_model
        SELECT 1, composition, 50000, 10, 5e6, 4000, 0.5, 0.9, 3e5, 1, 2048, composition = 'all'
        FROM unnest(['all', 'decode_only', 'with_prefill']) t(composition)
        """,
        "INSERT INTO transfer_rate SELECT 1, unnest(['load', 'store']), 'device', 25000, 1000000000, 100000000, 1e10",
    )


def _pins() -> tuple[str, ...]:
    moment = f"getvariable('epoch') + roll(p, 30, {STEPS * STEP_NS - 1_000_000_000})"
    return (
        f"""
        INSERT INTO pin_start
        SELECT 1, ns, (ns - getvariable('epoch')) // {STEP_NS} + 1, p, 1 + roll(p, 31, {BLOCKS}),
            (['delayed_free', 'in_flight', 'async_load', 'connector', 'ttl'])[1 + roll(p, 32, 5)]::e_pin_cause,
            1 + roll(p, 33, 50000), NULL
        FROM (SELECT p, {moment} AS ns FROM range(1, {PINS + 1}) t(p)) ORDER BY ns
        """,
        f"""
        INSERT INTO pin_end
        SELECT 1, ns, (ns - getvariable('epoch')) // {STEP_NS} + 1, pin, block_id,
            CASE cause WHEN 'ttl' THEN (['used', 'expired', 'forced'])[1 + pin % 3] ELSE 'saved' END::e_pin_end
        FROM (SELECT *, time_ns + roll(pin, 34, 1000000000) AS ns FROM pin_start) ORDER BY ns
        """,
    )


def _transfers() -> tuple[str, ...]:
    moment = f"getvariable('epoch') + t::BIGINT * {STEPS * STEP_NS // (TRANSFERS + 2)}"
    return (
        f"""
        INSERT INTO transfer_submit
        SELECT 2, {moment}, 1, t * {STEPS // TRANSFERS}, t, 'OffloadingConnector',
            CASE t % 2 WHEN 0 THEN 'store' ELSE 'load' END::e_direction,
            CASE t % 2 WHEN 0 THEN 'gpu' ELSE 'cpu' END::e_tier, CASE t % 2 WHEN 0 THEN 'cpu' ELSE 'gpu' END::e_tier,
            {BLOCKS_OF_TRANSFER}, {BLOCKS_OF_TRANSFER * _BLOCK_BYTES}
        FROM range(1, {TRANSFERS + 1}) x(t)
        """,
        """
        INSERT INTO transfer_end
        SELECT 2, submitted_ns + 4000000, transfer, submitted_ns + 100000, bytes, 3000000 + roll(transfer, 40, 900000),
            NULL, true
        FROM transfer_submit
        """,
        f"""
        INSERT INTO transfer_block
        SELECT 1, submitted_ns, step, transfer, direction, transfer, 1 + roll(transfer, b, {BLOCKS}), b,
            hash(transfer, b), 0
        FROM transfer_submit, range({BLOCKS_OF_TRANSFER}) x(b)
        """,
        """
        INSERT INTO connector
        SELECT unnest([1, 2]), 0, 'OffloadingConnector', unnest(['scheduler', 'worker']), 'in detail', 'cpu', 100000, 1
        """,
        """
        INSERT INTO handover_read BY NAME
        SELECT 2 AS process_id, 1 AS engine_id, 2 * request + 1 AS step, request, request AS transfer,
            'prefill' AS remote_engine, 'prefill-' || request AS remote_request, queued_ns + 100000 AS begin_ns,
            queued_ns + 110000 AS prepare_ns, queued_ns + 150000 AS prepared_ns, queued_ns + 250000 AS posted_ns,
            queued_ns + 160000 AS wire_start_ns, 80000 AS post_ns, 300000 AS wire_ns, queued_ns + 470000 AS seen_ns,
            400 AS descriptors, 40 AS posted_descriptors, 1000000 AS bytes, true AS success
        FROM request WHERE request <= 100
        """,
        """
        INSERT INTO connector_lookup
        SELECT 1, scheduled_ns, 2 * request + 1, request, 0, 'OffloadingConnector', local_cached_tokens, 16, false,
            scheduled_ns - 100000
        FROM request
        """,
        """
        INSERT INTO connector_call BY NAME
        SELECT 2 AS process_id, scheduled_ns + 1000000 * n AS start_ns, scheduled_ns + 1000000 * n + 20000 AS end_ns,
            1 AS engine_id, step, 0 AS part, 'OffloadingConnector' AS connector,
            (['load', 'save', 'poll'])[1 + n] AS call
        FROM step_schedule, range(3) x(n) ORDER BY start_ns
        """,
    )


def _tiers() -> str:
    return f"""
        INSERT INTO tier_block
        SELECT 1, getvariable('epoch') + i * {STEPS * STEP_NS // TIER_EVENTS}, i // {TIER_EVENTS // STEPS} + 1,
            'OffloadingConnector', 'cpu'::e_tier, (['write', 'store', 'hit', 'evict'])[1 + i % 4]::e_tier_op,
            (i // 4) % 100000, 1 + i // 20, hash((i // 4) % 150000), 0
        FROM range({TIER_EVENTS}) x(i)
        """
