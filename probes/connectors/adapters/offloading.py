"""vLLM's OffloadingConnector: its jobs, its CPU tier and, where it has them, secondary tiers.

The scheduler's side numbers the jobs, and the metadata brings them to the workers. The time of a copy comes from the
worker's `TransferResult`: measured by CUDA events with vLLM's own worker, otherwise by whatever the spec's worker uses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from kvtrace.events import Direction, Tier
from kvtrace.probes.connectors import offload_tiers
from kvtrace.probes.connectors.adapter import Adapter, Declaration, Facts, Form, Planned
from kvtrace.probes.connectors.offload_tiers import ManagerTier, SecondaryTier, capacity_of
from kvtrace.probes.connectors.part import TIER_PLACES, Part, chunks_of, listed
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import After, Args, Hook, Kwargs, Need, argument
from kvtrace.probes.optional_attributes import ABSENT, Followed
from kvtrace.probes.vllm_types import SchedulerOutput, shape_of

_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"
_JOB, _RESULT = f"{_CONNECTOR}.common:TransferJob", "vllm.v1.kv_offload.base:TransferResult"
SUBMIT = tuple(
    Hook(
        f"vllm.v1.kv_offload.base:OffloadingWorker.{name}",
        lost,
        needs=(
            Need(f"{_CONNECTOR}_connector:OffloadingConnector", "connector_scheduler connector_worker"),
            Need(f"{_CONNECTOR}.worker:OffloadingConnectorWorker", "worker"),
            Need(f"{_CONNECTOR}.scheduler:OffloadingConnectorScheduler", "manager config"),
            Need(f"{_CONNECTOR}.scheduler:SchedulerOffloadConfig", "blocks_per_chunk", TIER_PLACES),
            Need(f"{_CONNECTOR}.common:OffloadingConnectorMetadata", "load_jobs store_jobs"),
            Need(_JOB, "req_id src_spec dst_spec"),
            Need("vllm.v1.kv_offload.base:GPULoadStoreSpec", "block_ids group_sizes block_indices"),
        ),
    )
    for name, lost in (("submit_store", "transfers to the tier"), ("submit_load", "transfers from the tier"))
)
FINISHED = Hook(
    "vllm.v1.kv_offload.base:OffloadingWorker.get_finished",
    "the ends of transfers",
    needs=(Need(_RESULT, "job_id success transfer_size transfer_time"),),
)

_OWN_WORKERS = "vllm.v1.kv_offload.cpu."


@shape_of(f"{_CONNECTOR}.scheduler:OffloadingConnectorScheduler")
class _SchedulerHalf(Protocol):
    config: object


@shape_of(f"{_CONNECTOR}_connector:OffloadingConnector")
class _Connector(Protocol):
    connector_scheduler: _SchedulerHalf
    connector_worker: object


@shape_of("vllm.v1.kv_offload.base:GPULoadStoreSpec")
class _GpuSpec(Protocol):
    block_ids: Sequence[int]
    group_sizes: Sequence[int]
    block_indices: Sequence[int]


@shape_of(_JOB)
class _Job(Protocol):
    req_id: str
    src_spec: Any  # of the GPU in a store, of the tier in a load
    dst_spec: Any


@shape_of(f"{_CONNECTOR}.common:OffloadingConnectorMetadata")
class _Metadata(Protocol):
    load_jobs: Mapping[int, _Job]
    store_jobs: Mapping[int, _Job]


@shape_of(_RESULT)
class _Result(Protocol):
    job_id: int
    success: bool
    transfer_size: int | None
    transfer_time: float | None


class Offloading(Adapter):
    """OffloadingConnector with any spec."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._connector: _Connector = part.connector
        self._transfers = Transfers(part)
        self._jobs: Followed[int, int] = Followed()  # submitted and not finished: the transfer of each job

    @staticmethod
    def fits(connector: object) -> bool:
        """Check that the scheduler's half numbers the jobs.

        Before vLLM 0.26 each worker numbered its own: such a connector is recorded by its interface only.
        """
        if not (hasattr(connector, "connector_scheduler") and hasattr(connector, "connector_worker")):
            return False
        scheduler, worker = connector.connector_scheduler, connector.connector_worker
        return not hasattr(scheduler, "_get_reqs_to_store") and not hasattr(worker, "_generate_job_id")

    def attach_scheduler(self) -> Facts:
        """Hook the manager of the primary tier, and the secondary tiers."""
        optional = self.part.optional
        manager = optional.read(self._connector.connector_scheduler, "manager", "the tiers of an OffloadingConnector")
        if manager is None:
            return {}
        primary: object = manager
        secondary: Sequence[object] = ()
        if any(kind.__name__ == "TieringOffloadingManager" for kind in type(manager).__mro__):
            primary = optional.read(manager, "primary_tier", "the CPU tier of an OffloadingConnector")
            secondary = optional.read(manager, "secondary_tiers", "tiers behind the CPU", secondary)
        capacity = None
        if primary is not None:
            ManagerTier(self.part, primary)
            capacity = capacity_of(primary, optional)
        for level, tier in enumerate(secondary, 1):
            SecondaryTier(self.part, tier, level)
        return {"tier": "cpu", "capacity_blocks": capacity, "blocks_per_chunk": self._blocks_per_chunk()}

    def _blocks_per_chunk(self) -> int | None:
        config = self._connector.connector_scheduler.config
        found = self.part.optional.read(config, "blocks_per_chunk", TIER_PLACES)
        return None if found is None else int(found)

    def planned(self, metadata: _Metadata, scheduler_output: SchedulerOutput) -> Iterable[Planned]:
        """List the jobs of a step."""
        return self._jobs_of(metadata) if metadata.load_jobs or metadata.store_jobs else ()

    def _jobs_of(self, metadata: _Metadata) -> Iterator[Planned]:
        per_chunk = self._blocks_per_chunk()
        for job, entry in metadata.load_jobs.items():
            yield self._plan(job, Direction.load, entry, entry.dst_spec, entry.src_spec, per_chunk)
        for job, entry in metadata.store_jobs.items():
            yield self._plan(job, Direction.store, entry, entry.src_spec, entry.dst_spec, per_chunk)

    def _plan(
        self, job: int, direction: Direction, entry: _Job, gpu: _GpuSpec, other: object, per_chunk: int | None
    ) -> Planned:
        gpu_blocks, chunks = listed(gpu.block_ids), chunks_of(other, self.part.optional) if per_chunk else []
        per_chunk = per_chunk or 1
        places: list[int] = []
        first = 0
        for size, start in zip(gpu.group_sizes, gpu.block_indices, strict=True):
            skipped = start % per_chunk
            places += [first + place // per_chunk for place in range(skipped, skipped + size)]
            first += -(-(size + skipped) // per_chunk) if size else 0
        known = len(chunks)
        others = [chunks[place] if place < known else -1 for place in places]
        requests = [entry.req_id] * len(places)
        return Planned(self.part.transfer(job, direction), direction, requests, gpu_blocks[: len(places)], others)

    def attach_worker(self) -> bool:
        """Hook the worker that copies, once it is built."""
        half = self._connector.connector_worker
        worker = self.part.optional.read(half, "worker", "transfers of an OffloadingConnector", ABSENT)
        if worker is None:
            return False
        if worker is ABSENT:
            return True
        own = type(worker).__module__.startswith(_OWN_WORKERS)

        def submitting(direction: Direction) -> After:
            def after(start_ns: int, accepted: bool, args: Args, kwargs: Kwargs) -> None:
                job: int = argument(args, kwargs, 0, "job_id")
                source, target = argument(args, kwargs, 1, "src_spec"), argument(args, kwargs, 2, "dst_spec")
                gpu, other = (source, target) if direction is Direction.store else (target, source)
                tier = _tier_of(other)
                tiers = (Tier.gpu, tier) if direction is Direction.store else (tier, Tier.gpu)
                self._jobs[job] = transfer = self.part.transfer(job, direction)
                self._transfers.submitted(transfer, direction, tiers, len(gpu.block_ids), submitted_ns=start_ns)
                if accepted is False:
                    self._transfers.finished(self._jobs.pop(job), success=False)

            return after

        def before(args: Args, kwargs: Kwargs) -> int:
            return time.monotonic_ns()

        def after_finished(_: None, results: Iterable[_Result], args: Args, kwargs: Kwargs) -> None:
            for result in results:
                self._finished(result, own)

        for declared, direction in zip(SUBMIT, (Direction.store, Direction.load), strict=True):
            self.part.hook(worker, declared, before, submitting(direction))
        self.part.hook(worker, FINISHED, after=after_finished, off=self._jobs.off)
        return True

    def _finished(self, result: _Result, own_worker: bool) -> None:
        transfer = self._jobs.pop(result.job_id, None)
        if transfer is None:
            return
        size, seconds = result.transfer_size, result.transfer_time
        reported_ns = -1 if seconds is None else int(seconds * 1e9)
        self._transfers.finished(
            transfer,
            bytes_=-1 if size is None else int(size),
            device_ns=reported_ns if own_worker else -1,
            reported_ns=reported_ns,
            success=bool(result.success),
        )


def _tier_of(spec: object) -> Tier:
    """The tier that a load/store spec addresses, by its class's name: `CPULoadStoreSpec` and the like."""
    name = type(spec).__name__.lower()
    known = {"cpu": Tier.cpu, "disk": Tier.disk, "file": Tier.disk, "storage": Tier.disk}
    return next((tier for word, tier in known.items() if word in name), Tier.other)


ADAPTER = Declaration(
    Offloading,
    connectors=(f"{_CONNECTOR}_connector:OffloadingConnector",),
    forms=(
        Form(
            "OffloadingConnector, any spec",
            (Tier.cpu, Tier.disk, Tier.other),
            "all, with CPU chunk ids, hashes and requests",
            "the worker's `TransferResult`; CUDA events with vLLM's own worker",
            "its manager",
        ),
        Form(
            "OffloadingConnector, secondary tiers",
            (Tier.disk, Tier.remote, Tier.other),
            "jobs and their bytes, in the engine's process",
            "as the tier reports",
            "hits",
        ),
    ),
    hooks=(*SUBMIT, FINISHED, *offload_tiers.HOOKS),
    since="0.26.0",
)
