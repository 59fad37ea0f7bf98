"""Random lookups in vLLM's own cache manager with random KV cache groups; what is observed holds together, or it fails.

    python group_answers.py SEED RUN_DIR

A manager alone needs no engine, so groups and blocks of any size and EAGLE can be mixed.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MANAGERS, LOOKUPS, HASH_TOKENS = 40, 20, 16
KINDS = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "full",
    "RSWASpec": "full",
    "HiddenStateCacheSpec": "full",
    "SinkFullAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "SlidingWindowMLASpec": "window",
    "ChunkedLocalAttentionSpec": "chunk",
    "MambaSpec": "state",
    "CircularBufferSpec": "other",
    "CrossAttentionSpec": "other",
}
CAPPED = "max_cache_hit_length"
"""A parameter of vLLM 0.33: the lookup may find so many tokens."""


def main(seed: int, run: Path) -> None:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    from kvtrace.capture.recorder import Recorder

    check_kinds()
    init_none_hash(sha256)  # once: it is the root of all hashes
    chance = random.Random(seed)
    recorder = Recorder(run)
    answers = [answer for _ in range(MANAGERS) for answer in drive(chance, recorder)]
    # The lookups do what they are there for.
    assert any(0 < answer.hit == answer.bound for answer in answers)
    assert any(answer.hit < answer.stored < answer.bound for answer in answers)
    assert any(answer.hit < answer.kept for answer in answers)
    assert any(answer.hit < answer.own for answer in answers)


def check_kinds() -> None:
    """A group is of one kind to the probes, which see its class, and in a trace, which has the names of classes."""
    from vllm.v1 import kv_cache_interface

    from kvtrace.events import GroupKind
    from kvtrace.ingest.run_tables import kv_groups

    for name, kind in KINDS.items():
        spec = getattr(kv_cache_interface, name, None)
        if spec is not None:
            names = [base.__name__ for base in spec.__mro__]
            group = {"kind": name, "bases": names[1:-1], "spec": {}}
            [row] = kv_groups({"engine_id": 1, "settings": json.dumps({"kv_cache_groups": [group]})})
            assert (GroupKind.of(names).name, row["kind"]) == (kind, kind), name


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
    engine.has_connector = True
    lookups.follow(engine)
    prefixes = [[chance.randrange(9) for _ in range(300)] for _ in range(3)]
    checked: list[Any] = []
    for _ in range(LOOKUPS):
        manager.new_step_starts()
        own = [chance.randrange(9) for _ in range(chance.randrange(60))]
        request = make_request(chance.choice(prefixes)[: chance.randrange(1, 300)] + own)
        limit = chance.choice([request.num_tokens - 1, chance.randrange(request.num_tokens)])
        capped = CAPPED in inspect.signature(manager.get_computed_blocks).parameters
        cap = {CAPPED: limit} if capped else {}
        bound = limit if cap else request.num_tokens - 1
        if hasattr(manager, "get_computed_blocks_for_connector") and chance.random() < 0.3:
            blocks, hit, _, diverged = manager.get_computed_blocks_for_connector(request, **cap)
            lagging = check_for_connector(lookups.take() or [], hit)
            assert lagging == diverged
            if diverged:  # nothing is loaded, so vLLM looks up once more
                blocks, hit, *_ = manager.get_computed_blocks(request, **cap)
                lookups.take()
        else:
            blocks, hit, *_ = manager.get_computed_blocks(request, **cap)
            answers = lookups.take() or []
            assert bool(answers) == (engine.group_lookups is not None)
            lookups.complete(engine, answers)
            check(manager, answers, bound, hit)
            checked += answers
        # As the scheduler does for states, up to the last whole block first.
        whole = request.num_tokens // 32 * 32
        for end in sorted({max(whole, hit), request.num_tokens} - {hit}):
            done = manager.allocate_slots(request, end - max(request.num_computed_tokens, hit), hit, blocks)
            assert done is not None
            request.num_computed_tokens, hit, blocks = end, 0, None
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


def check_for_connector(answers: list[Any], hit: int) -> bool:
    """Full attention's answer is the hit, or all groups agree on it; whether a group lacks it."""
    last = 0
    for place, answer in enumerate(answers):
        assert answer.hit <= answer.bound
        assert place == 0 or answer.bound == last
        last = answer.hit
    assert not answers or last == hit
    return any(-1 < answer.own < hit for answer in answers[1:])


def make_manager(chance: random.Random) -> Any:
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    shape = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    specs: list[Any] = [FullAttentionSpec(block_size=16, **shape)]
    eagle = chance.random() < 0.5
    if not eagle and chance.random() < 0.3:  # vLLM has chunks neither with EAGLE nor beside blocks of other sizes
        specs.append(ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=64, **shape))
    for _ in range(chance.randrange(3) if len(specs) == 1 else 0):
        size = chance.choice([16, 32])
        window = SlidingWindowSpec(block_size=size, sliding_window=chance.choice([16, 40, 100]), **shape)
        state = MambaSpec(block_size=32, shapes=((16,),), dtypes=(torch.float32,), mamba_cache_mode="align")
        specs.append(chance.choice([window, window, state, FullAttentionSpec(block_size=32, **shape)]))
    groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]
    given = {
        "kv_cache_config": KVCacheConfig(
            num_blocks=chance.choice([120, 400]), kv_cache_tensors=[], kv_cache_groups=groups
        ),
        "max_model_len": 1000,
        "scheduler_block_size": max(spec.block_size for spec in specs),
        "hash_block_size": HASH_TOKENS,
        "enable_caching": True,
        "use_eagle": eagle,
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
