"""Shapes of vLLM's objects, as far as the probes read them. Protocols only: nothing of vLLM is imported.

A shape holds attributes that a probe reads directly. Hooks declare the same ones as a `Need`; a test compares the two.
An attribute that a vLLM may lack is read with `OptionalAttributes.read` and stands in no shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvtrace.probes import vllm_symbols as places

if TYPE_CHECKING:
    from torch.nn import Module

_Shape = TypeVar("_Shape")

SHAPES: list[tuple[type, str]] = []
"""Each shape with the place where vLLM declares the class."""


def shape_of(place: str) -> Callable[[_Shape], _Shape]:
    """Note where vLLM declares the class of a shape: `module:Class`, or `a|b` where versions name it differently."""

    def noted(shape: _Shape) -> _Shape:
        assert isinstance(shape, type)
        SHAPES.append((shape, place))
        return shape

    return noted


@shape_of(places.BLOCK)
class Block(Protocol):
    """A KV cache block."""

    block_id: int
    ref_cnt: int
    is_null: bool
    block_hash: bytes | None


@shape_of(places.BLOCK_POOL)
class BlockPool(Protocol):
    """The blocks of a device, or of an offload tier."""

    blocks: Sequence[Block]
    num_gpu_blocks: int
    cached_block_hash_to_block: object

    def get_num_free_blocks(self) -> int:
        """Count the free blocks."""


class Member(Protocol):
    """A member of an enumeration."""

    name: str
    value: str | int


@shape_of("vllm.multimodal.inputs:PlaceholderRange")
class Position(Protocol):
    """The place of an item in a prompt."""

    offset: int


@shape_of("vllm.multimodal.inputs:MultiModalFeatureSpec")
class Item(Protocol):
    """An image or another item of a multimodal prompt."""

    identifier: str
    mm_position: Position


@shape_of(places.LORA)
class LoraRequest(Protocol):
    """The LoRA adapter that a request asks for."""

    lora_name: str
    lora_path: str


@shape_of(places.ENGINE_REQUEST)
class EngineRequest(Protocol):
    """A request on its way to the engine."""

    request_id: str
    sampling_params: object | None
    pooling_params: object | None
    lora_request: LoraRequest | None


@shape_of(places.REQUEST)
class Request(Protocol):
    """A request in the engine."""

    request_id: str
    arrival_time: float
    priority: int
    status: Member
    max_tokens: int | None
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    sampling_params: object | None
    pooling_params: object | None
    all_token_ids: Sequence[int]
    block_hashes: Sequence[bytes]
    lora_request: LoraRequest | None
    cache_salt: str | None
    mm_features: Sequence[Item]
    prompt_embeds: object | None

    def _block_hasher(self, request: object) -> list[bytes]: ...


@shape_of(places.KV_CACHE_MANAGER)
class KVCacheManager(Protocol):
    """The scheduler's KV cache manager."""

    block_pool: BlockPool
    enable_caching: bool
    coordinator: object

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Look up a request's block table, by KV cache group."""


@shape_of("vllm.config.scheduler:SchedulerConfig")
class SchedulerConfig(Protocol):
    """The scheduler's options."""

    enable_chunked_prefill: bool
    async_scheduling: bool
    max_num_batched_tokens: int
    max_num_seqs: int


@shape_of(places.PARALLEL_CONFIG)
class ParallelConfig(Protocol):
    """Parallel sizes and ranks."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    data_parallel_rank: int
    data_parallel_index: int | None


@shape_of("vllm.config.model:ModelConfig")
class ModelConfig(Protocol):
    """The model's options."""

    model: str
    max_model_len: int

    def get_num_layers(self, parallel_config: ParallelConfig) -> int:
        """Count the layers of this pipeline rank."""


@shape_of("vllm.config.vllm:VllmConfig")
class VllmConfig(Protocol):
    """All options of an engine."""

    model_config: ModelConfig
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig
    additional_config: object
    kv_transfer_config: object | None
    lora_config: object | None
    speculative_config: object | None


@shape_of("vllm.v1.kv_cache_interface:KVCacheSpec")
class KVCacheSpec(Protocol):
    """The format of a layer's KV."""

    page_size_bytes: int


@shape_of("vllm.v1.kv_cache_interface:KVCacheGroupSpec")
class KVCacheGroup(Protocol):
    """Layers that share block tables."""

    kv_cache_spec: KVCacheSpec
    layer_names: Sequence[str]


@shape_of("vllm.v1.kv_cache_interface:KVCacheConfig")
class KVCacheConfig(Protocol):
    """The layout of an engine's KV cache."""

    kv_cache_groups: Sequence[KVCacheGroup]


@shape_of(places.SCHEDULER)
class Scheduler(Protocol):
    """The scheduler of an engine."""

    requests: Mapping[str, Request]
    running: Sequence[Request]
    kv_cache_manager: KVCacheManager
    connector: object | None
    vllm_config: VllmConfig
    scheduler_config: SchedulerConfig
    kv_cache_config: KVCacheConfig
    max_num_scheduled_tokens: int
    max_num_running_reqs: int
    max_model_len: int
    policy: str | Member


@shape_of(places.NEW_REQUEST)
class NewRequest(Protocol):
    """A request that is scheduled for the first time."""

    req_id: str
    block_ids: tuple[list[int], ...]


@shape_of(places.CACHED_REQUESTS)
class CachedRequests(Protocol):
    """The requests of a step that workers know already."""

    req_ids: Sequence[str]
    new_block_ids: Sequence[tuple[list[int], ...] | None]
    resumed_req_ids: Set[str]


class Tensor(Protocol):
    """A tensor of PyTorch's."""

    shape: Sequence[int]
    dtype: object

    def data_ptr(self) -> int:
        """Give the address."""

    def stride(self) -> Sequence[int]:
        """Give the strides, in elements."""

    def numel(self) -> int:
        """Count the elements."""

    def element_size(self) -> int:
        """Give the bytes of an element."""


@shape_of("vllm.model_executor.layers.attention.attention:Attention")
class AttentionLayer(Protocol):
    """A layer that owns a KV cache."""

    impl: object
    kv_cache: Tensor | list[Tensor] | tuple[Tensor, ...]


@shape_of("vllm.config.compilation:CompilationConfig")
class CompilationConfig(Protocol):
    """Compilation options, with the layers by name."""

    static_forward_context: Mapping[str, AttentionLayer]


class Device(Protocol):
    """A device of PyTorch's."""

    type: str


@shape_of(places.MODEL_RUNNER)
class ModelRunner(Protocol):
    """A worker's model runner, of either kind."""

    compilation_config: CompilationConfig
    device: Device
    model_config: ModelConfig
    parallel_config: ParallelConfig
    vllm_config: VllmConfig

    def get_model(self) -> Module:
        """Give the model."""


@shape_of(places.INPUT_BATCH)
class InputBatch(Protocol):
    """A worker's batch."""

    req_ids: list[str]


@shape_of(places.SCHEDULER_OUTPUT)
class SchedulerOutput(Protocol):
    """The schedule of a step, as it goes to the workers."""

    scheduled_new_reqs: Sequence[NewRequest]
    scheduled_cached_reqs: CachedRequests
    num_scheduled_tokens: Mapping[str, int]
    total_num_scheduled_tokens: int
