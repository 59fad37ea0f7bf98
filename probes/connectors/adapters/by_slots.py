"""vLLM's ExampleConnector and LMCacheConnectorV1: requests with slot mappings, copied while the worker waits.

Their calls take all requests of a step together, so a step has at most one load and one store. The bytes of a transfer
are its slots' share of the KV tensors.

LMCache's `wait_for_save` waits for the step's own work first, as each request's slots are copied to the GPU behind it.
The store starts when LMCache's engine is asked to store the first request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from kvtrace.events import Direction, Tier
from kvtrace.probes.connectors.adapter import Adapter, Declaration, Form, Planned
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.vllm_symbols import CONNECTOR
from kvtrace.probes.vllm_types import SchedulerOutput, shape_of

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_METADATA = "transfers of ExampleConnector and LMCache"
_BYTES = "blocks and bytes of transfers of ExampleConnector and LMCache"
_LOADED = "bytes of transfers of ExampleConnector and LMCache"
_LMCACHE = f"{_V1}.lmcache_integration.vllm_v1_adapter"
_BEGUN = "when stores of LMCache start: they contain the wait for their step's work"
STORE = Hook("lmcache.v1.cache_engine:LMCacheEngine.store", _BEGUN)
"""A hook on an object of LMCache's, which no vLLM's sources declare."""

SAVE_LAYER = Hook(
    f"{CONNECTOR}.save_kv_layer",
    "the start of saves",
    needs=(
        Need(CONNECTOR, "_connector_metadata", _METADATA),
        Need(f"{_V1}.example_connector:ExampleConnectorMetadata", "requests", _METADATA),
        Need("vllm.config.cache:CacheConfig", "block_size", _BYTES),
        Need(CONNECTOR, "_kv_cache_config _vllm_config", _BYTES),
        Need("vllm.config.vllm:VllmConfig", "cache_config", _BYTES),
        Need("vllm.v1.kv_cache_interface:KVCacheConfig", "num_blocks", _BYTES),
        Need("vllm.forward_context:ForwardContext", "no_compile_layers", _LOADED),
        Need("vllm.model_executor.layers.attention.attention:Attention", "kv_cache", _LOADED),
        Need(f"{_V1}.example_connector:ReqMeta", "slot_mapping is_store", "transfers of ExampleConnector"),
        Need(f"{_LMCACHE}:ReqMeta", "slot_mapping load_spec save_spec", "transfers of LMCache"),
        Need(f"{_LMCACHE}:LoadSpec", "can_load vllm_cached_tokens lmcache_cached_tokens", "transfers of LMCache"),
        Need(f"{_V1}.lmcache_connector:LMCacheConnectorV1", "_lmcache_engine", _BEGUN),
        Need(f"{_LMCACHE}:SaveSpec", "can_save skip_leading_tokens", "transfers of LMCache"),
    ),
)

_TIERS = {"ExampleConnector": Tier.disk}


@shape_of(f"{_V1}.example_connector:ReqMeta|{_LMCACHE}:ReqMeta")
class _Request(Protocol):
    slot_mapping: Sequence[int]


@shape_of(f"{_LMCACHE}:LoadSpec")
class _LoadSpec(Protocol):
    can_load: bool
    vllm_cached_tokens: int
    lmcache_cached_tokens: int


@shape_of(f"{_LMCACHE}:SaveSpec")
class _SaveSpec(Protocol):
    can_save: bool
    skip_leading_tokens: int


class _Tensor(Protocol):
    def numel(self) -> int: ...
    def element_size(self) -> int: ...


class _Copy(NamedTuple):
    """A copy that a request's metadata asks for: slots from `first` to `last` of its slot mapping."""

    direction: Direction
    request: _Request
    first: int
    last: int


