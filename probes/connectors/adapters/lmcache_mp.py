"""LMCache's LMCacheMPConnector: a server in a process of its own copies between the GPU and its memory.

A request has at most one load and one store in a step, which the worker asks the server for. Both sides number them by
their order in the step. When one has ended the worker learns from a future, which it polls once a step. The connector
is part of the package `lmcache`, so no vLLM's sources tell of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from kvtrace.events import Direction, Tier
from kvtrace.probes.connectors.adapter import Adapter, Declaration, Facts, Form, Planned
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.connectors.worker_side import Transfers
from kvtrace.probes.hooks import After, Args, Hook, Kwargs, argument
from kvtrace.probes.vllm_types import KVCacheConfig, SchedulerOutput

_TRANSFERS = "transfers of an LMCacheMPConnector"
_ADAPTER = "lmcache.integration.vllm.vllm_multi_process_adapter:LMCacheMPWorkerAdapter"
STORE, LOAD = (Hook(f"{_ADAPTER}.submit_{what}_request", _TRANSFERS) for what in ("store", "retrieve"))
"""Hooks on an object of LMCache's, which no vLLM's sources declare."""

_DIRECTIONS = {"STORE": Direction.store, "RETRIEVE": Direction.load}
_TIERS = {Direction.store: (Tier.gpu, Tier.cpu), Direction.load: (Tier.cpu, Tier.gpu)}
_ORDER_BITS = 12
"""Of a job's number: its order among the step's loads or stores; the step is above."""


class _Op(Protocol):
    block_ids: Sequence[Sequence[int]]  # a KV cache group
    skip_first_n_tokens: int


class _Copy(Protocol):
    request_id: str
    direction: str
    op: _Op


class _Metadata(Protocol):
    requests: Sequence[_Copy]


class _Future(Protocol):
    def query(self) -> bool: ...
    def result(self, timeout: float) -> object: ...


class _WorkerAdapter(Protocol):
    store_futures: Mapping[str, _Future]
    retrieve_futures: Mapping[str, tuple[_Future, Sequence[int]]]
    is_kv_writer: bool


class _Connector(Protocol):
    worker_adapter: _WorkerAdapter
    _group_tokens_per_block: Sequence[int]  # 0: what the group keeps is not copied
    _kv_cache_config: KVCacheConfig


class _Group(NamedTuple):
    block_tokens: int
    block_bytes: int  # of all its layers, on one worker


class LMCacheMp(Adapter):
    """LMCacheMPConnector."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._connector: _Connector = part.connector
        self._transfers = Transfers(part)
        self._pending: list[tuple[int, int, int, _Future]] = []  # transfer, when asked for, bytes
        self._numbered = -1, dict.fromkeys(Direction, 0)  # a step, and how many loads and stores of it have numbers

    @staticmethod
    def fits(connector: object) -> bool:
        """Check that it is LMCache's own; vLLM has one of that name for older LMCaches, which merges stores."""
        return type(connector).__module__.startswith("lmcache.")

    def attach_scheduler(self) -> Facts:
        """Tell the tier; what is in it the server keeps to itself."""
        return {"tier": Tier.cpu.name}

    def planned(self, metadata: _Metadata, scheduler_output: SchedulerOutput) -> Iterator[Planned]:
        """List the step's copies."""
        engine = self.part.engine()
        if engine is None or engine.step < 0:  # steps number the transfers
            return
        for copy in metadata.requests:
            direction = _DIRECTIONS[copy.direction]
            blocks = [block for group in self._blocks(copy.op) for block in group]
            transfer = self._next(engine.step, direction)
            yield Planned(transfer, direction, [copy.request_id] * len(blocks), blocks, [-1] * len(blocks))

    def attach_worker(self) -> bool:
        """Hook what the worker asks the server for."""
        adapter = self._connector.worker_adapter
        self.part.hook(adapter, STORE, before=_now, after=self._asked(Direction.store))
        self.part.hook(adapter, LOAD, before=_now, after=self._asked(Direction.load))
        return True

    def after_poll(self, start_ns: int, args: Args, kwargs: Kwargs) -> None:
        """Record the ends of transfers."""
        now, left = time.monotonic_ns(), []
        for transfer, asked_ns, bytes_, future in self._pending:
            if not future.query():
                left.append((transfer, asked_ns, bytes_, future))
                continue
            ok = _succeeded(future)
            self._transfers.finished(
                transfer, finished_ns=now, started_ns=asked_ns, bytes_=bytes_ if ok else 0, success=ok
            )
        self._pending = left

    def without_polls(self) -> None:
        """Forget the transfers whose ends will not be seen."""
        self._pending = []

    def _asked(self, direction: Direction) -> After:
        def after(asked_ns: int, _: object, args: Args, kwargs: Kwargs) -> None:
            request_id, op = argument(args, kwargs, 0, "request_id"), argument(args, kwargs, 1, "op")
            self._submitted(direction, request_id, op, asked_ns)

        return after

    def _submitted(self, direction: Direction, request_id: str, op: _Op, asked_ns: int) -> None:
        (_, step), adapter = self.part.step, self._connector.worker_adapter
        if step < 0 or (direction is Direction.store and not adapter.is_kv_writer):
            return  # of ranks that hold the same KV, one stores it
        groups = self._blocks(op)
        bytes_ = sum(len(ids) * group.block_bytes for ids, group in zip(groups, self._groups, strict=False))
        transfer = self._next(step, direction)
        blocks = sum(map(len, groups))
        self._transfers.submitted(
            transfer, direction, _TIERS[direction], blocks, submitted_ns=asked_ns, bytes_=bytes_ or -1
        )
        if direction is Direction.store:
            future = adapter.store_futures.get(request_id)
        else:
            future, _ = adapter.retrieve_futures.get(request_id, (None, ()))
        if future is None:  # the server does not answer, and LMCache goes on without it
            self._transfers.finished(transfer, started_ns=asked_ns, bytes_=0, success=False)
        else:
            self._pending.append((transfer, asked_ns, bytes_ or -1, future))

    def _next(self, step: int, direction: Direction) -> int:
        """Make the key of a step's next load or store."""
        if step != self._numbered[0]:
            self._numbered = step, dict.fromkeys(Direction, 0)
        taken = self._numbered[1]
        taken[direction] += 1
        return self.part.transfer(step << _ORDER_BITS | taken[direction], direction)

    @cached_property
    def _groups(self) -> list[_Group]:
        tokens, config = self._connector._group_tokens_per_block, self._connector._kv_cache_config
        return [
            _Group(block_tokens, group.kv_cache_spec.page_size_bytes * len(group.layer_names))
            for block_tokens, group in zip(tokens, config.kv_cache_groups, strict=True)
        ]

    def _blocks(self, op: _Op) -> list[Sequence[int]]:
        """List the blocks that are copied, by group: those in front, which the GPU's own cache has, are left out."""
        skipped = op.skip_first_n_tokens
        return [
            ids[skipped // group.block_tokens :] if group.block_tokens else ()
            for ids, group in zip(op.block_ids, self._groups, strict=False)
        ]


def _now(args: Args, kwargs: Kwargs) -> int:
    return time.monotonic_ns()


def _succeeded(future: _Future) -> bool:
    try:
        return bool(future.result(timeout=0))
    except Exception:  # the request failed, and LMCache says so
        return False


ADAPTER = Declaration(
    LMCacheMp,
    connectors=("vllm.distributed.kv_transfer.kv_connector.v1.lmcache_mp_connector:LMCacheMPConnector",),
    forms=(
        Form(
            "LMCacheMPConnector",
            (Tier.cpu,),
            "all, with requests",
            "host time from asking the server to the poll that sees the end",
            "none: the server keeps it to itself",
        ),
    ),
    hooks=(),
)
