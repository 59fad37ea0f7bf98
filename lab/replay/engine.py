"""Builds vLLM's scheduler and KV cache manager, without a worker or weights. Only a replay's own process imports it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.recording import EngineFacts, RecordedRequest
from kvtrace.lab.replay.settings import CONNECTORS, Settings, recorded_settings
from kvtrace.lab.shapes import shape_path
from kvtrace.lab.sweep import read_object

_OF_SETTINGS = (
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_num_seqs",
    "policy",
    "enable_chunked_prefill",
    "async_scheduling",
    "scheduler_cls",
    "is_multimodal_model",
    "max_num_encoder_input_tokens",
    "encoder_cache_size",
)
"""Recorded fields of vLLM's scheduler configuration that `Settings` has, or that are another model's."""

_OF_SPECULATION = (
    "method",
    "parallel_drafting",
    "disable_eagle_block_drop",
    "disable_padded_drafter_batch",
    "num_speculative_tokens_per_batch_size",
)
"""Recorded fields of vLLM's configuration of speculation that its scheduler looks at."""

_MOST_HASHES = 100_000

_CHECKED = ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill")
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
    try:
        kind = config.scheduler_config.get_scheduler_cls() if settings.scheduler_cls else Scheduler
    except ImportError as error:
        raise KvtraceError(f"scheduler class {settings.scheduler_cls} cannot be imported here: {error}", 2) from error
    if not settings.scheduler_cls and settings.async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        kind = AsyncScheduler
    # The null block is one of num_gpu_blocks.
    return kind(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings.block_size,
        hash_block_size=hash_size(engine, settings),
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
    if settings.pins:
        arguments["additional_config"] = {"kvtrace_ttl_pin": settings.pins}
    if settings.cpu_bytes_to_use or settings.tier:
        arguments["kv_transfer_config"] = _offload(engine, settings)
    config = EngineArgs(**arguments).create_engine_config()
    told = dict(engine.told.get("scheduler") or {})
    if settings.tier or ("kv_transfer_config" in arguments and not engine.told.get("kv_transfer")):
        told.pop("disable_hybrid_kv_cache_manager", None)  # vLLM chose it for a connector that the engine did not have
    for name, value in told.items():
        if name not in _OF_SETTINGS and hasattr(config.scheduler_config, name):
            setattr(config.scheduler_config, name, value)
    for name, value in settings.scheduler.items():
        if not hasattr(config.scheduler_config, name):
            raise KvtraceError(f"{name}: this vLLM's scheduler has no such option", 2)
        setattr(config.scheduler_config, name, value)
    for group in engine.told.get("kv_cache_groups") or []:
        if "mamba_cache_mode" in group["spec"]:  # prompts are cut where states are kept
            config.cache_config.mamba_cache_mode = group["spec"]["mamba_cache_mode"]
            config.cache_config.mamba_block_size = group["spec"]["block_size"]
    if settings.num_speculative_tokens:
        config.speculative_config = _speculation(engine, settings, config)
    if engine.told.get("lora"):
        from vllm.config.lora import LoRAConfig

        config.lora_config = LoRAConfig(max_loras=engine.told["lora"]["max_loras"])
    # A platform may change what it cannot run; a scheduler alone runs everywhere.
    config.cache_config.num_gpu_blocks = settings.num_gpu_blocks
    config.cache_config.block_size = settings.block_size
    config.cache_config.enable_prefix_caching = settings.enable_prefix_caching
    config.scheduler_config.max_num_batched_tokens = settings.max_num_batched_tokens
    config.scheduler_config.enable_chunked_prefill = settings.enable_chunked_prefill
    config.scheduler_config.async_scheduling = settings.async_scheduling
    _check_sizes(config, engine, settings)
    return config


def _check_sizes(config: Any, engine: EngineFacts, settings: Settings) -> None:
    """Have vLLM check sizes that no engine was started with; those of a recording it took, on its own platform.

    Raises:
        KvtraceError: vLLM would not start with them.
    """
    recorded = recorded_settings(engine)
    if not engine.invented and all(getattr(settings, name) == getattr(recorded, name) for name in _CHECKED):
        return
    try:
        config.scheduler_config.verify_max_model_len(engine.max_model_len)
    except ValueError as error:
        raise KvtraceError(f"vLLM would not start with these settings: {error}", 2) from error


def _speculation(engine: EngineFacts, settings: Settings, config: Any) -> Any:
    """The recorded kind of speculation, without its draft model: a scheduler only asks how it drafts and how much."""
    from vllm.config import SpeculativeConfig

    drafter = SpeculativeConfig(
        method="ngram",
        prompt_lookup_max=1,
        num_speculative_tokens=settings.num_speculative_tokens,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
    )
    for name, value in engine.told["speculative"].items():
        if name in _OF_SPECULATION and hasattr(drafter, name):
            setattr(drafter, name, value)
    return drafter


def _offload(engine: EngineFacts, settings: Settings) -> Any:
    """The connector of these settings, of one worker, with vLLM's own spec."""
    from vllm.config import KVTransferConfig

    if settings.tier:
        lmcache = settings.tier["name"] == "lmcache"
        name, module = ("LMCacheTier", "lmcache") if lmcache else ("TierConnector", "connector")
        module = f"kvtrace.lab.replay.tiers.{module}"
        return KVTransferConfig(kv_connector=name, kv_connector_module_path=module, kv_role="kv_both")
    if not engine.block_bytes:
        raise KvtraceError("cpu_bytes_to_use: the trace does not say how many bytes a block has")
    extra = dict((engine.told.get("kv_transfer") or {}).get("kv_connector_extra_config") or {})
    for name in ("spec_name", "spec_module_path", "cpu_bytes_to_use_per_rank", "num_cpu_blocks"):
        extra.pop(name, None)
    extra["cpu_bytes_to_use"] = (settings.cpu_bytes_to_use or 0) // engine.tp_size
    extra["lazy_offload"] = settings.lazy_offload
    name = CONNECTORS[settings.connector]
    return KVTransferConfig(kv_connector=name, kv_role="kv_both", kv_connector_extra_config=extra)


def _kv_cache_groups(engine: EngineFacts, settings: Settings, config: Any) -> list[Any]:
    told = engine.told.get("kv_cache_groups")
    if told:
        return [told_group(number, group, engine, settings) for number, group in enumerate(told)]
    return _groups_of_model(engine, settings, config)


def told_group(number: int, told: dict[str, Any], engine: EngineFacts, settings: Settings) -> Any:
    """A KV cache group as it was recorded, with blocks of another size where settings say so."""
    import dataclasses
    import enum

    import torch
    from vllm.v1 import kv_cache_interface

    kind = getattr(kv_cache_interface, str(told["kind"]), None)
    if kind is None or "block_size" not in told["spec"]:
        raise KvtraceError(f"the engine's KV cache group {number} is a {told['kind']}, which cannot be built again", 2)
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values = {}
    for name, value in told["spec"].items():
        default = known[name].default if name in known else None
        if isinstance(value, str) and value.startswith("torch."):
            values[name] = getattr(torch, value.removeprefix("torch."))
        elif isinstance(default, enum.Enum):
            values[name] = type(default)(value)
        elif name in known:
            values[name] = value
    if settings.block_size != engine.block_size:
        if values["block_size"] != engine.block_size or values.get("page_size_padded"):
            raise KvtraceError("block_size: the engine's KV cache groups have blocks of several sizes", 2)
        values["block_size"] = settings.block_size
    for name in {"shapes", "dtypes"} & (set(known) - set(values)):  # of a state, whose size is told
        values[name] = ((1,),) if name == "shapes" else (torch.uint8,)
    layers = [f"layer.{number}.{layer}" for layer in range(told["layers"])]
    group = kv_cache_interface.KVCacheGroupSpec(layers, kind(**values))
    if hasattr(group, "is_eagle_group"):
        group.is_eagle_group = bool(told.get("drafts")) and settings.num_speculative_tokens > 0
    return group


def hash_size(engine: EngineFacts, settings: Settings) -> int:
    """Tokens of a block hash: the recorded ones, or a block's where blocks have another size than recorded."""
    return engine.hash_block_size if settings.block_size == engine.block_size else settings.block_size


def _groups_of_model(engine: EngineFacts, settings: Settings, config: Any) -> list[Any]:
    """Groups of a recording that does not tell of them, by the model's configuration."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    # K and V of one head in half precision; of all layers, where there is one group.
    head_size = (engine.block_bytes or 0) // (4 * engine.block_size) if engine.kv_groups == 1 else 64
    shape = {
        "block_size": settings.block_size,
        "num_kv_heads": 1,
        "head_size": max(head_size, 1),
        "dtype": torch.float16,
    }
    model = _model_config(engine)
    window, kinds = model.get("sliding_window"), model.get("layer_types")
    if engine.kv_groups == 1 and not kinds:
        kinds = ["full_attention"]
    if not kinds or (window is None and "sliding_attention" in kinds):
        raise KvtraceError(
            f"the engine had {engine.kv_groups} KV cache groups, and the trace does not tell of what kind; "
            "its model's config.json is needed, with layer_types and sliding_window",
            2,
        )
    specs = {}
    for number, kind in enumerate(kinds):
        full = kind == "full_attention"
        specs[f"layer.{number}"] = (
            FullAttentionSpec(**shape) if full else SlidingWindowSpec(**shape, sliding_window=window)
        )
    groups = list(vllm_grouping()(config, specs))
    if len(groups) != engine.kv_groups:
        raise KvtraceError(
            f"the engine had {engine.kv_groups} KV cache groups; built from its config: {len(groups)}", 2
        )
    return groups


def vllm_grouping() -> Callable[[Any, dict[str, Any]], list[Any]]:
    """Find vLLM's function that groups layers by what they keep."""
    try:  # vLLM 0.33 moved it
        from vllm.v1.core.kv_cache_planning import get_kv_cache_groups
    except ImportError:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    grouping: Callable[[Any, dict[str, Any]], list[Any]] = get_kv_cache_groups
    return grouping


def _model_config(engine: EngineFacts) -> dict[str, Any]:
    found = read_object(Path(engine.model or "") / "config.json")
    return found.get("text_config") or found


def _kv_cache_config(engine: EngineFacts, settings: Settings, groups: list[Any]) -> Any:
    import dataclasses

    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor

    known = {field.name for field in dataclasses.fields(KVCacheConfig) if field.init}
    if settings.block_size != engine.block_size:  # vLLM derives these from the size of blocks
        known -= {"hash_block_size", "cache_hit_alignment_tokens"}
    told = {name: value for name, value in (engine.told.get("kv_cache") or {}).items() if name in known}
    tensors = []
    if settings.cpu_bytes_to_use and settings.connector == "simple-cpu-offload":  # it sizes its pool by the GPU's
        page = (engine.block_bytes or 0) // engine.tp_size * settings.block_size // engine.block_size
        layers = [layer for group in groups for layer in group.layer_names]
        size = settings.num_gpu_blocks * page
        tensors = [KVCacheTensor(size=size, layers=layers, layer_stride=size, block_stride=page)]
    ours = {"num_blocks": settings.num_gpu_blocks, "kv_cache_tensors": tensors, "kv_cache_groups": groups}
    return KVCacheConfig(**{**told, **ours})


class Requests:
    """Makes vLLM's requests of recorded ones."""

    def __init__(self, engine: EngineFacts, settings: Settings) -> None:
        self._size = hash_size(engine, settings)
        self._ratio = self._size // engine.hash_block_size
        self._caching = settings.enable_prefix_caching
        self._hashes: dict[int, Any] = {}  # turns of a session ask for the same again
        self._adapters: dict[str, Any] = {}

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
            lora_request=self._adapter(recorded.lora),
            block_hasher=self._hasher(recorded) if self._caching else None,
        )

    def _adapter(self, name: str | None) -> Any:
        from vllm.lora.request import LoRARequest

        if name is None:
            return None
        return self._adapters.setdefault(name, LoRARequest(name, len(self._adapters) + 1, "recorded"))

    def _hasher(self, recorded: RecordedRequest) -> Callable[[Any], list[Any]]:
        """Return the hashes of full blocks that a request does not have yet, as vLLM's block hasher does."""
        from vllm.v1.core.kv_cache_utils import BlockHash

        chain, ratio, size, known = recorded.chain, self._ratio, self._size, self._hashes
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
                    found.append(BlockHash((unique ^ (position << 1) ^ 1).to_bytes(8, "big") * 4))
                    continue
                made = known.get(block_hash)
                if made is None:
                    if len(known) >= _MOST_HASHES:
                        known.clear()
                    made = known[block_hash] = BlockHash(block_hash.to_bytes(8, "big") * 4)
                found.append(made)
            return found

        return hashes


def _length_limit(recorded: RecordedRequest) -> int:
    """Where the length limit ends a request. vLLM schedules a last step ahead of results by it."""
    if recorded.end in ("length", None):
        return max(recorded.output_tokens, 1)
    return max(recorded.max_tokens, recorded.output_tokens, 1)
