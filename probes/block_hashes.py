"""The chain of block hashes of a request, and the keys that keep its blocks apart from those of equal tokens.

vLLM has computed the chain by the time a request is looked up; it is recorded once an admission, from the first block
that was not found, so requests served from the cache cost nothing. What the chain would be without a salt, an adapter
or multimodal items is computed by vLLM's own hasher, only for requests with such keys and blocks not seen before.
"""

from __future__ import annotations

import hashlib
import os
from array import array

from kvtrace.capture._native import Hashes
from kvtrace.capture.recorder import Recorder
from kvtrace.events import REQUEST_HASH, REQUEST_HEAD, REQUEST_KEY
from kvtrace.probes.engine import Engine
from kvtrace.probes.hooks import Need
from kvtrace.probes.vllm_symbols import LORA, REQUEST
from kvtrace.probes.vllm_types import Request

GENERATION = 1 << 16
"""Hashes whose keyless form is kept, twice: when the newer generation is full, the older one is dropped."""

LEAST_HEAD_TOKENS, LEAST_BLOCK_TOKENS = 32, 128
"""The shortest head of a request that is hashed, and the smallest blocks for which heads are."""

_PLACE = "vllm.v1.request:Request.block_hashes"
_LOST = "why blocks were missing from the prefix cache"
CHAIN_NEEDS = (
    Need(REQUEST, "block_hashes lora_request cache_salt mm_features prompt_embeds", _LOST),
    Need(REQUEST, "_block_hasher all_token_ids", "which missing blocks are cached under other keys"),
    Need(LORA, "lora_name lora_path", _LOST),
    Need("vllm.multimodal.inputs:MultiModalFeatureSpec", "identifier mm_position", _LOST),
    Need("vllm.multimodal.inputs:PlaceholderRange", "offset", _LOST),
)


class _Keyless:
    """Looks to vLLM's block hasher like a request of the same tokens without any keys."""

    mm_features: tuple[object, ...] = ()
    lora_request = None
    cache_salt = None
    prompt_embeds = None

    def __init__(self, request: Request, num_tokens: int, block_hashes: list[bytes]) -> None:
        self.all_token_ids = request.all_token_ids
        self.num_tokens = num_tokens
        self.block_hashes = block_hashes


class Chains:
    """Records the chains of admitted requests. What fails here ends here: the lookups go on without chains.

    Attributes:
        has_tokens: Requests have their prompts' tokens. A replay's do not.
    """

    has_tokens = True

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._write = Hashes(recorder.packer(REQUEST_HASH)).write
        self._emit_head, self._emit_key = recorder.stream(REQUEST_HEAD), recorder.stream(REQUEST_KEY)
        self._keyless: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes] = {}
        self._secret = os.urandom(16)  # a salt is a secret: only whether two are equal may be told
        self._alive = True

    def record(self, engine: Engine, number: int, request: Request, hit_tokens: int) -> None:
        """Record the chain behind the tokens found in the GPU prefix cache, and the request's keys."""
        if not self._alive:
            return
        try:
            if engine.hash_block_size:
                self._record(engine, number, request, hit_tokens // engine.hash_block_size)
        except Exception as error:
            self._alive = False
            detail = f"{type(error).__name__}: {error}; lost: {_LOST}"
            self._recorder.note("hook", inherited=True, hook=_PLACE, state="disabled", detail=detail)

    def _record(self, engine: Engine, number: int, request: Request, first: int) -> None:
        hashes = request.block_hashes
        keyed = self._record_keys(engine.step, number, request)
        if first == 0 and engine.hash_block_size >= LEAST_BLOCK_TOKENS and self.has_tokens:
            self._record_heads(engine, number, request)
        if len(hashes) <= first:
            return
        plain = self._without_keys(engine, request, first) if keyed else None
        self._write(engine.step, number, hashes, first, plain)

    def _record_keys(self, step: int, number: int, request: Request) -> bool:
        """Record the keys, if there are any; whether the tokens have hashes without them."""
        adapter, salt, items = _adapter_of(request), request.cache_salt, request.mm_features
        embeds = request.prompt_embeds is not None
        if not (adapter or salt or items or embeds):
            return False
        places = [(item.identifier, item.mm_position.offset) for item in items or ()]
        name = self._recorder.intern(str(adapter[0])) if adapter else 0
        self._emit_key(
            step=step,
            request=number,
            lora=name,
            lora_key=self._identity(adapter),
            salt_key=self._identity(salt),
            multimodal_key=self._identity(places),
            prompt_embeds=embeds,
        )
        return not embeds

    def _record_heads(self, engine: Engine, number: int, request: Request) -> None:
        """Record hashes of the first tokens, each head twice as long as the one before, up to less than a block."""
        if request.prompt_embeds is not None or request.mm_features:
            return
        digest = self._digest((_adapter_of(request), request.cache_salt))
        tokens = array("q", request.all_token_ids[: engine.hash_block_size - 1])
        end, hashed = LEAST_HEAD_TOKENS, 0
        while end <= len(tokens):
            digest.update(tokens[hashed:end].tobytes())
            self._emit_head(step=engine.step, request=number, tokens=end, head_hash=_number(digest.digest()))
            end, hashed = 2 * end, end

    def _identity(self, key: object) -> int:
        if not key:
            return 0
        return _number(self._digest(key).digest())

    def _digest(self, key: object) -> hashlib.blake2b:
        return hashlib.blake2b(repr(key).encode(), digest_size=8, key=self._secret)

    def _without_keys(self, engine: Engine, request: Request, first: int) -> list[bytes]:
        """The chain from `first` on as it would be without keys, continued from the last block seen before."""
        if len(self._keyless) > GENERATION:
            self._older, self._keyless = self._keyless, {}
        hashes, known, older = request.block_hashes, self._keyless, self._older
        start, last = first, None
        while start:
            last = known.get(hashes[start - 1]) or older.get(hashes[start - 1])
            if last is not None:
                break
            start -= 1
        before = [] if last is None else [last] * start
        stand_in = _Keyless(request, len(hashes) * engine.hash_block_size, before)
        chain: list[bytes] = request._block_hasher(stand_in)
        known.update(zip(hashes[start:], chain, strict=True))
        return chain[first - start :]


def _adapter_of(request: Request) -> tuple[str, str] | None:
    """The name and path of its LoRA adapter."""
    lora = request.lora_request
    return (lora.lora_name, lora.lora_path) if lora else None


def _number(digest: bytes) -> int:
    """A digest as a column's value; 0 would be NULL."""
    return int.from_bytes(digest, "big") or 1
