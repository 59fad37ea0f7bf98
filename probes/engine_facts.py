"""Facts of an engine for the journal: its model, sizes and settings."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from kvtrace.format.secrets import redact
from kvtrace.probes.engine import Engine
from kvtrace.probes.hooks import Need
from kvtrace.probes.vllm_symbols import PARALLEL_CONFIG, SCHEDULER
from kvtrace.probes.vllm_types import KVCacheConfig, ParallelConfig, Scheduler

_FACTS = "facts of the engine"
_SETTINGS = "settings of the engine that only a replay needs"
FACT_NEEDS = (
    Need(
        SCHEDULER,
        "kv_cache_config max_num_scheduled_tokens max_num_running_reqs max_model_len policy scheduler_config",
        _FACTS,
    ),
    Need("vllm.config.vllm:VllmConfig", "model_config parallel_config", _FACTS),
    Need("vllm.config.model:ModelConfig", "model", _FACTS),
    Need("vllm.config.scheduler:SchedulerConfig", "enable_chunked_prefill async_scheduling", _FACTS),
    Need(PARALLEL_CONFIG, "tensor_parallel_size pipeline_parallel_size", _FACTS),
    Need(PARALLEL_CONFIG, "data_parallel_size data_parallel_rank data_parallel_index", _FACTS),
    Need("vllm.v1.kv_cache_interface:KVCacheConfig", "kv_cache_groups", _FACTS),
    Need("vllm.v1.kv_cache_interface:KVCacheGroupSpec", "kv_cache_spec layer_names", "how many bytes a block has"),
    Need("vllm.v1.kv_cache_interface:KVCacheSpec", "page_size_bytes", "how many bytes a block has"),
    Need("vllm.v1.kv_cache_interface:KVCacheGroupSpec", "is_eagle_group", "which KV cache groups a draft model has"),
    Need(
        "vllm.config.vllm:VllmConfig", "additional_config kv_transfer_config lora_config speculative_config", _SETTINGS
    ),
)


def facts_of(scheduler: Scheduler, engine: Engine) -> dict[str, Any]:
    """Read the facts that this vLLM tells; the others are left out."""
    config = scheduler.vllm_config
    facts: dict[str, Callable[[], object]] = {
        "model": lambda: str(config.model_config.model),
        "block_size_tokens": lambda: engine.block_size or None,
        "blocks": lambda: engine.block_pool.num_gpu_blocks - 1,
        "kv_groups": lambda: len(scheduler.kv_cache_config.kv_cache_groups),
        "max_num_batched_tokens": lambda: scheduler.max_num_scheduled_tokens,
        "max_num_seqs": lambda: scheduler.max_num_running_reqs,
        "max_model_len": lambda: scheduler.max_model_len,
        "scheduler": lambda: f"{type(scheduler).__module__}.{type(scheduler).__qualname__}",
        "policy": lambda: scheduler.policy if isinstance(scheduler.policy, str) else scheduler.policy.value,
        "prefix_caching": lambda: bool(scheduler.kv_cache_manager.enable_caching),
        "chunked_prefill": lambda: bool(scheduler.scheduler_config.enable_chunked_prefill),
        "async_scheduling": lambda: bool(scheduler.scheduler_config.async_scheduling),
        "block_bytes": lambda: _block_bytes(scheduler.kv_cache_config),
        "connector": lambda: type(scheduler.connector).__name__ if scheduler.connector is not None else None,
        "tp_size": lambda: config.parallel_config.tensor_parallel_size,
        "pp_size": lambda: config.parallel_config.pipeline_parallel_size,
        "dp_size": lambda: config.parallel_config.data_parallel_size,
        "dp_rank": lambda: dp_rank(config.parallel_config),
        "pid": os.getpid,
        "hash_block_tokens": lambda: engine.hash_block_size or None,
        "settings": lambda: redact([json.dumps(_settings(scheduler), separators=(",", ":"))])[0],
    }
    found = {}
    for name, read in facts.items():
        try:
            found[name] = read()
        except Exception:  # another version calls it something else: the fact stays unknown
            continue
    return found


def dp_rank(parallel_config: ParallelConfig) -> int:
    """The data-parallel rank. vLLM sets `data_parallel_rank` of a dense model's engines to 0: they need not agree."""
    rank = parallel_config.data_parallel_index
    return int(parallel_config.data_parallel_rank if rank is None else rank)


def _block_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Bytes a block of the first KV cache group holds over its layers."""
    group = kv_cache_config.kv_cache_groups[0]
    return int(group.kv_cache_spec.page_size_bytes) * len(group.layer_names)


def _settings(scheduler: Scheduler) -> dict[str, Any]:
    """Read what else decides how this scheduler schedules; a replay builds it again from this."""
    config = scheduler.vllm_config
    additional = config.additional_config
    pins = additional.get("kvtrace_ttl_pin") if isinstance(additional, dict) else None
    return {
        "scheduler": _plain(scheduler.scheduler_config),
        "kv_cache": _plain(scheduler.kv_cache_config),
        "kv_cache_groups": group_facts(scheduler.kv_cache_config.kv_cache_groups),
        "hash_lookahead_tokens": int(getattr(config, "num_hash_lookahead_tokens", 0)),
        "kv_transfer": _plain(config.kv_transfer_config),
        "lora": _plain(config.lora_config),
        "speculative": _plain(config.speculative_config),
        "ttl_pin": _jsonable(pins),
    }


def group_facts(groups: Sequence[Any]) -> list[dict[str, Any]]:
    """Read of KV cache groups what it takes to build them again."""
    return [
        {
            "kind": type(group.kv_cache_spec).__name__,
            "bases": [base.__name__ for base in type(group.kv_cache_spec).__mro__[1:-1]],
            "cacheable": bool(getattr(group.kv_cache_spec, "prefix_cacheable", True)),
            "layers": len(group.layer_names),
            "drafts": bool(getattr(group, "is_eagle_group", False)),
            "spec": _plain(group.kv_cache_spec),
        }
        for group in groups
    ]


def _plain(config: object) -> dict[str, Any] | None:
    """The fields of a configuration that JSON can hold; of an enumeration's member, its value.

    Types of torch are named: their names begin with `torch.`.
    """
    if config is None:
        return None
    found = {}
    for name, given in vars(config).items():
        if not name.startswith("_"):
            value = given.value if isinstance(given, enum.Enum) else given
            text = str(value)
            kept = text if text.startswith("torch.") and not isinstance(value, str) else _jsonable(value)
            if kept is not None:
                found[name] = kept
    return found


def _jsonable(value: object) -> Any:
    """The value, if JSON can hold it; else None."""
    if isinstance(value, str | int | float | bool | list | dict):
        try:
            return json.loads(json.dumps(value))
        except (TypeError, ValueError):
            return None
    return None
