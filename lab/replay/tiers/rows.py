"""Rows of a replay's trace about its emulated copies and its model of a tier: what an engine's connector would record.

vLLM's own connectors plan their transfers and keep their tier in the scheduler, where kvtrace's probes see them. Their
workers are emulated, and a model of a tier has no adapter: those rows are written here. All of them are predicted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.events import TIER_BLOCK, TRANSFER_BLOCK, TRANSFER_END, TRANSFER_SUBMIT, Direction, Tier, TierOp
from kvtrace.lab.replay.recording import LOAD
from kvtrace.probes.engine import STEP_ATTRIBUTE


def low_hash(content: bytes) -> int:
    """The low 64 bits of a block's hash, as traces have them."""
    return int.from_bytes(content[-8:], "big")


class CopyRows:
    """Writes them. Rows wait for the step that they belong to, whose number comes last.

    Args:
        recorder: Of the replay.
        connector: The connector's class.
        tier: Where its copies go.
    """

    def __init__(self, recorder: Recorder, connector: str, tier: Tier) -> None:
        self._recorder, self._connector, self._tier = recorder, recorder.intern(connector), tier
        self._submit, self._end = recorder.stream(TRANSFER_SUBMIT), recorder.stream(TRANSFER_END)
        self._plan, self._change = recorder.columns(TRANSFER_BLOCK), recorder.stream(TIER_BLOCK)
        self._step = os.getpid(), -1
        self._waiting: list[tuple[Any, tuple[Any, ...]]] = []

    def step(self, metadata: Any) -> None:
        """Write what waited: it belongs to the step whose metadata the worker gets now."""
        self._step = getattr(metadata, STEP_ATTRIBUTE, self._step)
        self.flush()

    def flush(self) -> None:
        """Write what waited."""
        waiting, self._waiting = self._waiting, []
        for write, arguments in waiting:
            write(*arguments)

    def copied(
        self, number: int, blocks: int, size: int, submitted_ns: int, started_ns: int, end_ns: int, *, is_store: bool
    ) -> None:
        """A copy, once its end is known: `number` is the connector's own, `size` its bytes."""
        self._waiting.append((self._copied, (number, blocks, size, submitted_ns, started_ns, end_ns, is_store)))

    def planned(
        self, number: int, request: str, ids: Sequence[int], hashes: Sequence[bytes], *, is_store: bool
    ) -> None:
        """GPU blocks of a copy."""
        self._waiting.append(
            (self._planned, (time.monotonic_ns(), number, request, list(ids), [*map(low_hash, hashes)], is_store))
        )

    def changed(self, op: TierOp, chunk: bytes, request: str = "") -> None:
        """A chunk of the tier."""
        self._waiting.append((self._changed, (time.monotonic_ns(), op, low_hash(chunk), request)))

    def _copied(
        self, number: int, blocks: int, size: int, submitted_ns: int, started_ns: int, end_ns: int, is_store: bool
    ) -> None:
        transfer, (pid, step) = number if is_store else number | LOAD, self._step
        self._submit(
            submitted_ns=submitted_ns,
            engine_id=pid,
            step=step,
            transfer=transfer,
            connector=self._connector,
            direction=Direction.store if is_store else Direction.load,
            from_tier=Tier.gpu if is_store else self._tier,
            to_tier=self._tier if is_store else Tier.gpu,
            blocks=blocks,
            bytes=size,
        )
        self._end(
            finished_ns=end_ns,
            transfer=transfer,
            started_ns=started_ns,
            bytes=size,
            device_ns=end_ns - started_ns,
            reported_ns=-1,
            success=True,
        )

    def _planned(
        self, moment: int, number: int, request: str, ids: list[int], hashes: list[int], is_store: bool
    ) -> None:
        self._plan(
            len(ids),
            time_ns=moment,
            step=self._step[1],
            transfer=number if is_store else number | LOAD,
            direction=Direction.store if is_store else Direction.load,
            request=self._recorder.intern(request),
            gpu_block_id=ids,
            other_block_id=-1,
            block_hash=hashes,
            kv_group=0,
        )

    def _changed(self, moment: int, op: TierOp, chunk: int, request: str) -> None:
        self._change(
            time_ns=moment,
            step=self._step[1],
            connector=self._connector,
            tier=self._tier,
            op=op,
            tier_block_id=-1,
            request=self._recorder.intern(request),
            block_hash=chunk,
            kv_group=0,
        )
