"""Random lookups in vLLM's own cache manager with random KV cache groups; what is observed holds together, or it fails.

    python group_answers.py SEED RUN_DIR

A manager alone needs no engine, so groups and blocks of any size and EAGLE can be mixed.
"""

from __future__ import annotations

import inspect
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MANAGERS, LOOKUPS, HASH_TOKENS = 30, 20, 16


def main(seed: int, run: Path) -> None:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    from kvtrace.capture.recorder import Recorder

    init_none_hash(sha256)  # once: it is the root of all hashes
    chance = random.Random(seed)
    recorder = Recorder(run)
    answers = [answer for _ in range(MANAGERS) for answer in drive(chance, recorder)]
    # The lookups do what they are there for.
    assert any(0 < answer.hit == answer.bound for answer in answers)
    assert any(answer.hit < answer.stored < answer.bound for answer in answers)
    assert any(answer.hit < answer.kept for answer in answers)
    assert any(answer.hit < answer.own for answer in answers)


def drive(chance: random.Random, recorder: Any) -> list[Any]:
    """Look up, use and release prompts with common prefixes; the answers, all checked."""
    from kvtrace.capture._native import EngineState
    from kvtrace.probes.group_lookups import GroupLookups
    from kvtrace.probes.hooks import Patches

    class Engine(EngineState):
        group_lookups: Any = None

    manager = make_manager(chance)
    patches = Patches(lambda *_: None)
    lookups = GroupLookups(recorder, patches)
    engine: Any = Engine()
    engine.scheduler, engine.hash_block_size = SimpleNamespace(kv_cache_manager=manager), HASH_TOKENS
    lookups.follow(engine)
    prefixes = [[chance.randrange(9) for _ in range(300)] for _ in range(3)]
    checked: list[Any] = []
    for _ in range(LOOKUPS):
        own = [chance.randrange(9) for _ in range(chance.randrange(60))]
        request = make_request(chance.choice(prefixes)[: chance.randrange(1, 300)] + own)
        blocks, hit, *_ = manager.get_computed_blocks(request)
        answers = lookups.take() or []
        assert bool(answers) == (engine.group_lookups is not None)
        lookups.complete(engine, answers)
        check(manager, answers, request.num_tokens - 1, hit)
        checked += answers
        assert manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is not None
        request.num_computed_tokens = request.num_tokens
        manager.free(request)
    patches.uninstall()
    return checked


def check(manager: Any, answers: list[Any], bound: int, hit: int) -> None:
    """Each answer goes on where the one before ended, and its parts are what vLLM answers to the same question."""
    for answer in answers:
        assert answer.bound == bound
        assert answer.hit <= bound
        if answer.hit < bound:
            block = manager.coordinator.single_type_managers[answer.asked["kv_cache_group_ids"][0]].block_size
            unit = min(block, answer.asked["alignment_tokens"])
            assert answer.stored == answer.again(drop_eagle_block=False, alignment_tokens=unit) >= answer.kept
            assert answer.kept == answer.again(alignment_tokens=unit) >= answer.hit
        assert answer.own in (-1, *range(answer.hit, answers[0].bound + 1))
        bound = answer.hit
    assert not answers or bound == hit


def make_manager(chance: random.Random) -> Any:
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    shape = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    specs: list[Any] = [FullAttentionSpec(block_size=16, **shape)]
    for _ in range(chance.randrange(3)):
        size = chance.choice([16, 32])
        window = SlidingWindowSpec(block_size=size, sliding_window=chance.choice([16, 40, 100]), **shape)
        specs.append(chance.choice([window, window, FullAttentionSpec(block_size=32, **shape)]))
    groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]
    given = {
        "kv_cache_config": KVCacheConfig(
            num_blocks=chance.choice([120, 400]), kv_cache_tensors=[], kv_cache_groups=groups
        ),
        "max_model_len": 1000,
        "scheduler_block_size": max(spec.block_size for spec in specs),
        "hash_block_size": HASH_TOKENS,
        "enable_caching": True,
        "use_eagle": chance.random() < 0.5,
        "log_stats": False,
    }
    known = inspect.signature(KVCacheManager.__init__).parameters
    return KVCacheManager(**{name: value for name, value in given.items() if name in known})


def make_request(tokens: list[int]) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(HASH_TOKENS, sha256)
    return Request(str(id(tokens)), tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
