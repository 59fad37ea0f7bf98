"""vLLM's SimpleCPUOffloadConnector, with its CPU and its disk backend.

A step has at most one store and one load, numbered by event counters of the scheduler's side. How long
the CPU backend's copy took on the GPU is measured by a pair of CUDA events that kvtrace records around it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kvtrace.events import BlockOp, Direction, Tier, TierOp
from kvtrace.probes.connectors.offload_tiers import TierRows
from kvtrace.probes.connectors.part import Adapter, Part, Planned, low_hash
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.owners import BLOCK

_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector"
_OFFLOAD = "vllm.v1.simple_kv_offload"
_SCHEDULER, _WORKER = f"{_OFFLOAD}.manager:SimpleCPUOffloadScheduler", f"{_OFFLOAD}.worker:SimpleCPUOffloadWorker"
_DISK = f"{_OFFLOAD}.disk_backend:DiskBackend"
COPY = Hook(
    f"{_OFFLOAD}.copy_backend:DmaCopyBackend.launch_copy",
    "transfers",
    needs=(
        Need(f"{_CONNECTOR}:SimpleCPUOffloadConnector", "scheduler_manager worker_handler"),
        Need(_SCHEDULER, "cpu_block_pool num_cpu_blocks"),
        Need(BLOCK, "block_hash", "the content of the tier's blocks"),
        Need(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata", "load_event load_gpu_blocks load_cpu_blocks"),
        Need(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata", "store_event store_gpu_blocks store_cpu_blocks"),
        Need(f"{_OFFLOAD}.metadata:SimpleCPUOffloadMetadata", "load_event_to_reqs"),
        Need(_SCHEDULER, "_reqs_to_load"),
        Need(f"{_OFFLOAD}.manager:LoadRequestState", "transfer_meta"),
        Need(f"{_OFFLOAD}.manager:TransferMeta", "gpu_block_ids"),
        Need(f"{_OFFLOAD}.manager:StoreRequestState", "block_ids num_stored_blocks"),
        Need(_SCHEDULER, "_reqs_to_store _store_event_to_reqs", "whose blocks are stored"),
        Need(_WORKER, "_backend gpu_kv_caches"),
        Need(_WORKER, "_store_hwm _load_hwm", "the ends of transfers"),
    ),
)
DISK_COPY = Hook(f"{_DISK}.launch_copy", "transfers to and from disk", since="0.29.0")
DISK_STORE = Hook(f"{_DISK}._do_store", "when disk transfers run", since="0.29.0")
DISK_LOAD = Hook(f"{_DISK}._do_load", "when disk transfers run", since="0.29.0")
COPY_BLOCKS = Hook(f"{_OFFLOAD}.copy_backend:copy_blocks", "device times of copies")


class _Pending:
    """A submitted copy."""

    __slots__ = ("begin", "blocks", "end", "event", "finished_ns", "started_ns", "stream", "transfer")

    def __init__(self, transfer: int, event: int, blocks: Any, stream: Any) -> None:
        self.transfer, self.event, self.stream = transfer, event, stream
        self.blocks = blocks  # kept: it is found again by this list's identity
        self.started_ns = self.finished_ns = 0
        self.begin: Any = None
        self.end: Any = None


class SimpleCpu(Adapter):
    """SimpleCPUOffloadConnector."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._transfers = Transfers(part)
        self._pending: dict[Direction, list[_Pending]] = {Direction.store: [], Direction.load: []}
        self._copies: dict[int, _Pending] = {}  # by the identity of the list of source blocks
        self._block_bytes = 0
        self._tier = Tier.cpu
        self._pool_tier: _PoolTier | None = None

    @staticmethod
    def fits(connector: Any) -> bool:
        """Whether it has the two halves of a SimpleCPUOffloadConnector."""
        return hasattr(connector, "scheduler_manager") and hasattr(connector, "worker_handler")

    def attach_scheduler(self) -> dict[str, Any]:
        """Have the tier's own block pool recorded as a tier."""
        manager = self.part.connector.scheduler_manager
        if manager is None:  # prefix caching is off, and the connector with it
            return {}
        disk = str(getattr(manager, "kv_event_medium", "cpu")).lower() != "cpu"
        tier = Tier.disk if disk else Tier.cpu
        self._pool_tier = _PoolTier(self.part, tier)
        self.part.own_tier(manager.cpu_block_pool, self._pool_tier)
        return {"tier": tier.name, "capacity_blocks": int(manager.num_cpu_blocks) - 1, "blocks_per_chunk": 1}

    def planned(self, metadata: Any, scheduler_output: Any) -> Iterator[Planned]:
        """The step's load and store."""
        if metadata.load_gpu_blocks:
            pairs = zip(self._load_owners(metadata), metadata.load_gpu_blocks, metadata.load_cpu_blocks, strict=True)
            load = Planned(self.part.transfer(metadata.load_event, Direction.load), Direction.load, list(pairs))
            if self._pool_tier is not None:
                self._pool_tier.hits(load, self.part.connector.scheduler_manager.cpu_block_pool)
            yield load
        if metadata.store_gpu_blocks:
            owners = self._store_owners(metadata)
            pairs = zip(owners, metadata.store_gpu_blocks, metadata.store_cpu_blocks, strict=True)
            transfer = self.part.transfer(metadata.store_event, Direction.store)
            yield Planned(transfer, Direction.store, list(pairs))

    def _load_owners(self, metadata: Any) -> list[str]:
        states, owners = self.part.connector.scheduler_manager._reqs_to_load, []
        for request_id in metadata.load_event_to_reqs.get(metadata.load_event, ()):
            owners += [request_id] * len(states[request_id].transfer_meta.gpu_block_ids)
        return owners if len(owners) == len(metadata.load_gpu_blocks) else [""] * len(metadata.load_gpu_blocks)

    def _store_owners(self, metadata: Any) -> list[str]:
        """Whose blocks are stored. The lazy mode stores blocks that are nobody's."""
        manager = self.part.connector.scheduler_manager
        found: dict[int, str] = {}
        wanted = set(metadata.store_gpu_blocks)
        for request_id in getattr(manager, "_store_event_to_reqs", {}).get(metadata.store_event, ()):
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
        """Hook what copies, once it is there."""
        handler = self.part.connector.worker_handler
        backend = getattr(handler, "_backend", None)
        caches = getattr(handler, "gpu_kv_caches", None)
        if handler is None:
            return True
        if backend is None or caches is None:
            return False
        self._block_bytes = sum(tensor.stride(0) * tensor.element_size() for tensor in caches.values())
        if hasattr(backend, "_do_store"):
            self._tier = Tier.disk
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
        backend = self.part.connector.worker_handler._backend
        stream = getattr(backend, "_store_stream" if is_store else "_load_stream", None)
        pending = _Pending(self.part.transfer(event, direction), event, blocks, stream)
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
        """The backend's thread took a copy up."""
        pending = self._copies.get(id(args[0]))
        if pending is not None:
            pending.started_ns = time.monotonic_ns()
        return pending

    def _done(self, pending: _Pending | None, _: Any, args: Args, kwargs: Kwargs) -> None:
        if pending is not None:
            pending.finished_ns = time.monotonic_ns()

    def _copying(self, args: Args, kwargs: Kwargs) -> _Pending | None:
        pending = self._begun(args, kwargs)
        if pending is not None:
            pending.begin = _stamp(pending.stream)
        return pending

    def _copied(self, pending: _Pending | None, _: Any, args: Args, kwargs: Kwargs) -> None:
        if pending is not None:
            pending.end = _stamp(pending.stream)

    def after_poll(self) -> None:
        """Record what the worker found finished: it keeps the highest finished event of each direction."""
        handler = self.part.connector.worker_handler
        for direction, reached in ((Direction.store, "_store_hwm"), (Direction.load, "_load_hwm")):
            waiting, highest = self._pending[direction], getattr(handler, reached, -1)
            while waiting and waiting[0].event <= highest:
                self._finished(waiting.pop(0))

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


