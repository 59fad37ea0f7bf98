"""Finds the track of each row: by its keys, in a lane where nothing overlaps."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.export.perfetto.lanes import FOREVER, Lanes
from kvtrace.export.perfetto.packets import Drawn
from kvtrace.export.perfetto.source import Source
from kvtrace.export.perfetto.tracks import Names, Node, Tracks, in_lane
from kvtrace.export.perfetto.wire import Column, Ints


class Drawing:
    """Gives rows their tracks; remembers what is taken from batch to batch."""

    def __init__(self, names: Names, tracks: Tracks) -> None:
        self._names = names
        self._tracks = tracks
        self._lanes: dict[str, Lanes] = {}
        self._lane_of: dict[tuple[Any, ...], int] = {}

    def draw(self, source: Source, rows: pa.RecordBatch) -> Drawn:
        """The rows with their tracks. Batches of a source must come in the order of time."""
        if source.counters:
            return Drawn(source, rows, self._counters(source, rows))
        keys = [rows[name] for name in source.keys]
        if source.owns_lanes:
            lanes = self._own(source, rows, keys)
            return Drawn(source, rows, self._placed(source, [*keys[:-1], pa.array(lanes)]))
        if source.in_lanes:
            owners = zip(*(key.to_pylist() for key in keys), strict=True)
            keys = [*keys[:-1], pa.array([self._lane_of.get(owner, 0) for owner in owners], pa.int64())]
        tracks = np.zeros(len(rows), np.int64)
        for key, places in _groups(keys):
            path = source.place(self._names, key)
            lanes = self._side_by_side(source, path, rows.take(places))
            numbers = {lane: self._tracks.number(in_lane(path, lane)) for lane in np.unique(lanes).tolist()}
            tracks[places] = [numbers[lane] for lane in lanes.tolist()]
        return Drawn(source, rows, tracks)

    def _own(self, source: Source, rows: pa.RecordBatch, keys: list[Column]) -> Ints:
        """Lanes for the owners of lanes, which what lies inside them finds again by the same keys."""
        lanes = np.zeros(len(rows), np.int64)
        for key, places in _groups(keys[:-1]):
            lanes[places] = self._side_by_side(source, (source.name, *key), rows.take(places))
        owners = zip(*(key.to_pylist() for key in keys), strict=True)
        self._lane_of.update(zip(owners, lanes.tolist(), strict=True))
        return lanes

    def _side_by_side(self, source: Source, track: Hashable, rows: pa.RecordBatch) -> Ints:
        """Lanes by track, not by key: two profiles may have the same thread."""
        lanes = self._lanes.setdefault(source.name, Lanes(source.gap_ns))
        ends = rows["end_ns"].fill_null(FOREVER).to_numpy(False)
        return lanes.assign(track, rows["start_ns"].to_numpy(False), ends)

    def _placed(self, source: Source, keys: list[Column]) -> Ints:
        tracks = np.zeros(len(keys[0]), np.int64)
        for key, places in _groups(keys):
            tracks[places] = self._tracks.number(source.place(self._names, key))
        return tracks

    def _counters(self, source: Source, rows: pa.RecordBatch) -> Ints:
        tracks = np.zeros((len(rows), len(source.counters)), np.int64)
        for key, places in _groups([rows[name] for name in source.keys]):
            base = source.place(self._names, key)
            for place, (_, name, unit) in enumerate(source.counters):
                node = Node(name or str(key[-1]), rank=place + 1, unit=unit)
                tracks[places, place] = self._tracks.number((*base, node))
        return tracks


def _groups(keys: list[Column]) -> Iterator[tuple[tuple[Any, ...], Ints]]:
    """The different keys, and where each is, in order."""
    if not keys:
        return
    codes = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        encoded: Column = key if pa.types.is_dictionary(key.type) else pc.dictionary_encode(key)
        indices = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(False).astype(np.int64)
        _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for places in np.split(order, bounds[1:]):
        yield tuple(key[int(places[0])].as_py() for key in keys), places
