"""The texts of interned ids, read as they are written. Only the newest are kept."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from kvtrace.format.jsonlines import parse_json
from kvtrace.format.reader import string_files
from kvtrace.live.window import table

PLACES = 1 << 14
_LONGEST = 80
_AT_ONCE_BYTES = 1 << 20


class Names:
    """Texts by number in a process: the last `PLACES` of them, cut after 80 characters."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = table(PLACES, np.int64)
        self._texts = table(PLACES, f"U{_LONGEST}")
        self._sequence = 0
        self._offset = 0

    def __getitem__(self, number: int) -> str:
        """A text; its number where it is not known."""
        place = number % PLACES
        return str(self._texts[place]) if self._numbers[place] == number else f"#{number}"

    def read(self) -> None:
        """Read what was written since the last time."""
        for sequence, path in string_files(self._directory):
            if sequence < self._sequence:
                continue
            if sequence > self._sequence:
                self._sequence, self._offset = sequence, 0
            with path.open("rb") as file:
                file.seek(self._offset)
                while self._take(file.read(_AT_ONCE_BYTES)):
                    file.seek(self._offset, os.SEEK_SET)

    def _take(self, data: bytes) -> bool:
        """Take up whole lines; False if there are none."""
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].splitlines():
            match parse_json(line):
                case [int(number), str(text)]:
                    self._numbers[number % PLACES], self._texts[number % PLACES] = number, text
        return end > 0
