"""Records that a test's recorder has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.capture._native import EngineState
from kvtrace.events import Event
from kvtrace.format.reader import open_recording


def records_of(run: Path, *events: Event, pid: int | None = None) -> dict[str, list[Any]]:
    """All records of these events, as `Event.record`; of one process if its pid is given."""
    found: dict[str, list[Any]] = {event.name: [] for event in events}
    for process in (one for one in open_recording(run).processes if pid in (None, one.pid)):
        for event in events:
            for segment in process.segments().get(event.name, ()):
                data = segment.path.read_bytes()[4096:]
                count, torn = segment.count()
                assert torn == 0
                whole = count * segment.record_bytes
                found[event.name] += [event.record(*row[:-1]) for row in event.struct.iter_unpack(data[:whole])]
    return found


class EngineWith(EngineState):
    """As much of an engine as a test needs."""

    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)
