"""Builds vLLM's scheduler and KV cache manager, without a worker or weights. Only a replay's own process imports it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.recording import EngineFacts, RecordedRequest
from kvtrace.lab.replay.settings import TTL_PIN, Settings
from kvtrace.lab.shapes import shape_path

_STAND_IN_TOKEN_BYTES = 2 * 64 * 2
"""K and V of one head of the stand-in, in half precision."""

STOP_TOKEN, TOKEN = 1, 7
"""Ids that the replayed model generates: the first ends a request that stopped before its length limit."""


def build_scheduler(engine: EngineFacts, settings: Settings) -> Any:
    """The installed vLLM's scheduler with these settings.

    The model is a stand-in: a scheduler only looks at how long sequences may be and at the KV cache groups.

    Raises:
        KvtraceError: vLLM refuses the settings, or the trace does not tell enough of the KV cache groups.
    """
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    try:
        config = _vllm_config(engine, settings)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise KvtraceError(f"this vLLM cannot be configured as recorded: {error}") from error
    groups = _kv_cache_groups(engine, settings, config)
    kv_cache = _kv_cache_config(engine, settings, groups)
    kind = config.scheduler_config.get_scheduler_cls() if settings.scheduler_cls else Scheduler
    if not settings.scheduler_cls and settings.async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        kind = AsyncScheduler
    # The null block is one of num_gpu_blocks; hashes come at the size of the blocks.
    return kind(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings.block_size,
    )


def _vllm_config(engine: EngineFacts, settings: Settings) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    arguments: dict[str, Any] = {
        "model": str(shape_path("tiny")),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "hf_overrides": {"max_position_embeddings": engine.max_model_len},
        "block_size": settings.block_size,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": max(settings.max_num_batched_tokens, settings.max_num_seqs),
        "scheduling_policy": settings.policy,
        "enable_prefix_caching": settings.enable_prefix_caching,
    }
    if settings.scheduler_cls:
        arguments["scheduler_cls"] = settings.scheduler_cls
    if settings.scheduler_cls == TTL_PIN:
        arguments["additional_config"] = {"kvtrace_ttl_pin": settings.pins}
    if settings.cpu_bytes_to_use:
        arguments["kv_transfer_config"] = _offload(engine, settings)
    config = EngineArgs(**arguments).create_engine_config()
    # A platform may change what it cannot run; a scheduler alone runs everywhere.
    config.cache_config.num_gpu_blocks = settings.num_gpu_blocks
    config.cache_config.block_size = settings.block_size
    config.cache_config.enable_prefix_caching = settings.enable_prefix_caching
    config.scheduler_config.max_num_batched_tokens = settings.max_num_batched_tokens
    config.scheduler_config.enable_chunked_prefill = settings.enable_chunked_prefill
    config.scheduler_config.async_scheduling = settings.async_scheduling
    return config


def _offload(engine: EngineFacts, settings: Settings) -> Any:
    """The OffloadingConnector with room for as many blocks as the host memory has: the stand-in's are smaller."""
    from vllm.config import KVTransferConfig

    if not engine.block_bytes:
        raise KvtraceError("cpu_bytes_to_use: the trace does not say how many bytes a block has")
    host_blocks = (settings.cpu_bytes_to_use or 0) * engine.block_size // (engine.block_bytes * settings.block_size)
    extra = {"cpu_bytes_to_use": host_blocks * settings.block_size * _STAND_IN_TOKEN_BYTES}
    return KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra)


def _kv_cache_groups(engine: EngineFacts, settings: Settings, config: Any) -> list[Any]:
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape = {"block_size": settings.block_size, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    model = _model_config(engine)
    window, kinds = model.get("sliding_window"), model.get("layer_types")
    if engine.kv_groups == 1 and not kinds:
        kinds = ["full_attention"]
    if not kinds or (window is None and "sliding_attention" in kinds):
        raise KvtraceError(
            f"the engine had {engine.kv_groups} KV cache groups, and the trace does not tell of what kind; "
            "its model's config.json is needed, with layer_types and sliding_window"
        )
    specs = {}
    for number, kind in enumerate(kinds):
        full = kind == "full_attention"
        specs[f"layer.{number}"] = (
            FullAttentionSpec(**shape) if full else SlidingWindowSpec(**shape, sliding_window=window)
        )
    groups = list(get_kv_cache_groups(config, specs))
    if len(groups) != engine.kv_groups:
        raise KvtraceError(f"the engine had {engine.kv_groups} KV cache groups; built from its config: {len(groups)}")
    return groups


def _model_config(engine: EngineFacts) -> dict[str, Any]:
    path = Path(engine.model or "") / "config.json"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found.get("text_config") or found if isinstance(found, dict) else {}


def _kv_cache_config(engine: EngineFacts, settings: Settings, groups: list[Any]) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    return KVCacheConfig(num_blocks=settings.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


class Requests:
    """Makes vLLM's requests of recorded ones."""

    def __init__(self, engine: EngineFacts, settings: Settings) -> None:
        self._ratio = settings.block_size // engine.hash_block_size
        self._size = settings.block_size
        self._caching = settings.enable_prefix_caching

    def make(self, recorded: RecordedRequest, request_id: str, arrival_ns: int) -> Any:
        """A request as vLLM's engine hands it to its scheduler."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        tags: dict[str, Any] = {"kvtrace_session": recorded.session, "kvtrace_turn": recorded.turn}
        tags["kvtrace_tool"] = recorded.tool
        sampling = SamplingParams(
            max_tokens=_length_limit(recorded),
            ignore_eos=True,
            detokenize=False,
            stop_token_ids=[STOP_TOKEN],
            extra_args={key: value for key, value in tags.items() if value is not None} or None,
        )
        if recorded.skips_cache:
            sampling.skip_reading_prefix_cache = True
        return Request(
            request_id,
            [TOKEN] * recorded.prompt_tokens,
            sampling,
            None,
            arrival_time=arrival_ns / 1e9,
            priority=recorded.priority,
            block_hasher=self._hasher(recorded) if self._caching else None,
        )

    def _hasher(self, recorded: RecordedRequest) -> Callable[[Any], list[Any]]:
        """Return the hashes of full blocks that a request does not have yet, as vLLM's block hasher does."""
        from vllm.v1.core.kv_cache_utils import BlockHash

        chain, ratio, size = recorded.chain, self._ratio, self._size
        unique = (1 << 63) | (recorded.number << 24)

        def hashes(request: Any) -> list[Any]:
            first, end = len(request.block_hashes), request.num_tokens // size
            if first >= end:
                return []
            found = []
            for position in range(first, end):
                last = (position + 1) * ratio - 1  # a hash stands for all tokens before it, too
                block_hash = chain.get(last)
                if block_hash is None:
                    block_hash = unique ^ (position << 1) ^ 1
                found.append(BlockHash(block_hash.to_bytes(8, "big") * 4))
            return found

        return hashes


def _length_limit(recorded: RecordedRequest) -> int:
    """Where the length limit ends a request. vLLM schedules a last step ahead of results by it."""
    if recorded.end in ("length", None):
        return max(recorded.output_tokens, 1)
    return max(recorded.max_tokens, recorded.output_tokens, 1)
