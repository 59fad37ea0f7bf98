"""The cost model on steps whose cost is known."""

from __future__ import annotations

import numpy as np
import pytest

from kvtrace.ingest.derive.costs import fit, insert_cost_model

from .traces import Events


def test_a_known_cost_is_found_again() -> None:
    random = np.random.default_rng(1)
    tokens = random.integers(1, 2000, 300).astype(float)
    contexts = tokens * random.integers(0, 8000, 300) + tokens * (tokens + 1) / 2
    found = fit(tokens, contexts, 5e6 + 20_000 * tokens + 1.5 * contexts)
    assert (found.intercept_ns, found.ns_per_token, found.ns_per_token_context) == pytest.approx((5e6, 20_000, 1.5))
    assert found.r2 == pytest.approx(1)
    assert (found.steps, found.left_out_steps) == (300, 0)


def test_noise_is_in_the_residual_and_a_stall_is_left_out() -> None:
    random = np.random.default_rng(2)
    tokens = random.integers(1, 500, 1000).astype(float)
    noise = random.normal(0, 1e5, 1000)
    interval = 1e6 + 10_000 * tokens + noise
    interval[17] += 1e9
    found = fit(tokens, tokens * 100, interval)
    assert found.ns_per_token == pytest.approx(10_000, rel=0.01)
    assert found.rmse_ns == pytest.approx(1e5, rel=0.1)
    assert found.left_out_steps == 1
    assert found.ns_per_token_context == 0, "a context in proportion to the tokens cannot be told from them"


def test_a_context_that_would_make_steps_faster_is_dropped() -> None:
    tokens = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    contexts = np.array([0.0, 9, 1, 8, 2, 7, 3, 6, 4, 5])
    found = fit(tokens, contexts, 1000 + 100 * tokens - 3 * contexts)
    assert found.ns_per_token_context == 0
    assert found.ns_per_token is not None


@pytest.mark.parametrize("tokens", [[1.0, 2, 3], [5.0] * 20])
def test_too_few_or_equal_steps_give_no_price(tokens: list[float]) -> None:
    found = fit(np.array(tokens), np.array(tokens), np.arange(len(tokens)) * 1e6)
    assert found.ns_per_token is None
    assert not found.usable


def step(
    trace: Events,
    number: int,
    prefill: int,
    decode: int,
    computed: int,
    takes_ns: int,
    start_ns: int | None = None,
) -> None:
    """A step of one request that computes `prefill` or `decode` tokens after `computed`, alone unless told."""
    tokens = {f"{phase}_{what}": 0 for phase in ("chunked_prefill", "resumed") for what in ("requests", "tokens")}
    tokens |= {"prefill_requests": 1, "prefill_tokens": prefill, "decode_requests": 1, "decode_tokens": decode}
    start_ns = number * 10**9 if start_ns is None else start_ns
    trace.add("step_schedule", engine_id=1, step=number, start_ns=start_ns, **tokens)
    trace.add("step_update", engine_id=1, step=number, end_ns=start_ns + takes_ns)
    share = {"scheduled_tokens": prefill + decode, "computed_tokens": computed}
    trace.add("step_request", engine_id=1, step=number, request=1, **share)


def test_prices_come_from_steps_with_prefill() -> None:
    trace = Events()
    for number in range(1, 21):
        prefill, computed = 10 * (number % 7 + 1), 100 * (number % 3)
        contexts = prefill * computed + prefill * (prefill + 1) // 2
        step(trace, number, prefill, 0, computed, 1000 + 50 * prefill + 2 * contexts)
    for number in range(21, 41):
        step(trace, number, 0, 1, number, 700)
    insert_cost_model(trace.connection)
    columns = "composition, used, steps + left_out_steps, intercept_ns, ns_per_token, ns_per_token_context"
    rows = trace.rows(f"SELECT {columns} FROM cost_model")
    found = {row[0]: row[1:] for row in rows}
    assert found["with_prefill"] == (True, 20, *(pytest.approx(value, rel=1e-6) for value in (1000, 50, 2)))
    assert found["all"][:2] == (False, 40)
    assert found["decode_only"] == (False, 20, None, None, None)


def test_a_launch_is_part_of_the_step_that_was_launched() -> None:
    """Under async scheduling it delays the results of the step before, more or less of it by chance."""
    random, trace = np.random.default_rng(5), Events()
    usual_ns, ahead_ns, now_ns, number = 7_000_000, 1_000_000, 7_000_000, 0
    for prefill in random.integers(100, 2000, 60).tolist():
        takes_ns = 5_000_000 + 20_000 * prefill
        held_ns = int(random.integers(0, takes_ns))
        for prompt, interval_ns in (
            (0, usual_ns),
            (0, usual_ns),
            (0, usual_ns + held_ns),
            (prefill, takes_ns - held_ns),
        ):
            number += 1
            step(trace, number, prompt, 4, 0, ahead_ns + interval_ns, now_ns - ahead_ns)
            now_ns += interval_ns
    insert_cost_model(trace.connection)
    ((per_token, r2),) = trace.rows("SELECT ns_per_token, r2 FROM cost_model WHERE composition = 'with_prefill'")
    assert per_token == pytest.approx(20_000, rel=0.01)
    assert r2 > 0.99
