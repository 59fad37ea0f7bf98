"""The worker's side of a connector: its calls, and the transfers it submits and finishes."""

from __future__ import annotations

import time
from functools import partial

from kvtrace.capture._native import Calls
from kvtrace.events import CONNECTOR_CALL, TRANSFER_END, TRANSFER_SUBMIT, Direction, Tier
from kvtrace.probes.connectors.adapter import Adapter, Facts
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.engine import STEP_ATTRIBUTE
from kvtrace.probes.hooks import Hook, Need
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
HOOKS = PREEMPTIONS, METADATA, LOAD, SAVE, RESULTS, FINISHED


def _missing(part: Part, metadata: object) -> None:
    part.optional.tell(metadata, STEP_ATTRIBUTE, _STEP)


def calls_of(part: Part, adapter: Adapter) -> Calls:
    """Make the hooks' functions around a connector's calls in its worker, which also call its adapter."""
    own = adapter.own
    return Calls(
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
    )


def attach(part: Part, adapter: Adapter) -> Facts:
    """Hook the worker's side of a connector; facts for the journal."""
    calls, connector = calls_of(part, adapter), part.connector
    polled = RESULTS if _overrides(connector, RESULTS.path[-1]) else FINISHED
    part.hook(connector, PREEMPTIONS, before=calls.metadata)
    part.hook(connector, METADATA, before=calls.metadata, off=calls.without_step)
    part.hook(connector, LOAD, before=calls.begin, after=calls.load)
    part.hook(connector, SAVE, before=calls.begin_save, after=calls.save)
    part.hook(connector, polled, before=calls.begin, after=calls.poll, off=adapter.without_polls)
    return {}


def _overrides(connector: object, name: str) -> bool:
    """Tell if a connector overrides a method of vLLM's base class."""
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
        """Record that a transfer was submitted.

        Args:
            transfer: The key, from `Part.transfer`.
            direction: To the other tier, or to the GPU.
            tiers: Source and target.
            blocks: Blocks of the GPU; -1 if not known.
            submitted_ns: CLOCK_MONOTONIC.
            bytes_: -1 if not known.
            step: The engine's pid and the step; by default those the worker acts on.
        """
        pid, number = step or self._part.step
        name = self._part.recorder.intern(self._part.name)
        from_tier, to_tier = tiers
        self._submit(
            submitted_ns=submitted_ns,
            engine_id=pid,
            step=number,
            transfer=transfer,
            connector=name,
            direction=direction,
            from_tier=from_tier,
            to_tier=to_tier,
            blocks=blocks,
            bytes=bytes_,
        )

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
        """Record that a transfer has ended.

        Args:
            transfer: The key, from `Part.transfer`.
            finished_ns: When that became known, CLOCK_MONOTONIC; by default now.
            started_ns: When work on it began on the host; 0 if not known.
            bytes_: -1 if not known.
            device_ns: Its time on the GPU; -1 if not known.
            reported_ns: Its time as the connector says; -1 if it does not.
            success: False if it failed.
        """
        when = time.monotonic_ns() if finished_ns is None else finished_ns
        self._end(
            finished_ns=when,
            transfer=transfer,
            started_ns=started_ns,
            bytes=bytes_,
            device_ns=device_ns,
            reported_ns=reported_ns,
            success=success,
        )
