"""Reads Perfetto files by the published schema: what a track holds, as its viewer would find it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    """A slice with its arguments and the arrows that start and end at it."""

    category: str
    name: str
    track: tuple[str, ...]
    start_ns: int
    end_ns: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


@dataclass
class File:
    """Content of a file."""

    slices: list[Slice]
    counters: list[tuple[tuple[str, ...], int, int]]


def read(path: Path) -> File:
    """Decode a file. Fails where a viewer would stumble: undescribed tracks, unknown names, ends without starts."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    trace = Trace.FromString(path.read_bytes())
    assert trace.packet[0].sequence_flags == 1
    tracks: dict[int, tuple[str, ...]] = {}
    names: dict[str, dict[int, str]] = defaultdict(dict)
    events: dict[int, list[tuple[int, Any]]] = defaultdict(list)
    found = File([], [])
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            name = track.name or track.process.process_name or track.thread.thread_name
            assert track.uuid not in tracks
            tracks[track.uuid] = (*(tracks[track.parent_uuid] if track.parent_uuid else ()), name)
        for kind, entries in packet.interned_data.ListFields():
            for entry in entries:
                text = getattr(entry, "name", None) if hasattr(entry, "name") else entry.str.decode()
                names[kind.name][entry.iid] = text
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.trusted_packet_sequence_id == 1
            if event.type == TrackEvent.TYPE_COUNTER:
                found.counters.append((tracks[event.track_uuid], packet.timestamp, event.counter_value))
            elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
                made = Slice(
                    names["event_categories"][event.category_iids[0]],
                    names["event_names"][event.name_iid],
                    tracks[event.track_uuid],
                    packet.timestamp,
                    args=_arguments(event, names),
                    starts=list(event.flow_ids),
                    ends=list(event.terminating_flow_ids),
                )
                found.slices.append(made)
                events[event.track_uuid].append((packet.timestamp, made))
            else:
                events[event.track_uuid].append((packet.timestamp, None))
    for track_events in events.values():
        _close(track_events)
    return found


def _close(events: list[tuple[int, Slice | None]]) -> None:
    """An end closes the slice that was opened last; at one time, events count in the order of the file."""
    opened: list[Slice] = []
    for time_ns, begun in sorted(events, key=lambda event: event[0]):
        if begun is None:
            opened.pop().end_ns = time_ns
        else:
            opened.append(begun)


def _arguments(event: Any, names: dict[str, dict[int, str]]) -> dict[str, Any]:
    arguments = {}
    for annotation in event.debug_annotations:
        kind = next(field.name for field, _ in annotation.ListFields() if field.name != "name_iid")
        value = getattr(annotation, kind)
        if kind == "string_value_iid":
            value = names["debug_annotation_string_values"][value]
        arguments[names["debug_annotation_names"][annotation.name_iid]] = value
    return arguments
