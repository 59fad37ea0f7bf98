"""vLLM's SimpleCPUOffloadConnector, with its CPU and its disk backend.

A step has at most one store and one load, numbered by event counters of the scheduler's side. kvtrace records a pair
of CUDA events around each copy of the CPU backend, to measure its time on the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kvtrace.events import Direction, Tier
from kvtrace.probes.connectors.adapter import Adapter, Declaration, Facts, Form, Planned
from kvtrace.probes.connectors.offload_tiers import PoolTier
from kvtrace.probes.connectors.part import TIERS, Part
from kvtrace.probes.connectors.scheduler_side import CONTENT
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.optional_attributes import ABSENT
from kvtrace.probes.vllm_symbols import BLOCK, CONNECTOR
from kvtrace.probes.vllm_types import BlockPool, SchedulerOutput, shape_of

if TYPE_CHECKING:
    from torch.cuda import Event, Stream

_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector"
_OFFLOAD = "vllm.v1.simple_kv_offload"
_SCHEDULER, _WORKER = f"{_OFFLOAD}.manager:SimpleCPUOffloadScheduler", f"{_OFFLOAD}.worker:SimpleCPUOffloadWorker"
_DISK = f"{_OFFLOAD}.disk_backend:DiskBackend"
_KIND, _OWNERS, _DEVICE_TIMES = "which kind of tier it is", "whose blocks are stored", "device times of copies"
_TRANSFERS, _ENDS = "transfers of a SimpleCPUOffloadConnector", "the ends of transfers"
COPY = Hook(
    f"{_OFFLOAD}.copy_backend:DmaCopyBackend.launch_copy",
    "transfers",
    needs=(
        Need(f"{_CONNECTOR}:SimpleCPUOffloadConnector", "scheduler_manager worker_handler"),
        Need(_SCHEDULER, "cpu_block_pool num_cpu_blocks"),
        Need(BLOCK, "block_hash", CONTENT),
        Need(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata", "load_event load_gpu_blocks load_cpu_blocks"),
        Need(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata", "store_event store_gpu_blocks store_cpu_blocks"),
        Need(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata", "load_event_to_reqs"),
        Need(_SCHEDULER, "_reqs_to_load"),
        Need(f"{_OFFLOAD}.manager:LoadRequestState", "transfer_meta"),
        Need(f"{_OFFLOAD}.manager:TransferMeta", "gpu_block_ids"),
        Need(f"{_OFFLOAD}.manager:StoreRequestState", "block_ids num_stored_blocks"),
        Need(_SCHEDULER, "_reqs_to_store _store_event_to_reqs", _OWNERS),
        Need(_WORKER, "_backend gpu_kv_caches"),
        Need(_WORKER, "_store_hwm _load_hwm", _ENDS),
        Need(f"{_OFFLOAD}.copy_backend:DmaCopyBackend", "_store_stream _load_stream", _DEVICE_TIMES),
        Need(CONNECTOR, "_kv_transfer_config", _KIND),
        Need("vllm.config.kv_transfer:KVTransferConfig", "kv_connector_extra_config"),
    ),
)
DISK_COPY = Hook(f"{_DISK}.launch_copy", "transfers to and from disk", since="0.28.0")
DISK_STORE = Hook(f"{_DISK}._do_store", "when disk transfers run", since="0.28.0")
DISK_LOAD = Hook(f"{_DISK}._do_load", "when disk transfers run", since="0.28.0")
COPY_BLOCKS = Hook(f"{_OFFLOAD}.copy_backend:copy_blocks", _DEVICE_TIMES)


@shape_of(f"{_OFFLOAD}.manager:TransferMeta")
class _TransferMeta(Protocol):
    gpu_block_ids: Sequence[int]


@shape_of(f"{_OFFLOAD}.manager:LoadRequestState")
class _Load(Protocol):
    transfer_meta: _TransferMeta


@shape_of(f"{_OFFLOAD}.manager:StoreRequestState")
class _Store(Protocol):
    block_ids: Sequence[Sequence[int]]
    num_stored_blocks: Sequence[int]


@shape_of(_SCHEDULER)
class _SchedulerHalf(Protocol):
    cpu_block_pool: BlockPool
    num_cpu_blocks: int
    _reqs_to_load: Mapping[str, _Load]
    _reqs_to_store: Mapping[str, _Store]


@shape_of(_WORKER)
class _WorkerHalf(Protocol):
    _backend: object


@shape_of(f"{_CONNECTOR}:SimpleCPUOffloadConnector")
class _Connector(Protocol):
    scheduler_manager: _SchedulerHalf | None
    worker_handler: _WorkerHalf | None


@shape_of(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata")
class _Metadata(Protocol):
    load_event: int
    load_gpu_blocks: Sequence[int]
    load_cpu_blocks: Sequence[int]
    load_event_to_reqs: Mapping[int, Sequence[str]]
    store_event: int
    store_gpu_blocks: Sequence[int]
    store_cpu_blocks: Sequence[int]


class _Pending:
    """A submitted copy."""

    __slots__ = ("begin", "blocks", "end", "event", "finished_ns", "started_ns", "stream", "transfer")

    def __init__(self, transfer: int, event: int, blocks: Sequence[int], stream: Stream | None) -> None:
        self.transfer, self.event, self.stream = transfer, event, stream
        self.blocks = blocks  # kept: it is found again by this list's identity
        self.started_ns = self.finished_ns = 0
        self.begin: Event | None = None
        self.end: Event | None = None


class SimpleCpu(Adapter):
    """SimpleCPUOffloadConnector."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._connector: _Connector = part.connector
        self._transfers = Transfers(part)
        self._pending: dict[Direction, list[_Pending]] = {Direction.store: [], Direction.load: []}
        self._copies: dict[int, _Pending] = {}  # by the identity of the list of source blocks
        self._polled = True
        self._block_bytes = 0
        self._tier = Tier.cpu
        self._pool_tier: PoolTier | None = None

    @staticmethod
    def fits(connector: object) -> bool:
        """Check that the connector has a half for the scheduler and one for the worker."""
        return hasattr(connector, "scheduler_manager") and hasattr(connector, "worker_handler")

    def attach_scheduler(self) -> Facts:
        """Record the connector's own block pool as a tier."""
        manager = self._connector.scheduler_manager
        if manager is None:  # prefix caching is off, and the connector with it
            return {}
        tier = self._kind()
        self._pool_tier = PoolTier(self.part, tier)
        self.part.own_tier(manager.cpu_block_pool, self._pool_tier)
        return {"tier": tier.name, "capacity_blocks": int(manager.num_cpu_blocks) - 1, "blocks_per_chunk": 1}

    def _scheduler_half(self) -> _SchedulerHalf:
        half = self._connector.scheduler_manager
        assert half is not None  # there is one that plans transfers
        return half

    def _worker_half(self) -> _WorkerHalf:
        half = self._connector.worker_handler
        assert half is not None  # there is one that copies
        return half

    def _kind(self) -> Tier:
        """The kind of tier, by the option `kv_offload_backend`."""
        config = self.part.optional.read(self.part.connector, "_kv_transfer_config", _KIND)
        if config is None:
            return Tier.other
        wanted = (config.kv_connector_extra_config or {}).get("kv_offload_backend", "cpu")
        return TIERS.get(str(wanted), Tier.other)

    def planned(self, metadata: _Metadata, scheduler_output: SchedulerOutput) -> Iterable[Planned]:
        """List the step's load and store."""
        return self._copies_of(metadata) if metadata.load_gpu_blocks or metadata.store_gpu_blocks else ()

    def _copies_of(self, metadata: _Metadata) -> Iterator[Planned]:
        if metadata.load_gpu_blocks:
            transfer = self.part.transfer(metadata.load_event, Direction.load)
            blocks = list(metadata.load_gpu_blocks), list(metadata.load_cpu_blocks)
            load = Planned(transfer, Direction.load, self._load_owners(metadata), *blocks)
            if self._pool_tier is not None:
                self._pool_tier.hits(load, self._scheduler_half().cpu_block_pool)
            yield load
        if metadata.store_gpu_blocks:
            transfer = self.part.transfer(metadata.store_event, Direction.store)
            blocks = list(metadata.store_gpu_blocks), list(metadata.store_cpu_blocks)
            yield Planned(transfer, Direction.store, self._store_owners(metadata), *blocks)

    def _load_owners(self, metadata: _Metadata) -> list[str]:
        states = self._scheduler_half()._reqs_to_load
        owners: list[str] = []
        for request_id in metadata.load_event_to_reqs.get(metadata.load_event, ()):
            owners += [request_id] * len(states[request_id].transfer_meta.gpu_block_ids)
        return owners if len(owners) == len(metadata.load_gpu_blocks) else [""] * len(metadata.load_gpu_blocks)

    def _store_owners(self, metadata: _Metadata) -> list[str]:
        """Find the request of each stored block. The lazy mode stores blocks that no request owns."""
        manager = self._scheduler_half()
        found: dict[int, str] = {}
        wanted = set(metadata.store_gpu_blocks)
        stored = self.part.optional.read(manager, "_store_event_to_reqs", _OWNERS, {})
        for request_id in stored.get(metadata.store_event, ()):
            state = manager._reqs_to_store.get(request_id)
            if state is None:
                continue
            for ids, cursor in zip(state.block_ids, state.num_stored_blocks, strict=True):
                for block in reversed(ids[:cursor]):  # what was chosen just now lies before the cursor
                    if block not in wanted:
                        break
                    found.setdefault(block, request_id)
        return [found.get(block, "") for block in metadata.store_gpu_blocks]

    def attach_worker(self) -> bool:
        """Hook the backend that copies, once it is built."""
        handler = self._connector.worker_handler
        if handler is None:
            return True
        optional = self.part.optional
        backend, caches = (optional.read(handler, name, _TRANSFERS, ABSENT) for name in ("_backend", "gpu_kv_caches"))
        if backend is ABSENT or caches is ABSENT:
            return True
        if backend is None or caches is None:
            return False
        self._block_bytes = sum(tensor.stride(0) * tensor.element_size() for tensor in caches.values())
        self._tier = self._kind()
        if self._tier is Tier.disk:
            self.part.hook(backend, DISK_COPY, before=self._launched)
            for declared in (DISK_STORE, DISK_LOAD):
                self.part.hook(backend, declared, before=self._begun, after=self._done)
        else:
            self.part.hook(backend, COPY, before=self._launched)
            self.part.hook_function(COPY_BLOCKS, self._copying, self._copied)
        return True

    def _launched(self, args: Args, kwargs: Kwargs) -> None:
        blocks, is_store = argument(args, kwargs, 0, "src_blocks"), argument(args, kwargs, 2, "is_store")
        event, direction = argument(args, kwargs, 3, "event_idx"), Direction.store if is_store else Direction.load
        backend = self._worker_half()._backend
        stream = self.part.optional.read(backend, "_store_stream" if is_store else "_load_stream", _DEVICE_TIMES)
        pending = _Pending(self.part.transfer(event, direction), event, blocks, stream)
        if self._polled:
            self._copies[id(blocks)] = pending
            self._pending[direction].append(pending)
        tiers = (Tier.gpu, self._tier) if is_store else (self._tier, Tier.gpu)
        self._transfers.submitted(
            pending.transfer,
            direction,
            tiers,
            len(blocks),
            submitted_ns=time.monotonic_ns(),
            bytes_=len(blocks) * self._block_bytes,
        )

    def _begun(self, args: Args, kwargs: Kwargs) -> _Pending | None:
        """Note that the backend's thread has begun a copy."""
        pending = self._copies.get(id(args[0]))
        if pending is not None:
            pending.started_ns = time.monotonic_ns()
        return pending

    def _done(self, pending: _Pending | None, _: object, args: Args, kwargs: Kwargs) -> None:
        if pending is not None:
            pending.finished_ns = time.monotonic_ns()

    def _copying(self, args: Args, kwargs: Kwargs) -> _Pending | None:
        pending = self._begun(args, kwargs)
        if pending is not None:
            pending.begin = _stamp(pending.stream)
        return pending

    def _copied(self, pending: _Pending | None, _: object, args: Args, kwargs: Kwargs) -> None:
        if pending is not None:
            pending.end = _stamp(pending.stream)

    def after_poll(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Record finished copies: the worker keeps the highest finished event of each direction."""
        handler = self._worker_half()
        for direction, reached in ((Direction.store, "_store_hwm"), (Direction.load, "_load_hwm")):
            waiting = self._pending[direction]
            if not waiting:
                continue
            highest = self.part.optional.read(handler, reached, _ENDS)
            if highest is None:
                self.without_polls()
                return
            while waiting and waiting[0].event <= highest:
                self._finished(waiting.pop(0))

    def without_polls(self) -> None:
        """Forget unfinished copies."""
        self._polled = False
        self._copies.clear()
        for waiting in self._pending.values():
            waiting.clear()

    def _finished(self, pending: _Pending) -> None:
        self._copies.pop(id(pending.blocks), None)
        device_ns = -1
        if pending.begin is not None and pending.end is not None:
            device_ns = int(pending.begin.elapsed_time(pending.end) * 1e6)
        self._transfers.finished(
            pending.transfer,
            finished_ns=pending.finished_ns or None,
            started_ns=pending.started_ns,
            bytes_=len(pending.blocks) * self._block_bytes,
            device_ns=device_ns,
        )


def _stamp(stream: Stream | None) -> Event | None:
    """Record a timing event on a CUDA stream; None without a GPU or a known stream."""
    import torch

    if stream is None or not torch.cuda.is_available():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


ADAPTER = Declaration(
    SimpleCpu,
    connectors=(f"{_CONNECTOR}:SimpleCPUOffloadConnector",),
    forms=(
        Form(
            "SimpleCPUOffloadConnector, CPU",
            (Tier.cpu,),
            "all, with hashes and requests (lazy mode keeps no requests)",
            "CUDA events that kvtrace records around each copy",
            "its block pool",
        ),
        Form(
            "SimpleCPUOffloadConnector, disk",
            (Tier.disk,),
            "all",
            "host time of the disk threads",
            "its block pool",
            since="0.28.0",
        ),
    ),
    hooks=(COPY, DISK_COPY, DISK_STORE, DISK_LOAD, COPY_BLOCKS),
)
