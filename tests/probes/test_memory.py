"""Samples of the GPU's memory are each of one moment, whatever the engine does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kvtrace.probes.device.memory import MemoryMeter

TOTAL = 100
Facts = dict[str, Any]


class Notes:
    def __init__(self) -> None:
        self.made: list[tuple[str, Facts]] = []

    def note(self, kind: str, **facts: Any) -> None:
        self.made.append((kind, facts))


def noted(monkeypatch: pytest.MonkeyPatch, reserved: Iterator[int]) -> Facts:
    """The one note of a device whose allocator has taken so much at each reading, of which half is in tensors."""

    def stats() -> Facts:
        held = next(reserved)
        return {"allocated_bytes.all.current": held // 2, "reserved_bytes.all.current": held}

    monkeypatch.setattr(torch.cuda, "memory_stats", stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (TOTAL - next(reserved), TOTAL))
    notes = Notes()
    MemoryMeter(notes).keep()  # not due again
    [(kind, facts)] = notes.made
    assert kind == "gpu_memory"
    return facts


def test_it_is_noted_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert noted(monkeypatch, iter([40, 40, 40])) == {
        "free_bytes": 60,
        "total_bytes": TOTAL,
        "allocated_bytes": 20,
        "reserved_bytes": 40,
    }


@pytest.mark.parametrize("changing", [[40, 40, 60], [40, 60, 60], [60, 60, 40], [60, 40, 40]])
def test_it_is_read_again_when_the_engine_takes_or_gives_back_memory(
    monkeypatch: pytest.MonkeyPatch, changing: list[int]
) -> None:
    facts = noted(monkeypatch, iter([*changing, changing[-1], changing[-1]]))
    assert facts["reserved_bytes"] == facts["total_bytes"] - facts["free_bytes"] == changing[-1]
    assert facts["allocated_bytes"] == changing[-1] // 2


def test_an_engine_that_never_rests_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the last readings are noted."""
    facts = noted(monkeypatch, iter(range(40, TOTAL)))
    assert facts["reserved_bytes"] - (facts["total_bytes"] - facts["free_bytes"]) == 1
