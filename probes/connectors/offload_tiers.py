"""Offload tiers, kept by a manager or in a block pool: stores, hits and evictions of their blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from kvtrace.events import TIER_BLOCK, BlockOp, Direction, Tier, TierOp
from kvtrace.probes.connectors.adapter import Planned
from kvtrace.probes.connectors.part import TIER_PLACES, TIERS, Part, chunks_of, low_hashes
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import After, Args, Hook, Kwargs, Need, argument
from kvtrace.probes.optional_attributes import Followed, OptionalAttributes
from kvtrace.probes.vllm_types import Block, BlockPool, shape_of

_MANAGER, _PRIMARY = "vllm.v1.kv_offload.base:OffloadingManager", "vllm.v1.kv_offload.tiering.manager"
_TIERING = "vllm.v1.kv_offload.tiering.base"
_TIER = f"{_TIERING}:SecondaryTierManager"
_KIND, _CAPACITY, _HITS = "which kind of tier it is", "the tier's capacity", "whose hits in the tier"
_STORED = Need("vllm.v1.kv_offload.base:PrepareStoreOutput", "keys_to_store store_spec evicted_keys")
_CPU_MANAGER = "vllm.v1.kv_offload.cpu.manager:CPUOffloadingManager"
PREPARE_STORE = (
    Hook(
        f"{_MANAGER}.prepare_store",
        "what the tier takes in and gives up",
        needs=(
            _STORED,
            Need(_CPU_MANAGER, "medium", _KIND),
            Need(_CPU_MANAGER, "_num_chunks|_num_blocks", _CAPACITY),
            Need("vllm.v1.kv_offload.cpu.common:CPULoadStoreSpec", "block_ids", TIER_PLACES),
        ),
    ),
    Hook(
        f"{_PRIMARY}:CPUPrimaryTierOffloadingManager.prepare_write",
        "what the tier takes in and gives up",
        needs=(_STORED,),
        since="0.26.0",
    ),
)
COMPLETE_STORE = (
    Hook(f"{_MANAGER}.complete_store", "what the tier holds"),
    Hook(f"{_PRIMARY}:CPUPrimaryTierOffloadingManager.complete_write", "what the tier holds", since="0.26.0"),
)
PREPARE_LOAD = Hook(
    f"{_MANAGER}.prepare_load",
    "hits in the tier",
    needs=(Need("vllm.v1.kv_offload.base:ReqContext", "req_id", _HITS),),
)
RESET = Hook(f"{_MANAGER}.reset_cache", "resets of the tier")
_TIER_JOB = (
    Need(f"{_PRIMARY}:TieringOffloadingManager", "primary_tier secondary_tiers"),
    Need(f"{_TIERING}:TransferJob|{_TIERING}:JobMetadata", "job_id keys req_context"),
    Need(_TIER, "medium|tier_type", _KIND),
)
TIER_STORE = Hook(f"{_TIER}.submit_store", "transfers to a secondary tier", needs=_TIER_JOB, since="0.26.0")
TIER_LOAD = Hook(f"{_TIER}.submit_load", "transfers from a secondary tier", needs=_TIER_JOB, since="0.26.0")
TIER_FINISHED = Hook(
    f"{_TIER}.get_finished_jobs",
    "the ends of its transfers",
    needs=(Need(f"{_TIERING}:JobResult", "job_id success"),),
    since="0.26.0",
)
HOOKS = *PREPARE_STORE, *COMPLETE_STORE, PREPARE_LOAD, RESET, TIER_STORE, TIER_LOAD, TIER_FINISHED


@shape_of("vllm.v1.kv_offload.base:PrepareStoreOutput")
class _PreparedStore(Protocol):
    keys_to_store: Sequence[bytes]
    store_spec: object
    evicted_keys: Sequence[bytes]


@shape_of("vllm.v1.kv_offload.base:ReqContext")
class _RequestContext(Protocol):
    req_id: str


@shape_of(f"{_TIERING}:TransferJob|{_TIERING}:JobMetadata")
class _TierJob(Protocol):
    job_id: int
    keys: Iterable[bytes]
    req_context: _RequestContext


@shape_of(f"{_TIERING}:JobResult")
class _TierResult(Protocol):
    job_id: int
    success: bool


_BY_HASH = {BlockOp.cache: TierOp.store, BlockOp.evict: TierOp.evict}


class TierRows:
    """Records changes of a tier's blocks."""

    def __init__(self, part: Part, tier: Tier) -> None:
        self._part = part
        self._tier = tier
        self._emit = part.recorder.columns(TIER_BLOCK)
        self._emit_one = part.recorder.stream(TIER_BLOCK)

    def record(self, op: TierOp, blocks: list[int], keys: Sequence[bytes | None] = (), request_id: str = "") -> None:
        """Record changes of one kind.

        Args:
            op: The kind of change.
            blocks: Block ids of the tier; -1 where they are not known.
            keys: The hash of each block, with its KV cache group; empty if they have none.
            request_id: The request on whose behalf; empty for none.
        """
        engine = self._part.engine()
        if engine is None or not blocks:
            return
        moment, step = time.monotonic_ns(), engine.acting_step
        name = self._part.recorder.intern(self._part.name)
        request = engine.number(request_id) if request_id else 0
        lows, groups = low_hashes(keys) if keys else (0, 0)
        self._emit(
            len(blocks),
            time_ns=moment,
            step=step,
            connector=name,
            tier=self._tier,
            op=op,
            tier_block_id=blocks,
            request=request,
            block_hash=lows,
            kv_group=groups,
        )

    def record_one(self, op: TierOp, block: int, key: bytes) -> None:
        """Record a change of one block, at half the cost of a list of one."""
        engine = self._part.engine()
        if engine is not None:
            name, low = self._part.recorder.intern(self._part.name), int.from_bytes(key[-12:-4], "big")
            self._emit_one(
                time_ns=time.monotonic_ns(),
                step=engine.acting_step,
                connector=name,
                tier=self._tier,
                op=op,
                tier_block_id=block,
                request=0,
                block_hash=low,
                kv_group=key[-1],
            )