def _stamp(stream: Any) -> Any:
    """A timing event recorded on a CUDA stream; None where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


class _PoolTier:
    """The tier's block pool: what its allocations, hash assignments and evictions mean for the tier."""

    def __init__(self, part: Part, tier: Tier) -> None:
        self._rows = TierRows(part, tier)

    def changed(self, op: BlockOp, blocks: Any) -> None:
        """Blocks were allocated, referenced or released."""
        if op is BlockOp.allocate:
            self._rows.record(TierOp.write, [(block.block_id, 0, 0) for block in blocks])
        elif op is BlockOp.free:
            empty = [block for block in blocks if not block.is_null and not block.ref_cnt and block.block_hash is None]
            self._rows.record(TierOp.drop, [(block.block_id, 0, 0) for block in empty])

    def hashed(self, op: BlockOp, key: bytes, block: Any) -> None:
        """A block became findable by a hash, or is no longer."""
        self._rows.record_one(_BY_HASH[op], block.block_id, key)

    def emptied(self) -> None:
        """The pool was reset."""
        self._rows.record(TierOp.reset, [(-1, 0, 0)])

    def hits(self, load: Planned, block_pool: Any) -> None:
        """Blocks will be loaded for requests."""
        by_request: dict[str, list[tuple[int, int, int]]] = {}
        for request_id, _, block in load.blocks:
            row = (block, *low_hash(block_pool.blocks[block].block_hash))
            by_request.setdefault(request_id, []).append(row)
        for request_id, rows in by_request.items():
            self._rows.record(TierOp.hit, rows, request_id)


_BY_HASH = {BlockOp.cache: TierOp.store, BlockOp.evict: TierOp.evict}