class BySlots(Adapter):
    """ExampleConnector and LMCacheConnectorV1."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._transfers = Transfers(part)
        self._tier = _TIERS.get(part.name, Tier.other)
        self._layers_copy = part.name != "LMCacheConnectorV1"  # LMCache copies all layers in the wait
        self._slot_bytes = 0  # a token's share of all layers' KV tensors, once they were seen
        self._storing_ns: int | None = None  # when the step's first layer or request was stored
        self._store_slots = 0

    def planned(self, metadata: object, scheduler_output: SchedulerOutput) -> Iterator[Planned]:
        """List the step's load and store."""
        engine = self.part.engine()
        if engine is None or engine.step < 0 or not engine.block_size:  # steps number the transfers
            return
        copies = self._copies(metadata)
        owners = _Owners(scheduler_output)
        found: dict[Direction, tuple[list[str], list[int]]] = {}
        for copy in copies:
            ids = _blocks(copy, engine.block_size)
            owner = getattr(copy.request, "req_id", None) or owners.of(
                _blocks(copy._replace(first=0), engine.block_size)
            )
            requests, blocks = found.setdefault(copy.direction, ([], []))
            requests += [owner] * len(ids)
            blocks += ids
        for direction, (requests, blocks) in found.items():
            transfer = self.part.transfer(engine.step, direction)
            yield Planned(transfer, direction, requests, blocks, [-1] * len(blocks))

    def attach_worker(self) -> bool:
        """Hook the saving of layers, or what LMCache stores a request with."""
        if self._layers_copy:
            self.part.hook(self.part.connector, SAVE_LAYER, self._storing)
            return True
        inside = self.part.optional.read(self.part.connector, "_lmcache_engine", _BEGUN)
        engine = None if inside is None else self.part.optional.read(inside, "lmcache_engine", _BEGUN)
        if engine is not None:  # else LMCache did not start, and stores nothing
            self.part.hook(engine, STORE, self._storing)
        return True

    def after_load(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Record the step's load, if it has one."""
        end_ns = time.monotonic_ns()
        if not self._slot_bytes:
            context = argument(args, kwargs, 0, "forward_context")
            layers = list(self.part.optional.read(context, "no_compile_layers", _LOADED, {}).values())
            with_cache = [layer for layer in layers if hasattr(layer, "kv_cache")]  # layers of experts have none
            if layers and not with_cache:
                self.part.optional.tell(layers[0], "kv_cache", _LOADED)
            caches = [layer.kv_cache for layer in with_cache if layer.kv_cache is not None]
            self._slot_bytes = sum(map(self._bytes_a_slot, caches))
        if slots := self._slots(Direction.load):
            self._record(Direction.load, slots, start_ns, start_ns, end_ns)

    def _storing(self, args: Args, kwargs: Kwargs) -> None:
        if self._storing_ns is None:
            self._storing_ns = time.monotonic_ns()

    def before_save(self) -> None:
        """Count what will be stored: LMCache marks it as stored on the way."""
        self._store_slots = self._slots(Direction.store)

    def after_save(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Record the step's store, if it has one: from the first layer or request to the end of the wait."""
        if slots := self._store_slots:
            first_ns = start_ns if self._storing_ns is None else self._storing_ns
            self._record(Direction.store, slots, min(start_ns, first_ns), first_ns, time.monotonic_ns())
        self._storing_ns, self._store_slots = None, 0

    def _record(self, direction: Direction, slots: int, asked_ns: int, start_ns: int, end_ns: int) -> None:
        step = self.part.step[1]
        if step < 0:  # steps number the transfers
            return
        transfer = self.part.transfer(step, direction)
        tiers = (Tier.gpu, self._tier) if direction is Direction.store else (self._tier, Tier.gpu)
        size, bytes_ = self._block_size(), slots * self._slot_bytes or -1
        blocks = -(-slots // size) if size else -1
        self._transfers.submitted(transfer, direction, tiers, blocks, submitted_ns=asked_ns, bytes_=bytes_)
        self._transfers.finished(transfer, finished_ns=end_ns, started_ns=start_ns, bytes_=bytes_)

    def _slots(self, direction: Direction) -> int:
        metadata = self.part.optional.read(self.part.connector, "_connector_metadata", _METADATA)
        if metadata is None:
            return 0
        return sum(copy.last - copy.first for copy in self._copies(metadata) if copy.direction is direction)

    def _block_size(self) -> int:
        """Read the tokens of a block; 0 if they are not known."""
        found = self.part.connector
        for name in ("_vllm_config", "cache_config", "block_size"):
            found = self.part.optional.read(found, name, _BYTES)
            if found is None:
                return 0
        return int(found)

    def _bytes_a_slot(self, kv_cache: _Tensor | list[_Tensor] | tuple[_Tensor, ...]) -> int:
        """Compute the bytes of a token in a layer's KV tensor; 0 if they are not known."""
        tensor = kv_cache[0] if isinstance(kv_cache, list | tuple) else kv_cache
        optional = self.part.optional
        config = optional.read(self.part.connector, "_kv_cache_config", _BYTES)
        slots = (optional.read(config, "num_blocks", _BYTES) or 0) * self._block_size() if config is not None else 0
        return int(tensor.numel() * tensor.element_size() // slots) if slots else 0

    def _copies(self, metadata: object) -> Iterator[_Copy]:
        optional = self.part.optional
        for request in optional.read(metadata, "requests", _METADATA, ()):
            slots = len(request.slot_mapping)
            if hasattr(request, "is_store"):
                yield _Copy(Direction.store if request.is_store else Direction.load, request, 0, slots)
                continue
            load: _LoadSpec | None = optional.read(request, "load_spec", _METADATA)
            save: _SaveSpec | None = optional.read(request, "save_spec", _METADATA)
            if load is not None and load.can_load:
                yield _Copy(Direction.load, request, load.vllm_cached_tokens, min(load.lmcache_cached_tokens, slots))
            if save is not None and save.can_save:
                yield _Copy(Direction.store, request, save.skip_leading_tokens, slots)


def _blocks(copy: _Copy, block_size: int) -> list[int]:
    """List the blocks of a copy's slots, in order."""
    first = copy.first // block_size * block_size
    slots = copy.request.slot_mapping[first : copy.last : block_size]
    return [int(slot) // block_size for slot in slots]


class _Owners:
    """Finds the request that owns blocks, by the step's block tables in their order."""

    def __init__(self, scheduler_output: SchedulerOutput) -> None:
        new = [(data.req_id, data.block_ids) for data in scheduler_output.scheduled_new_reqs]
        cached = scheduler_output.scheduled_cached_reqs
        old = zip(cached.req_ids, cached.new_block_ids, strict=True)
        self._left = [(id_, list(groups[0])) for id_, groups in (*new, *old) if groups]

    def of(self, blocks: list[int]) -> str:
        """Take the next request whose table begins with the blocks; empty if there is none."""
        for place, (request_id, table) in enumerate(self._left):
            if table[: len(blocks)] == blocks:
                del self._left[place]
                return str(request_id)
        return ""


ADAPTER = Declaration(
    BySlots,
    connectors=(
        f"{_V1}.example_connector:ExampleConnector",
        f"{_V1}.lmcache_connector:LMCacheConnectorV1",
    ),
    forms=(
        Form(
            "ExampleConnector",
            (Tier.disk,),
            "one load and one store a step, for it copies while the worker waits",
            "host time of the calls",
            "none",
        ),
        Form(
            "LMCacheConnectorV1",
            (Tier.other,),
            "one load and one store a step, by the slots in its metadata",
            "host time of the calls, of stores without the wait for their step's work",
            "none: LMCache keeps it to itself",
        ),
    ),
    hooks=(SAVE_LAYER,),
)
