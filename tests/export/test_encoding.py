"""Parts of the Perfetto export: messages of many rows at once, and lanes in which nothing overlaps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace, TracePacket, TrackEvent

from kvtrace.export.perfetto.lanes import FOREVER, Lanes
from kvtrace.export.perfetto.wire import field, fixed64, nested, ragged, tag, tobytes, varint, where

INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1), INT64, st.one_of(st.none(), st.floats(allow_nan=False)), st.lists(INT64, max_size=5)
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS)
@settings(max_examples=60)
def test_messages_decode_to_what_went_in(rows: list[tuple[int, int, float | None, list[int]]]) -> None:
    times, counters, reals, flows = zip(*rows, strict=True)
    present = np.array([real is not None for real in reals])
    numbers = np.array([real or 0.0 for real in reals], np.float64)
    ids = np.array([flow for each in flows for flow in each], np.int64)
    counts = np.array([len(each) for each in flows], np.int64)
    event = [
        *field(TrackEvent, "counter_value", varint(np.array(counters, np.int64))),
        ragged(tag(TrackEvent, "flow_ids"), ids, counts),
        *where(
            nested(TrackEvent, "debug_annotations", field(DebugAnnotation, "double_value", fixed64(numbers))), present
        ),
    ]
    packet = [
        *field(TracePacket, "timestamp", varint(np.array(times, np.int64))),
        *nested(TracePacket, "track_event", event),
    ]
    decoded = Trace.FromString(tobytes(nested(Trace, "packet", packet))).packet
    assert [packet.timestamp for packet in decoded] == list(times)
    assert [packet.track_event.counter_value for packet in decoded] == list(counters)
    assert [list(packet.track_event.flow_ids) for packet in decoded] == [[i % 2**64 for i in each] for each in flows]
    found = [[each.double_value for each in packet.track_event.debug_annotations] for packet in decoded]
    assert found == [[] if real is None else [real] for real in reals]


SPANS = st.lists(st.tuples(st.integers(0, 100), st.one_of(st.integers(0, 30), st.just(FOREVER))), min_size=1).map(
    lambda spans: sorted((start, start + length if length < FOREVER else FOREVER) for start, length in spans)
)


@given(SPANS, st.integers(1, 7), st.integers(0, 1))
@settings(max_examples=200)
def test_lanes_keep_intervals_apart_and_are_as_few_as_can_be(spans: list[tuple[int, int]], size: int, gap: int) -> None:
    lanes = Lanes(gap)
    taken: dict[int, int] = {}
    for at in range(0, len(spans), size):
        starts, ends = (np.array(column, np.int64) for column in zip(*spans[at : at + size], strict=True))
        for (start, end), lane in zip(spans[at : at + size], lanes.assign("track", starts, ends).tolist(), strict=True):
            assert taken.get(lane, -1) + gap <= start or lane not in taken
            taken[lane] = end
    overlapping = max(sum(start <= at < end + gap or start == at for start, end in spans) for at, _ in spans)
    assert len(taken) <= max(1, overlapping)
