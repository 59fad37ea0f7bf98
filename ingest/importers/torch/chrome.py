"""Reads Chrome traces as PyTorch's profiler writes them, event by event, however long they are."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kvtrace.errors import KvtraceError

CHUNK_CHARS = 1 << 20
LARGEST_VALUE_CHARS = 64 << 20
_WHITESPACE = " \t\r\n"
_DECODER = json.JSONDecoder(parse_float=str)
"""Keeps fractions as they are written: microseconds since the epoch with three decimals do not fit a double."""

Event = dict[str, Any]


class ChromeTrace:
    """A trace that is read once: `events` first, then `facts` has everything else of the file's top level."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self._buffer = ""
        self._at = 0
        self._ended = False

    def events(self) -> Iterator[Event]:
        """The trace events, in the file's order.

        Raises:
            KvtraceError: The file is missing, no Chrome trace, truncated or damaged.
        """
        try:
            with _open(self.path) as file:
                self._file = file
                yield from self._top_level()
        except FileNotFoundError as error:
            raise KvtraceError(f"{self.path} does not exist; expected a PyTorch profiler trace") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise KvtraceError(f"{self.path} is truncated or damaged: {error}; export it again") from error
        except OSError as error:
            raise KvtraceError(f"cannot read {self.path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._wrong("a Chrome trace (JSON)") from error

    def _top_level(self) -> Iterator[Event]:
        first = self._peek()
        if first == "[":
            yield from self._list()
            return
        if first != "{":
            raise self._wrong("a Chrome trace (JSON)")
        self._at += 1
        found = False
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            if key == "traceEvents":
                found = True
                yield from self._list()
            elif isinstance(key, str):
                self.facts[key] = self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise self._wrong("',' or '}'")
        if not found:
            raise KvtraceError(f"{self.path} has no traceEvents; expected a trace of PyTorch's profiler")

    def _list(self) -> Iterator[Event]:
        self._expect("[")
        while self._peek() != "]":
            value = self._value()
            if isinstance(value, dict):
                yield value
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "]":
                raise self._wrong("',' or ']'")
        self._at += 1

    def _expect(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise self._wrong(repr(wanted))
        self._at += 1

    def _peek(self) -> str:
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _WHITESPACE:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                raise KvtraceError(f"{self.path} ends in the middle: it is truncated or still being written")

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                too_long = len(self._buffer) - self._at > LARGEST_VALUE_CHARS
                if too_long or isinstance(error, RecursionError):
                    raise self._wrong("a JSON value") from error
                wrong_here = getattr(error, "pos", 0) < len(self._buffer) - CHUNK_CHARS
                if wrong_here or not self._more():
                    raise self._wrong("a JSON value") from error
                continue
            if end == len(self._buffer) and self._more():  # a number may go on
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        if self._ended:
            return False
        # As much again as there is: a value that is longer than a piece is tried a few times, not once a piece.
        text = self._file.read(max(CHUNK_CHARS, len(self._buffer) - self._at))
        self._ended = not text
        self._buffer = self._buffer[self._at :] + text
        self._at = 0
        return bool(text)

    def _wrong(self, wanted: str) -> KvtraceError:
        found = self._buffer[self._at : self._at + 20]
        return KvtraceError(
            f"{self.path} is no trace of PyTorch's profiler, or damaged: expected {wanted} at {found!r}"
        )


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")


def nanoseconds(text: object) -> int | None:
    """Microseconds as written, to whole nanoseconds, exactly."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text * 1000
    if not isinstance(text, str):
        return None
    try:
        if "e" in text or "E" in text:
            return round(float(text) * 1000)
        whole, _, fraction = text.partition(".")
        sign = -1 if whole.startswith("-") else 1
        return int(whole) * 1000 + sign * int((fraction + "000")[:3])
    except (ValueError, OverflowError):
        return None
