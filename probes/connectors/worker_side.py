"""The worker's side of a connector: its calls, and the transfers it submits and finishes."""

from __future__ import annotations

import time
from typing import Any

from kvtrace.events import CONNECTOR_CALL, TRANSFER_END, TRANSFER_SUBMIT, ConnectorCall, Direction, Tier
from kvtrace.probes.connectors.part import STEP_ATTRIBUTE, UNKNOWN_STEP, Adapter, Part
from kvtrace.probes.hooks import Args, Hook, Kwargs, Need
from kvtrace.probes.owners import CONNECTOR

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
    since="0.32.0",
)
FINISHED = Hook(f"{CONNECTOR}.get_finished", "the ends of transfers")


def attach(part: Part, adapter: Adapter) -> dict[str, Any]:
    """Hook the worker's side of a connector; facts for the journal."""
    emit, recorder, now = part.recorder.stream(CONNECTOR_CALL), part.recorder, time.monotonic_ns
    ready = False

    def before_metadata(args: Args, kwargs: Kwargs) -> None:
        nonlocal ready
        if not ready:
            ready = adapter.attach_worker()
        metadata = args[0] if args else next(iter(kwargs.values()))
        step = getattr(metadata, STEP_ATTRIBUTE, None)
        if step is None:
            part.lacks.tell(metadata, STEP_ATTRIBUTE, _STEP)
        part.step = step or UNKNOWN_STEP

    def without_step() -> None:
        part.step = UNKNOWN_STEP

    def called(call: ConnectorCall, start_ns: int, sent: int = -1, received: int = -1) -> None:
        pid, step = part.step
        emit(start_ns, now(), pid, step, part.index, recorder.intern(part.name), call, sent, received)

    def after_load(start_ns: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        called(ConnectorCall.load, start_ns)
        adapter.after_load(start_ns, args, kwargs)

    def before_call(args: Args, kwargs: Kwargs) -> int:
        return now()

    def before_save(args: Args, kwargs: Kwargs) -> int:
        adapter.before_save()
        return now()

    def after_save(start_ns: int, _: Any, args: Args, kwargs: Kwargs) -> None:
        called(ConnectorCall.save, start_ns)
        adapter.after_save(start_ns)

    def after_poll(start_ns: int, finished: Any, args: Args, kwargs: Kwargs) -> None:
        if isinstance(finished, tuple):
            sent, received = finished
        else:
            sent, received = finished.finished_sending, finished.finished_recving
        called(ConnectorCall.poll, start_ns, len(sent or ()), len(received or ()))
        adapter.after_poll()

    connector = part.connector
    part.hook(connector, PREEMPTIONS, before=before_metadata)
    part.hook(connector, METADATA, before=before_metadata, off=without_step)
    part.hook(connector, LOAD, before=before_call, after=after_load)
    part.hook(connector, SAVE, before=before_save, after=after_save)
    poll = RESULTS if _overrides(connector, RESULTS.path[-1]) else FINISHED
    part.hook(connector, poll, before=before_call, after=after_poll, off=adapter.without_polls)
    return {}


def _overrides(connector: Any, name: str) -> bool:
    """Whether a connector has a method of its own and not vLLM's base class's."""
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
