"""vLLM's NixlPullConnector: the decode engine's workers read KV out of the prefill engine's memory with NIXL.

The scheduler's side numbers the requests to read, and the metadata brings the numbers to the workers. Times of a read
are those at which vLLM calls NIXL, and what NIXL's telemetry says when it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

from kvtrace.events import HANDOVER_NOTICE, HANDOVER_READ, Direction, Tier
from kvtrace.probes.connectors.adapter import Adapter, Declaration, Form, Planned
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need, argument
from kvtrace.probes.optional_attributes import ABSENT, Followed
from kvtrace.probes.vllm_types import SchedulerOutput, shape_of

_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
_WORKER, _META, _REMOTE = (
    f"{_NIXL}.pull_worker:NixlPullConnectorWorker",
    f"{_NIXL}.metadata:ReqMeta",
    f"{_NIXL}.metadata:RemoteMeta",
)
_READS = "reads of a NixlPullConnector"
READ = Hook(
    f"{_WORKER}._read_blocks_for_req",
    _READS,
    needs=(
        Need(f"{_NIXL}.connector:NixlPullConnector", "connector_worker", _READS),
        Need(_WORKER, "nixl_wrapper", _READS),
        Need(f"{_NIXL}.metadata:NixlConnectorMetadata", "reqs_to_recv", _READS),
        Need(_META, "local_block_ids remote"),
        Need(_REMOTE, "block_ids engine_id request_id"),
    ),
)
NOTICES = Hook(f"{_WORKER}._get_new_notifs", "when prefill engines hear that KV was read")

_AGENT = "nixl._api:nixl_agent"
_PREPARE, _POST, _CHECK, _RELEASE = (
    Hook(f"{_AGENT}.{name}", _READS)
    for name in ("make_prepped_xfer", "transfer", "check_xfer_state", "release_xfer_handle")
)
_TELEMETRY = Hook(f"{_AGENT}.get_xfer_telemetry", "what NIXL says of reads")
"""Hooks on NIXL's own object, which no vLLM's sources declare."""

_KEY, _BEGUN = "_kvtrace_transfer", "_kvtrace_begun_ns"
"""Set on a request's metadata: its transfer, by the scheduler's side; when a worker took it up first, by the worker."""


@shape_of(_REMOTE)
class _Remote(Protocol):
    block_ids: Sequence[Sequence[int]]
    engine_id: str
    request_id: str


@shape_of(_META)
class _Request(Protocol):
    local_block_ids: Sequence[Sequence[int]]
    remote: _Remote | None


class _Telemetry(Protocol):
    startTime: int  # noqa: N815 - NIXL's names; all times are in microseconds
    postDuration: int  # noqa: N815
    xferDuration: int  # noqa: N815
    totalBytes: int  # noqa: N815
    descCount: int  # noqa: N815


class _Load:
    """Reads of a worker for a request: one handle, or one for each worker of the other engine that has a part."""

    def __init__(self, request_id: str, meta: _Request, transfer: int, begin_ns: int, step: tuple[int, int]) -> None:
        self.request_id, self.transfer, self.begin_ns, self.step = request_id, transfer, begin_ns, step
        self.blocks = sum(map(len, meta.local_block_ids))
        remote = meta.remote
        self.remote_engine, self.remote_request = (remote.engine_id, remote.request_id) if remote else ("", "")
        self.reads: list[_Read] = []
        self.left = 0
        self.posted = False  # all its handles are there


class _Read:
    """A handle, from its preparation to its release."""

    def __init__(self, load: _Load, prepare_ns: int, descriptors: int) -> None:
        self.load, self.prepare_ns, self.descriptors = load, prepare_ns, descriptors
        self.prepared_ns = time.monotonic_ns()
        self.posted_ns = self.running_ns = self.seen_ns = self.wire_start_ns = 0
        self.post_ns = self.wire_ns = self.bytes = self.posted_descriptors = -1
        self.success = False

    def tell(self, telemetry: _Telemetry) -> None:
        """Take what NIXL says. Older ones gave the start by another clock: it is kept only if it fits."""
        start_ns = telemetry.startTime * 1000
        if self.prepare_ns - 1000 < start_ns <= time.monotonic_ns():
            self.wire_start_ns = start_ns
        self.post_ns, self.wire_ns = telemetry.postDuration * 1000, telemetry.xferDuration * 1000
        self.bytes, self.posted_descriptors = telemetry.totalBytes, telemetry.descCount


class Nixl(Adapter):
    """NixlPullConnector, on the decode engine's side and on the prefill engine's."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._transfers = Transfers(part)
        self._emit_read = part.recorder.stream(HANDOVER_READ)
        self._emit_notice = part.recorder.stream(HANDOVER_NOTICE)
        self._jobs = 0
        self._load: _Load | None = None  # the one whose handles are being made
        self._reads: Followed[Hashable, _Read] = Followed()  # by handle, not yet released

    def planned(self, metadata: object, scheduler_output: SchedulerOutput) -> Iterator[Planned]:
        """List the requests to be read in a step, and number them."""
        requests: dict[str, _Request] = self.part.optional.read(metadata, "reqs_to_recv", _READS, {})
        for request_id, meta in requests.items():
            blocks = [block for group in meta.local_block_ids for block in group]
            if not blocks:  # all of it is here: the other engine is only told so
                continue
            transfer = self.part.transfer(self._jobs + 1, Direction.load)
            if not _mark(meta, _KEY, transfer):
                continue
            self._jobs += 1
            yield Planned(transfer, Direction.load, [request_id] * len(blocks), blocks, _remote_blocks(meta, blocks))

    def attach_worker(self) -> bool:
        """Hook the reading worker, and NIXL's agent in it."""
        optional = self.part.optional
        worker = optional.read(self.part.connector, "connector_worker", _READS)
        agent = ABSENT if worker is None else optional.read(worker, "nixl_wrapper", _READS, ABSENT)
        if agent is ABSENT:
            return True
        hook, off = self.part.hook, self._reads.off
        hook(worker, READ, self._begin, self._all_posted, off)
        hook(worker, NOTICES, after=self._noticed)
        hook(agent, _PREPARE, self._now, self._prepared, off)
        hook(agent, _POST, after=self._posted, off=off)
        hook(agent, _CHECK, after=self._checked, off=off)
        hook(agent, _TELEMETRY, after=self._told)
        hook(agent, _RELEASE, after=self._released, off=off)
        return True

    def _now(self, args: Args, kwargs: Kwargs) -> int:
        return time.monotonic_ns()

    def _begin(self, args: Args, kwargs: Kwargs) -> None:
        """Note when a request is taken up: again after a handshake, with the same metadata."""
        meta = argument(args, kwargs, 1, "meta")
        begin_ns = getattr(meta, _BEGUN, 0)
        if not begin_ns:
            begin_ns = time.monotonic_ns()
            _mark(meta, _BEGUN, begin_ns)
        request_id: str = argument(args, kwargs, 0, "req_id")
        self._load = _Load(request_id, meta, getattr(meta, _KEY, -1), begin_ns, self.part.step)

    def _prepared(self, prepare_ns: int, handle: Hashable, args: Args, kwargs: Kwargs) -> None:
        load = self._load
        if load is None:
            return
        read = _Read(load, prepare_ns, len(argument(args, kwargs, 2, "local_indices")))
        self._reads[handle] = read
        load.reads.append(read)
        load.left += 1

    def _posted(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        read = self._reads.get(argument(args, kwargs, 0, "handle"))
        if read is not None:
            read.posted_ns = time.monotonic_ns()

    def _all_posted(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        load, self._load = self._load, None
        posted = [read.posted_ns for read in load.reads if read.posted_ns] if load is not None else []
        if load is None or not posted:
            return
        load.posted = True
        if load.transfer < 0:  # the scheduler's side could not number it
            return
        tiers = Tier.remote, Tier.gpu
        self._transfers.submitted(load.transfer, Direction.load, tiers, load.blocks, submitted_ns=min(posted))
        self._end(load)

    def _checked(self, _: None, state: str, args: Args, kwargs: Kwargs) -> None:
        read = self._reads.get(argument(args, kwargs, 0, "handle"))
        if read is None or read.seen_ns:
            return
        if state == "PROC":
            read.running_ns = time.monotonic_ns()
        else:
            read.seen_ns, read.success = time.monotonic_ns(), state == "DONE"

    def _told(self, _: None, telemetry: _Telemetry, args: Args, kwargs: Kwargs) -> None:
        read = self._reads.get(argument(args, kwargs, 0, "handle"))
        if read is not None:
            read.tell(telemetry)

    def _released(self, _: None, __: object, args: Args, kwargs: Kwargs) -> None:
        read = self._reads.pop(argument(args, kwargs, 0, "handle"), None)
        if read is None:
            return
        load, recorder = read.load, self.part.recorder
        # Not remembered: neither id comes again.
        request, remote_request = recorder.intern_once(load.request_id, load.remote_request)
        pid, step = load.step
        self._emit_read(
            begin_ns=load.begin_ns,
            engine_id=pid,
            step=step,
            request=request,
            transfer=load.transfer,
            remote_engine=recorder.intern(load.remote_engine),
            remote_request=remote_request,
            prepare_ns=read.prepare_ns,
            prepared_ns=read.prepared_ns,
            posted_ns=read.posted_ns,
            wire_start_ns=read.wire_start_ns,
            post_ns=read.post_ns,
            wire_ns=read.wire_ns,
            running_ns=read.running_ns,
            seen_ns=read.seen_ns,
            descriptors=read.descriptors,
            posted_descriptors=read.posted_descriptors,
            bytes=read.bytes,
            success=read.success,
        )
        load.left -= 1
        self._end(load)

    def _end(self, load: _Load) -> None:
        """Record the end of the request's transfer with that of its last read."""
        if not load.posted or load.left or load.transfer < 0:
            return
        reads = load.reads
        told = all(read.bytes >= 0 for read in reads)
        self._transfers.finished(
            load.transfer,
            finished_ns=max(read.seen_ns for read in reads) or None,
            started_ns=min(read.wire_start_ns for read in reads),
            bytes_=sum(read.bytes for read in reads) if told else -1,
            reported_ns=max(read.wire_ns for read in reads),
            success=all(read.success for read in reads),
        )

    def _noticed(self, _: None, request_ids: set[str], args: Args, kwargs: Kwargs) -> None:
        if not request_ids:
            return
        now, (pid, step) = time.monotonic_ns(), self.part.step
        for request, request_id in zip(self.part.recorder.intern_once(*request_ids), request_ids, strict=True):
            if request_id:
                self._emit_notice(time_ns=now, engine_id=pid, step=step, request=request)


def _mark(meta: object, name: str, value: int) -> bool:
    """Set an attribute of a request's metadata. False: its class has slots, so its workers know no such number."""
    try:
        setattr(meta, name, value)
    except AttributeError:
        return False
    return True


def _remote_blocks(meta: _Request, blocks: Sequence[int]) -> list[int]:
    """List the other engine's block for each of this one's. A prefix that is here is left out: both end together."""
    if meta.remote is None or len(meta.remote.block_ids) != len(meta.local_block_ids):
        return [-1] * len(blocks)
    found: list[int] = []
    for mine, theirs in zip(meta.local_block_ids, meta.remote.block_ids, strict=True):
        found += list(theirs)[len(theirs) - len(mine) :] if len(theirs) >= len(mine) else [-1] * len(mine)
    return found


ADAPTER = Declaration(
    Nixl,
    connectors=(f"{_NIXL}.connector:NixlPullConnector",),
    forms=(
        Form(
            "NixlConnector (pull)",
            (Tier.remote,),
            "all, with requests and the other engine's blocks; [stages of each handover](many-hosts.md#stages)",
            "NIXL's telemetry",
            "none",
        ),
    ),
    hooks=(READ, NOTICES),
    since="0.26.0",
)