def capacity_of(manager: object, optional: OptionalAttributes) -> int | None:
    """The capacity of a manager's tier, in blocks or chunks."""
    capacity = getattr(manager, "_num_blocks", None)  # of older ones
    if capacity is None:
        capacity = optional.read(manager, "_num_chunks", _CAPACITY)
    return None if capacity is None else int(capacity)


class ManagerTier:
    """A tier kept by one of vLLM's `OffloadingManager`s."""

    def __init__(self, part: Part, manager: object) -> None:
        self._optional = part.optional
        medium = part.optional.read(manager, "medium", _KIND)
        tier = TIERS.get(str(getattr(medium, "value", medium)).lower().rpartition(".")[2], Tier.other)
        self._rows = TierRows(part, tier)
        self._block_of: dict[bytes, int] = {}
        self._follows = True  # what becomes of its blocks
        # The secondary tiers of vLLM reach the same methods under other names.
        for pair, after in (
            (PREPARE_STORE, self._after_prepare_store),
            (COMPLETE_STORE, self._after_complete_store),
        ):
            for declared in pair:
                if declared is pair[0] or hasattr(manager, declared.path[-1]):
                    part.hook(manager, declared, after=after, off=self._lose_track)
        part.hook(manager, PREPARE_LOAD, after=self._after_prepare_load)
        part.hook(manager, RESET, after=self._after_reset, off=self._lose_track)

    def _lose_track(self) -> None:
        """Forget where blocks lie: a hook is off."""
        self._follows = False
        self._block_of.clear()

    def _record(self, op: TierOp, keys: Iterable[bytes], request_id: str = "") -> None:
        keys = list(keys)
        self._rows.record(op, [self._block_of.get(key, -1) for key in keys], keys, request_id)

    def _after_prepare_store(self, _: None, output: _PreparedStore | None, args: Args, kwargs: Kwargs) -> None:
        if output is None:
            return
        self._record(TierOp.evict, output.evicted_keys)
        for key in output.evicted_keys:
            self._block_of.pop(key, None)
        ids = chunks_of(output.store_spec, self._optional)
        if self._follows and len(ids) == len(output.keys_to_store):
            self._block_of.update(zip(output.keys_to_store, ids, strict=True))
        self._record(TierOp.write, output.keys_to_store)

    def _after_complete_store(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        success = argument(args, kwargs, 2, "success", True)
        keys = list(argument(args, kwargs, 0, "keys"))
        self._record(TierOp.store if success else TierOp.drop, keys)
        if not success:
            for key in keys:
                self._block_of.pop(key, None)

    def _after_prepare_load(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        context = argument(args, kwargs, 1, "req_context")
        self._record(TierOp.hit, argument(args, kwargs, 0, "keys"), self._optional.read(context, "req_id", _HITS, ""))

    def _after_reset(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        self._block_of.clear()
        self._rows.record(TierOp.reset, [-1])


class PoolTier:
    """A tier kept in a block pool of vLLM's, recorded by the pool's allocations, hashes and evictions."""

    def __init__(self, part: Part, tier: Tier) -> None:
        self._rows = TierRows(part, tier)

    def changed(self, op: BlockOp, blocks: Sequence[Block]) -> None:
        """Record allocated, referenced or released blocks."""
        if op == BlockOp.allocate:
            self._rows.record(TierOp.write, [block.block_id for block in blocks])
        elif op == BlockOp.free:
            empty = [block for block in blocks if not block.is_null and not block.ref_cnt and block.block_hash is None]
            self._rows.record(TierOp.drop, [block.block_id for block in empty])

    def hashed(self, op: BlockOp, key: bytes, block: Block) -> None:
        """Record a block that can be found by a hash from now on, or not any more."""
        self._rows.record_one(_BY_HASH[op], block.block_id, key)

    def emptied(self) -> None:
        """Record that the pool was reset."""
        self._rows.record(TierOp.reset, [-1])

    def hits(self, load: Planned, block_pool: BlockPool) -> None:
        """Record blocks that will be loaded for requests."""
        by_request: dict[str, list[int]] = {}
        for request_id, block in zip(load.requests, load.other_blocks, strict=True):
            by_request.setdefault(request_id, []).append(block)
        for request_id, blocks in by_request.items():
            keys = [block_pool.blocks[block].block_hash for block in blocks]
            self._rows.record(TierOp.hit, blocks, keys, request_id)


class SecondaryTier:
    """A tier behind the CPU one: disk, another host. Its transfers run in the engine's process."""

    def __init__(self, part: Part, tier: object, level: int) -> None:
        self._part, self._level = part, level
        medium = getattr(tier, "medium", None)  # since vLLM 0.27
        kind = str(medium.value if medium is not None else part.optional.read(tier, "tier_type", _KIND, "")).lower()
        remote = getattr(getattr(tier, "locality", None), "value", "") == "REMOTE"
        self._tier = Tier.remote if remote else TIERS.get({"fs": "disk", "p2p": "remote"}.get(kind, kind), Tier.other)
        self._block_bytes = int(getattr(tier, "_block_size_bytes", 0) or 0)
        self._transfers = Transfers(part)
        self._jobs: Followed[int, tuple[int, int]] = Followed()
        self._rows = TierRows(part, self._tier)
        part.hook(tier, TIER_STORE, after=self._submitted(Direction.store))
        part.hook(tier, TIER_LOAD, after=self._submitted(Direction.load))
        part.hook_results(tier, TIER_FINISHED, self._finished, self._jobs.off)

    def _submitted(self, direction: Direction) -> After:
        tiers = (Tier.cpu, self._tier) if direction is Direction.store else (self._tier, Tier.cpu)

        def after(_: None, __: object, args: Args, kwargs: Kwargs) -> None:
            job: _TierJob = args[0] if args else next(iter(kwargs.values()))
            engine = self._part.engine()
            keys = list(job.keys)
            transfer = self._part.transfer(job.job_id, direction, self._level)
            bytes_ = len(keys) * self._block_bytes
            self._jobs[job.job_id] = transfer, bytes_
            step = (engine.pid, engine.step) if engine is not None else None
            now = time.monotonic_ns()
            self._transfers.submitted(
                transfer, direction, tiers, len(keys), submitted_ns=now, bytes_=bytes_ or -1, step=step
            )
            if direction is Direction.load:
                self._rows.record(TierOp.hit, [-1] * len(keys), keys, job.req_context.req_id)

        return after

    def _finished(self, results: list[_TierResult]) -> None:
        for result in results:
            transfer, bytes_ = self._jobs.pop(result.job_id, (None, 0))
            if transfer is None:
                continue
            seconds, reported = getattr(result, "transfer_time", None), getattr(result, "transfer_bytes", None)
            self._transfers.finished(
                transfer,
                bytes_=int(reported) if reported is not None else bytes_ or -1,
                reported_ns=-1 if seconds is None else int(seconds * 1e9),
                success=bool(result.success),
            )
