"""Records that a test's recorder has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.events import Event
from kvtrace.format.reader import open_recording
from kvtrace.probes.state import EngineState


def records_of(run: Path, *events: Event) -> dict[str, list[Any]]:
    """All records of these events, with the commit byte."""
    found: dict[str, list[Any]] = {event.name: [] for event in events}
    for process in open_recording(run).processes:
        for event in events:
            for segment in process.segments().get(event.name, ()):
                data = segment.path.read_bytes()[4096:]
                whole = segment.count()[0] * segment.record_bytes
                found[event.name] += event.struct.iter_unpack(data[:whole])
    return found


class EngineWith(EngineState):
    """As much of an engine as a test needs."""

    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)
