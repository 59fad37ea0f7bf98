"""Hash chains of admitted requests, without an engine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from kvtrace.capture.recorder import Recorder
from kvtrace.ingest.run import ingest
from kvtrace.probes.block_hashes import Chains

BLOCK = 4


def hash_blocks(request: Any) -> list[bytes]:
    """A chained hasher as vLLM has one: tokens, the hash before, the salt in the first block."""
    HASHED.append(request.num_tokens // BLOCK - len(request.block_hashes))
    hashes = list(request.block_hashes)
    for start in range(len(hashes) * BLOCK, request.num_tokens // BLOCK * BLOCK, BLOCK):
        salt = request.cache_salt if start == 0 else None
        content = (hashes[-1] if hashes else b"", tuple(request.all_token_ids[start : start + BLOCK]), salt)
        hashes.append(hashlib.sha256(repr(content).encode()).digest())
    return hashes[len(request.block_hashes) :]


HASHED: list[int] = []


def make(tokens: list[int], salt: str | None = None, **more: Any) -> Any:
    facts = {"lora_request": None, "mm_features": [], "prompt_embeds": None, "cache_salt": salt, "block_hashes": []}
    request = SimpleNamespace(**facts | {"all_token_ids": tokens, "num_tokens": len(tokens)} | more)
    request.block_hashes = hash_blocks(request)
    request._block_hasher = hash_blocks
    return request


@pytest.fixture
def chains(tmp_path: Path) -> Chains:
    HASHED.clear()
    return Chains(Recorder(tmp_path))


def recorded(run: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(ingest(run).target)) as connection:
        return connection.execute(sql).fetchall()


ENGINE: Any = SimpleNamespace(step=3, hash_block_size=BLOCK)
ROWS = "SELECT position, block_hash, token_hash FROM request_hash ORDER BY rowid"


def low(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-8:], "big")


def test_the_chain_starts_at_the_first_missing_block(chains: Chains, tmp_path: Path) -> None:
    request = make(list(range(14)))
    chains.record(ENGINE, 1, request, 4)
    assert recorded(tmp_path, ROWS) == [(n, low(request.block_hashes[n]), None) for n in (1, 2)]


def test_a_salted_chain_has_the_hashes_of_the_plain_one_beside_it(chains: Chains, tmp_path: Path) -> None:
    plain, salted = make(list(range(12))), make(list(range(12)), "salt")
    chains.record(ENGINE, 1, salted, 0)
    pairs = zip(salted.block_hashes, plain.block_hashes, strict=True)
    assert recorded(tmp_path, ROWS) == [(n, low(own), low(bare)) for n, (own, bare) in enumerate(pairs)]


def test_blocks_seen_before_are_not_hashed_again(chains: Chains, tmp_path: Path) -> None:
    chains.record(ENGINE, 1, make(list(range(12)), "salt"), 0)
    longer = make(list(range(20)), "salt")
    HASHED.clear()
    chains.record(ENGINE, 2, longer, 12)
    assert HASHED == [2], "five blocks, three of them known"
    plain = make(list(range(20)))
    assert [row[2] for row in recorded(tmp_path, ROWS)] == [low(block_hash) for block_hash in plain.block_hashes]


def test_embeddings_have_no_tokens_to_hash(chains: Chains, tmp_path: Path) -> None:
    request = make([0] * 8, prompt_embeds=object())
    chains.record(ENGINE, 1, request, 0)
    sql = "SELECT prompt_embeds, (SELECT count(token_hash) FROM request_hash), (SELECT count(*) FROM request_hash)"
    assert recorded(tmp_path, f"{sql} FROM request_key") == [(True, 0, 2)]


def test_keys_say_only_whether_they_are_equal(chains: Chains, tmp_path: Path) -> None:
    adapter = SimpleNamespace(lora_name="polite", lora_path="/adapters/polite")
    for number, (salt, lora) in enumerate([("a", None), ("a", adapter), ("b", adapter)], 1):
        chains.record(ENGINE, number, make([1] * 4, salt, lora_request=lora), 4)
    rows = recorded(tmp_path, "SELECT salt_key, lora_key, lora FROM request_key ORDER BY rowid")
    (salt, no_lora, _), (salt_again, lora, _), (other_salt, lora_again, name) = rows
    assert salt == salt_again != other_salt
    assert (no_lora, lora, name) == (None, lora_again, "polite")


def test_a_failure_costs_the_chains_only_and_is_reported(chains: Chains, tmp_path: Path) -> None:
    broken = make(list(range(8)), "salt", _block_hasher=None)
    broken._block_hasher = None
    chains.record(ENGINE, 1, broken, 0)
    chains.record(ENGINE, 2, make(list(range(8))), 0)
    [(state, detail)] = recorded(tmp_path, "SELECT state, detail FROM hook")
    assert (state, "TypeError" in detail, "missing from the prefix cache" in detail) == ("disabled", True, True)
    assert recorded(tmp_path, "SELECT count(*) FROM request_hash") == [(0,)]


def heads(run: Path) -> dict[int, dict[int, int]]:
    rows = recorded(run, "SELECT step, tokens, head_hash FROM request_head ORDER BY rowid")
    return {step: {tokens: head for at, tokens, head in rows if at == step} for step, _, _ in rows}


def test_beginnings_below_a_large_block_are_hashed_by_tokens_and_keys(chains: Chains, tmp_path: Path) -> None:
    # GIVEN an engine with blocks of 200 tokens, and requests that share their first 100, one of them under a salt
    shared = list(range(100))
    prompts = (shared + [7] * 150, shared + [8] * 150, [9] * 250, shared[:50])
    image = SimpleNamespace(identifier="image", mm_position=SimpleNamespace(offset=0))
    asked = [(make(tokens), 0, 200) for tokens in prompts]
    asked += [(make(prompts[0], "salt"), 0, 200), (make(prompts[0]), 200, 200), (make(shared), 0, BLOCK)]
    asked += [(make(prompts[0], **more), 0, 200) for more in ({"prompt_embeds": object()}, {"mm_features": [image]})]
    for step, (request, hit_tokens, block) in enumerate(asked, 1):
        chains.record(SimpleNamespace(step=step, hash_block_size=block), 1, request, hit_tokens)  # type: ignore[arg-type]
    # THEN those that found nothing have a hash of 32, 64 and 128 tokens, equal for equal tokens under equal keys
    found = heads(tmp_path)
    assert {number: list(each) for number, each in found.items()} == {
        1: [32, 64, 128], 2: [32, 64, 128], 3: [32, 64, 128], 4: [32], 5: [32, 64, 128],
    }  # fmt: skip
    assert found[1][32] == found[2][32] == found[4][32]
    assert found[1][64] == found[2][64]
    assert found[1][128] != found[2][128]
    others = {*found[3].values(), *found[5].values()}
    assert len(others | {*found[1].values()}) == 9
