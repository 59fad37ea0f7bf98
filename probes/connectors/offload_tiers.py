"""The tiers behind an OffloadingConnector: what their managers store, find and give up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kvtrace.events import TIER_BLOCK, Direction, Tier, TierOp
from kvtrace.probes.connectors.part import TIERS, Part, low_hash, number_of_blocks
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument

_MANAGER, _PRIMARY = "vllm.v1.kv_offload.base:OffloadingManager", "vllm.v1.kv_offload.tiering.manager"
_TIERING = "vllm.v1.kv_offload.tiering.base"
_TIER = f"{_TIERING}:SecondaryTierManager"
_STORED = Need("vllm.v1.kv_offload.base:PrepareStoreOutput", "keys_to_store store_spec evicted_keys")
_CPU_MANAGER = "vllm.v1.kv_offload.cpu.manager:CPUOffloadingManager"
PREPARE_STORE = (
    Hook(
        f"{_MANAGER}.prepare_store",
        "what the tier takes in and gives up",
        needs=(
            _STORED,
            Need(_CPU_MANAGER, "medium", "which kind of tier it is"),
            Need(_CPU_MANAGER, "_num_chunks|_num_blocks", "the tier's capacity"),
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
PREPARE_LOAD = Hook(f"{_MANAGER}.prepare_load", "hits in the tier")
RESET = Hook(f"{_MANAGER}.reset_cache", "resets of the tier")
_TIER_JOB = (
    Need(f"{_PRIMARY}:TieringOffloadingManager", "primary_tier secondary_tiers"),
    Need(f"{_TIERING}:TransferJob|{_TIERING}:JobMetadata", "job_id keys req_context"),
    Need(_TIER, "medium|tier_type", "which kind of tier it is"),
)
TIER_STORE = Hook(f"{_TIER}.submit_store", "transfers to a secondary tier", needs=_TIER_JOB, since="0.26.0")
TIER_LOAD = Hook(f"{_TIER}.submit_load", "transfers from a secondary tier", needs=_TIER_JOB, since="0.26.0")
TIER_FINISHED = Hook(
    f"{_TIER}.get_finished_jobs",
    "the ends of its transfers",
    needs=(Need(f"{_TIERING}:JobResult", "job_id success"),),
    since="0.26.0",
)


class TierRows:
    """Records changes of a tier's blocks."""

    def __init__(self, part: Part, tier: Tier) -> None:
        self._part = part
        self._tier = tier
        self._emit = part.recorder.rows_stream(TIER_BLOCK)
        self._emit_one = part.recorder.stream(TIER_BLOCK)

    def record(self, op: TierOp, changes: Iterable[tuple[int, int, int]], request_id: str = "") -> None:
        """Record changes of one kind: (the tier's block or -1, hash, KV cache group) each."""
        engine = self._part.engine()
        if engine is None:
            return
        moment, step, count = time.monotonic_ns(), engine.acting_step, 0
        rows: list[int] = []
        name = self._part.recorder.intern(self._part.name)
        request = engine.number(request_id) if request_id else 0
        for block, low, group in changes:
            rows += (moment, step, name, self._tier, op, block, request, low, group, 1)
            count += 1
        if count:
            self._emit(rows, count)

    def record_one(self, op: TierOp, block: int, key: bytes) -> None:
        """Record a change of one block: at half the cost of a list of one."""
        engine = self._part.engine()
        if engine is not None:
            name, low = self._part.recorder.intern(self._part.name), int.from_bytes(key[-12:-4], "big")
            self._emit_one(time.monotonic_ns(), engine.acting_step, name, self._tier, op, block, 0, low, key[-1])


class ManagerTier:
    """A tier kept by one of vLLM's `OffloadingManager`s."""

    def __init__(self, part: Part, manager: Any) -> None:
        medium = getattr(manager, "medium", None)
        tier = TIERS.get(str(getattr(medium, "value", medium)).lower().rpartition(".")[2], Tier.other)
        self._rows = TierRows(part, tier)
        self._block_of: dict[bytes, int] = {}
        # The secondary tiers of vLLM reach the same methods under other names.
        for declared in PREPARE_STORE:
            if hasattr(manager, declared.path[-1]):
                part.hook(manager, declared, after=self._after_prepare_store)
        for declared in COMPLETE_STORE:
            if hasattr(manager, declared.path[-1]):
                part.hook(manager, declared, after=self._after_complete_store)
        part.hook(manager, PREPARE_LOAD, after=self._after_prepare_load)
        if hasattr(manager, RESET.path[-1]):
            part.hook(manager, RESET, after=self._after_reset)

    def _row(self, key: bytes) -> tuple[int, int, int]:
        return (self._block_of.get(key, -1), *low_hash(key))

    def _after_prepare_store(self, _: None, output: Any, args: Args, kwargs: Kwargs) -> None:
        if output is None:
            return
        self._rows.record(TierOp.evict, [self._row(key) for key in output.evicted_keys])
        for key in output.evicted_keys:
            self._block_of.pop(key, None)
        ids = number_of_blocks(output.store_spec)
        if len(ids) == len(output.keys_to_store):
            self._block_of.update(zip(output.keys_to_store, ids, strict=True))
        self._rows.record(TierOp.write, [self._row(key) for key in output.keys_to_store])

    def _after_complete_store(self, _: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        success = argument(args, kwargs, 2, "success", True)
        keys = list(argument(args, kwargs, 0, "keys"))
        self._rows.record(TierOp.store if success else TierOp.drop, [self._row(key) for key in keys])
        if not success:
            for key in keys:
                self._block_of.pop(key, None)

    def _after_prepare_load(self, _: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        context = argument(args, kwargs, 1, "req_context")
        rows = [self._row(key) for key in argument(args, kwargs, 0, "keys")]
        self._rows.record(TierOp.hit, rows, getattr(context, "req_id", ""))

    def _after_reset(self, _: None, __: Any, args: Args, kwargs: Kwargs) -> None:
        self._block_of.clear()
        self._rows.record(TierOp.reset, [(-1, 0, 0)])


class SecondaryTier:
    """A tier behind the CPU one: disk, another host. Its transfers run in the engine's process."""

    def __init__(self, part: Part, tier: Any, level: int) -> None:
        self._part, self._level = part, level
        medium = getattr(tier, "medium", None)
        kind = str(getattr(medium, "value", getattr(tier, "tier_type", ""))).lower()
        remote = getattr(getattr(tier, "locality", None), "value", "") == "REMOTE"
        self._tier = Tier.remote if remote else TIERS.get({"fs": "disk", "p2p": "remote"}.get(kind, kind), Tier.other)
        self._block_bytes = int(getattr(tier, "_block_size_bytes", 0) or 0)
        self._transfers = Transfers(part)
        self._jobs: dict[int, tuple[int, int]] = {}
        self._rows = TierRows(part, self._tier)
        part.hook(tier, TIER_STORE, after=self._submitted(Direction.store))
        part.hook(tier, TIER_LOAD, after=self._submitted(Direction.load))
        part.hook_results(tier, TIER_FINISHED, self._finished)

    def _submitted(self, direction: Direction) -> Any:
        tiers = (Tier.cpu, self._tier) if direction is Direction.store else (self._tier, Tier.cpu)

        def after(_: None, __: Any, args: Args, kwargs: Kwargs) -> None:
            job, engine = args[0] if args else next(iter(kwargs.values())), self._part.engine()
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
                self._rows.record(TierOp.hit, [(-1, *low_hash(key)) for key in keys], job.req_context.req_id)

        return after

    def _finished(self, results: list[Any]) -> None:
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
