"""Cost of an admission's hash chain, for a prompt of 4,096 tokens in blocks of 16, none of it cached.

    python bench/chain_cost.py        # needs vLLM

Beside it what vLLM itself spends on hashing the same prompt. A keyed request (salt, adapter, images) is hashed again.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.probes.block_hashes import Chains

BLOCK_TOKENS, PROMPT_TOKENS, REQUESTS = 16, 4096, 200


def main() -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)

    def request(number: int, salt: str | None) -> Any:
        prompt = list(range(number, number + PROMPT_TOKENS))
        return Request(str(number), prompt, SamplingParams(), None, cache_salt=salt, block_hasher=hasher)

    blocks = PROMPT_TOKENS // BLOCK_TOKENS
    engine: Any = SimpleNamespace(step=1, hash_block_size=BLOCK_TOKENS)
    with tempfile.TemporaryDirectory() as run:
        chains = Chains(Recorder(Path(run)))
        requests = {salt: [request(number, salt) for number in range(REQUESTS)] for salt in (None, "salt")}

        def record(salt: str | None, hit_tokens: int) -> Callable[[int], None]:
            return lambda number: chains.record(engine, number + 1, requests[salt][number], hit_tokens)

        cases = {
            "vLLM's own hashing": lambda number: hasher(
                SimpleNamespace(**vars(requests[None][number]) | _fresh(number))
            ),
            "plain, nothing cached": record(None, 0),
            "plain, all cached": record(None, PROMPT_TOKENS),
            "keyed, nothing cached": record("salt", 0),
            "keyed, all cached, seen before": record("salt", PROMPT_TOKENS - BLOCK_TOKENS),
        }
        print(f"{'case':32} {'us a request':>12} {'us a block':>10}")
        for case, run_one in cases.items():
            took = median_us(run_one)
            print(f"{case:32} {took:12.1f} {took / blocks:10.3f}")


def _fresh(number: int) -> dict[str, Any]:
    tokens = list(range(number, number + PROMPT_TOKENS))
    return {"block_hashes": [], "num_tokens": PROMPT_TOKENS, "all_token_ids": tokens}


def median_us(run_one: Callable[[int], None]) -> float:
    times = []
    for number in range(REQUESTS):
        started = time.perf_counter_ns()
        run_one(number)
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1e3


if __name__ == "__main__":
    main()
