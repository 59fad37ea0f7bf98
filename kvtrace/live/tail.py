"""Reading a stream's segments as they grow: each whole record once, in order."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.format.layout import SEGMENT_HEADER_BYTES, segment_name
from kvtrace.format.segment import Segment, read_segment

Rows = NDArray[Any]
"""Records of one event: a structured array with the event's fields."""

PATIENCE_S = 1.0
"""A record before whole ones may still be being written for this long; then it counts as torn."""

DTYPES = {"q": "<i8", "i": "<i4", "I": "<u4", "Q": "<u8", "B": "u1", "?": "?"}
"""numpy's types of the codes of `struct` in a segment's header."""

_SMALLEST_READ_BYTES = 1 << 14
_LARGEST_READ_BYTES = 1 << 20
_WHOLE = "_whole"


class Tail:
    """One event's records of one process.

    Files are read, not mapped, so that their pages do not count as this process's memory.

    Attributes:
        torn: Places given up on: records that were never finished.
        skipped_files: Segments that were discarded before they were read.
    """

    def __init__(self, directory: Path, event: str, patience_s: float = PATIENCE_S) -> None:
        self.torn = 0
        self.skipped_files = 0
        self._directory = directory
        self._event = event
        self._patience_s = patience_s
        self._sequence = -1
        self._segment: Segment | None = None
        self._dtype: np.dtype[Any] = np.dtype([])
        self._descriptor = -1
        self._slot = 0
        self._stuck_since: float | None = None

    def close(self) -> None:
        """Close the open segment."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._segment, self._descriptor = None, -1

    def read(self, sequences: Sequence[int], most_records: int) -> Rows | None:
        """Return records that were not returned before.

        Args:
            sequences: Numbers of the event's segment files that there are, sorted, without compacted ones.
            most_records: Return about so many at most; fewer say that there were no more.

        Returns:
            The records, or None.
        """
        parts: list[Rows] = []
        count = 0
        while count < most_records:
            if self._segment is None and not self._open_next(sequences):
                break
            followed = bool(sequences) and sequences[-1] > self._sequence
            while count < most_records and (part := self._read_part()) is not None:
                parts.append(part)
                count += len(part)
            if count < most_records:
                if not self._is_finished(followed):
                    break
                self.close()
        return np.concatenate(parts) if parts else None

    def _open_next(self, sequences: Sequence[int]) -> bool:
        later = [sequence for sequence in sequences if sequence > self._sequence]
        if not later:
            return False
        path = self._directory / segment_name(self._event, later[0])
        try:
            segment = read_segment(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if segment else -1
        except FileNotFoundError:  # discarded meanwhile: the next reading lists the files again
            return False
        if segment is None:
            return False
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead of the writer
        self.skipped_files += later[0] - self._sequence - 1 if self._sequence >= 0 else 0
        self._sequence, self._segment, self._descriptor, self._slot = later[0], segment, descriptor, 0
        self._dtype = np.dtype([*((f.name, DTYPES[f.code]) for f in segment.fields), (_WHOLE, "u1")])
        self._stuck_since = None
        return True

    def _read_part(self) -> Rows | None:
        """The next whole records; None if there are none for now."""
        if self._segment is None or self._slot >= self._segment.slots:
            return None
        size = self._dtype.itemsize
        length = _SMALLEST_READ_BYTES
        while True:
            places = min(max(length // size, 1), self._segment.slots - self._slot)
            rows = self._rows_at(places)
            whole = rows[_WHOLE] == 1
            if not whole.all() or length >= _LARGEST_READ_BYTES or places < length // size:
                break
            length *= 4
        first_gap = len(rows) if whole.all() else int(whole.argmin())
        if first_gap:
            rows = self._rows_at(first_gap)  # again: one may have been finished while it was copied from its front
            self._slot += first_gap
            self._stuck_since = None
            return rows
        if whole.any() and self._waited_enough():
            gap = int(whole.argmax())
            self.torn += gap
            self._slot += gap
            return self._read_part()
        return None

    def _rows_at(self, places: int) -> Rows:
        """The next places as they are now; fewer if the file was cut off."""
        size = self._dtype.itemsize
        raw = os.pread(self._descriptor, places * size, SEGMENT_HEADER_BYTES + self._slot * size)
        return np.frombuffer(raw, self._dtype, len(raw) // size)

    def _waited_enough(self) -> bool:
        now = time.monotonic()
        if self._stuck_since is None:
            self._stuck_since = now
        return now - self._stuck_since >= self._patience_s

    def _is_finished(self, followed: bool) -> bool:
        """Return whether nothing more will come to the open segment."""
        if self._segment is None or self._slot >= self._segment.slots:
            return True
        return followed and self._waited_enough()
