"""The worker's side of a connector: its calls, and the transfers it submits and finishes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from kvtrace.capture.stream import compiled
from kvtrace.events import CONNECTOR_CALL, TRANSFER_END, TRANSFER_SUBMIT, ConnectorCall, Direction, Tier
from kvtrace.probes.connectors.part import STEP_ATTRIBUTE, UNKNOWN_STEP, Adapter, Part
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need
from kvtrace.probes.vllm_symbols import CONNECTOR

_STEP = "the step of transfers"
PREEMPTIONS = Hook(f"{CONNECTOR}.handle_preemptions", _STEP)
METADATA = Hook(f"{CONNECTOR}.bind_connector_metadata", _STEP)
LOAD = Hook(f"{CONNECTOR}.start_load_kv", "calls to load")
SAVE = Hook(f"{CONNECTOR}.wait_for_save", "calls to save")
RESULTS = Hook(
    f"{CONNECTOR}.get_transfer_results",
    "the ends of transfers",
    needs=(
        Need(
            "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorTransferResults",
            "finished_sending finished_recving",
        ),
    ),
    since="0.30.0",
)
FINISHED = Hook(f"{CONNECTOR}.get_finished", "the ends of transfers")


class Calls:
    """Hooks around a connector's calls in its worker: each is recorded, and its adapter does its part."""

    def __init__(self, part: Part, adapter: Adapter) -> None:
        self._part, self._adapter = part, adapter
        self._emit = part.recorder.stream(CONNECTOR_CALL)
        self._attached = False

    def metadata(self, args: Args, kwargs: Kwargs) -> None:
        """Before a call that brings a step's metadata, which says which step it is."""
        if not self._attached:
            self._attached = self._adapter.attach_worker()
        metadata = args[0] if args else next(iter(kwargs.values()))
        step = getattr(metadata, STEP_ATTRIBUTE, None)
        if step is None:
            _missing(self._part, metadata)
        self._part.step = step or UNKNOWN_STEP

    def without_step(self) -> None:
        """Nothing says any more which step it is."""
        self._part.step = UNKNOWN_STEP

    def begin(self, args: Args, kwargs: Kwargs) -> int:
        """Before a call that is recorded: when it begins."""
        return time.monotonic_ns()

    def begin_save(self, args: Args, kwargs: Kwargs) -> int:
        """Before `wait_for_save`."""
        self._adapter.before_save()
        return time.monotonic_ns()

    def load(self, start_ns: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        """After `start_load_kv`."""
        self._record(start_ns, ConnectorCall.load)
        self._adapter.after_load(start_ns, args, kwargs)

    def save(self, start_ns: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        """After `wait_for_save`."""
        self._record(start_ns, ConnectorCall.save)
        self._adapter.after_save(start_ns, args, kwargs)

    def poll(self, start_ns: int, finished: Any, args: Args, kwargs: Kwargs) -> None:
        """After `get_finished`, whose result names the requests whose transfers are over."""
        named = finished if isinstance(finished, tuple) else (finished.finished_sending, finished.finished_recving)
        sent, received = (len(requests or ()) for requests in named)
        self._record(start_ns, ConnectorCall.poll, sent, received)
        self._adapter.after_poll(start_ns, args, kwargs)

    def _record(self, start_ns: int, call: ConnectorCall, sent: int = -1, received: int = -1) -> None:
        part, end_ns = self._part, time.monotonic_ns()
        name = part.recorder.intern(part.name)
        self._emit(start_ns, end_ns, *part.step, part.index, name, call, sent, received)


def _missing(part: Part, metadata: Any) -> None:
    part.lacks.tell(metadata, STEP_ATTRIBUTE, _STEP)


def calls_of(part: Part, adapter: Adapter) -> Calls:
    """`Calls`, in compiled code where there is some."""
    native, own = compiled(), adapter.own
    if native is None:
        return Calls(part, adapter)
    made: Calls = native.Calls(
        part.recorder.packer(CONNECTOR_CALL),
        part,
        part.recorder,
        part.name,
        STEP_ATTRIBUTE,
        adapter.attach_worker,
        partial(_missing, part),
        own("before_save"),
        own("after_load"),
        own("after_save"),
        own("after_poll"),
        part.index,
        *ConnectorCall,
    )
    return made


def attach(part: Part, adapter: Adapter) -> dict[str, Any]:
    """Hook the worker's side of a connector; facts for the journal."""
    calls, connector = calls_of(part, adapter), part.connector
    polled = RESULTS if _overrides(connector, RESULTS.path[-1]) else FINISHED
    part.hook(connector, PREEMPTIONS, before=calls.metadata)
    part.hook(connector, METADATA, before=calls.metadata, off=calls.without_step)
    part.hook(connector, LOAD, before=calls.begin, after=calls.load)
    part.hook(connector, SAVE, before=calls.begin_save, after=calls.save)
    part.hook(connector, polled, before=calls.begin, after=calls.poll, off=adapter.without_polls)
    return {}


def _overrides(connector: Any, name: str) -> bool:
    """Return whether a connector has a method of its own and not vLLM's base class's."""
    owner = next((kind for kind in type(connector).__mro__ if name in vars(kind)), None)
    return owner is not None and not owner.__module__.endswith("kv_connector.v1.base")


class Transfers:
    """Records transfers from submission to end."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._submit = part.recorder.stream(TRANSFER_SUBMIT)
        self._end = part.recorder.stream(TRANSFER_END)

    def submitted(
        self,
        transfer: int,
        direction: Direction,
        tiers: tuple[Tier, Tier],
        blocks: int,
        *,
        submitted_ns: int,
        bytes_: int = -1,
        step: tuple[int, int] | None = None,
    ) -> None:
        """A transfer was handed to what copies it; `tiers` are where from and where to."""
        pid, number = step or self._part.step
        name = self._part.recorder.intern(self._part.name)
        self._submit(submitted_ns, pid, number, transfer, name, direction, *tiers, blocks, bytes_)

    def finished(
        self,
        transfer: int,
        *,
        finished_ns: int | None = None,
        started_ns: int = 0,
        bytes_: int = -1,
        device_ns: int = -1,
        reported_ns: int = -1,
        success: bool = True,
    ) -> None:
        """A transfer is known to have ended."""
        when = time.monotonic_ns() if finished_ns is None else finished_ns
        self._end(when, transfer, started_ns, bytes_, device_ns, reported_ns, success)
