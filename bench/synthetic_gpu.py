"""Of a synthetic trace: the workers' passes, GPU windows, tiles, and a profile."""

from __future__ import annotations

from synthetic_sizes import BLOCKS, KERNELS_OF_STEP, KV_HEADS, LAYERS, PROFILED_STEPS, STEPS, TILE_STEPS

_TILE_STEP = f"step % {STEPS // TILE_STEPS} = 1000"


def statements() -> tuple[str, ...]:
    """SQL that fills the tables, after steps and requests."""
    return (*_passes(), *_tiles(), *_profile())


def _passes() -> tuple[str, ...]:
    return (
        """
        INSERT INTO forward
        SELECT 2, scheduled_ns + 100000, scheduled_ns + 7000000, 1, step, prefill_tokens + decode_tokens, 10, 'full'
        FROM step_schedule
        """,
        f"""
        INSERT INTO kv_layer
        SELECT 2, l, 'model.layers.' || l || '.attn', 1000000 * l, '[2, {BLOCKS + 1}, 16, {KV_HEADS}, 128]', '[]',
            'bfloat16', 'always', NULL
        FROM range({LAYERS}) x(l)
        """,
        f"""
        INSERT INTO kv_window
        WITH layer AS (
            SELECT step, l, scheduled_ns + 200000 + l * 200000 + roll(step, l, 1000) AS ns
            FROM step_schedule, range({LAYERS}) x(l)
        )
        SELECT 2, unnest([ns, ns + 5000]), unnest([ns + 3000, ns + 40000 + roll(step, l, 5000)]), 1, step, l,
            unnest(['write', 'attention'])::e_window_kind, true
        FROM layer
        """,
    )


def _tiles() -> tuple[str, ...]:
    return (
        f"""
        INSERT INTO batch_row
        SELECT 2, 1, step, (row_number() OVER (PARTITION BY step ORDER BY request)) - 1, request
        FROM step_request WHERE {_TILE_STEP}
        """,
        f"""
        INSERT INTO gpu_program
        SELECT 2, 1, s.step, (row_number() OVER (PARTITION BY s.step ORDER BY l, h, b.row)) - 1, l, h, b.row, 0, 0,
            tiles, 16, start, start + tiles * 800
        FROM (
            SELECT *, ceil((computed_tokens + scheduled_tokens) / 16)::INTEGER AS tiles
            FROM step_request WHERE {_TILE_STEP}
        ) s
        JOIN batch_row b USING (step, request)
        JOIN step_schedule USING (step),
        range({LAYERS}) x(l), range({KV_HEADS}) y(h),
        LATERAL (SELECT scheduled_ns + 205000 + l * 200000 + roll(request, h, 900) AS start)
        """,
        """
        INSERT INTO gpu_tile
        SELECT 2, 1, step, program, tile, start_ns + 800 * tile, start_ns + 800 * tile + 500 + roll(program, tile, 200),
            start_ns + 800 * (tile + 1), NULL
        FROM (SELECT *, unnest(range(tiles)) AS tile FROM gpu_program)
        """,
        f"""
        INSERT INTO gpu_block_list
        SELECT 2, 1, step, 0, row, 16 * tile, 1 + roll(step, row * 100 + tile, {BLOCKS}), 16
        FROM (SELECT step, row, unnest(range(tiles)) AS tile FROM gpu_program WHERE layer = 0 AND head = 0)
        """,
        f"""
        INSERT INTO gpu_write
        SELECT 2, 1, step, layer, row, 0, 16 * roll(step, row, {BLOCKS}), start_ns - 5000, start_ns - 4000,
            start_ns - 3968, NULL
        FROM gpu_program WHERE head = 0
        """,
        """
        INSERT INTO tile_step
        SELECT 2, 1, step, min(start_ns), count(*), sum(tiles), 320, 32, 0, 0, 0
        FROM gpu_program GROUP BY step ORDER BY step
        """,
    )


def _profile() -> tuple[str, ...]:
    return (
        "INSERT INTO source VALUES (1, 'nsight', 'synthetic.sqlite', '2025.3.2', '3', getvariable('epoch'))",
        "INSERT INTO alignment VALUES (1, 'clock_marks', true, 0, 0, 0, 100, 100, 900, 1000)",
        """
        INSERT INTO kernel_name
        SELECT i, 1, 'kernel_' || i, 'void kernel_' || i || '<int>(float*)', '_Z' || i,
            (['attention', 'gemm', 'kv_write', 'norm_activation', 'other'])[1 + i % 5]::e_kernel_category, 'name', NULL
        FROM range(40) x(i)
        """,
        f"""
        INSERT INTO gpu_activity
        SELECT (step - 1) * {KERNELS_OF_STEP} + k, 1, CASE WHEN k = 0 THEN 'memcpy' ELSE 'kernel' END::e_activity_kind,
            scheduled_ns + 200000 + k * 16000, scheduled_ns + 200000 + k * 16000 + 1000 + roll(step, k, 14000),
            1000, 0, 1, 7, step * 1000 + k, NULL, NULL, CASE WHEN k > 0 THEN k % 40 END, NULL
        FROM step_schedule, range({KERNELS_OF_STEP}) x(k) WHERE step <= {PROFILED_STEPS}
        """,
        f"""
        INSERT INTO gpu_attribution
        SELECT activity_id, activity_id, 1, 1 + activity_id // {KERNELS_OF_STEP}, 'nvtx_forward' FROM gpu_activity
        """,
        """
        INSERT INTO gpu_transfer
        SELECT activity_id, 65536, 'host_to_device', 'pinned', 'device', NULL, NULL, NULL
        FROM gpu_activity WHERE kind = 'memcpy'
        """,
    )
