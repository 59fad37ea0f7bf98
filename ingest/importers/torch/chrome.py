"""Reads Chrome traces as PyTorch's profiler writes them, event by event, however long they are.

PyTorch writes JSON by hand, so some of it is none: paths with single backslashes, control characters, `nan` and `inf`,
names that are no UTF-8. Such values are mended where it is clear what was meant, and counted. Everything else that is
no JSON is an error with its line, byte and cause.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from kvtrace.errors import KvtraceError

CHUNK_CHARS = 1 << 20
LARGEST_VALUE_CHARS = 64 << 20
_MENDED_CHARS = 4096
_NEAR_END = 16
_WHITESPACE = " \t\r\n"
_DECODER = json.JSONDecoder(parse_float=str)
"""Keeps fractions as they are written: microseconds since the epoch with three decimals do not fit a double."""
_LENIENT = json.JSONDecoder(parse_float=str, strict=False)
_NO_NUMBER = re.compile(r"[-+]?(nan|inf(inity)?)(\(\w*\))?(?=[\s,\]}])", re.IGNORECASE)
_TRUNCATED = "it ends in the middle: it is truncated or still being written"
_BAD_UTF8 = "bytes that are no UTF-8"

Event = dict[str, Any]


class ChromeTrace:
    """A trace that is read once: `events` first, then `facts` has everything else of the file's top level.

    Attributes:
        facts: What stands beside the events at the top level.
        mended: How many faults of which kind were mended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.mended: Counter[str] = Counter()
        self._buffer = ""
        self._at = 0
        self._dropped = 0  # characters before the buffer
        self._ended = False
        self._broken = False  # a value had to be mended: the next one may, too

    def events(self) -> Iterator[Event]:
        """The trace events, in the file's order.

        Raises:
            KvtraceError: The file is missing, no Chrome trace, truncated or damaged.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")(_replacing(self.mended))
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

    def _top_level(self) -> Iterator[Event]:
        self._more()
        self._at = 1 if self._buffer.startswith("\ufeff") else 0
        first = self._peek()
        if first == "[":
            yield from self._list()
        elif first == "{":
            yield from self._object()
        else:
            raise self._wrong("neither '{' nor '['")
        if self._skip():
            raise self._wrong("another document, or something else, follows the first; split the file")

    def _object(self) -> Iterator[Event]:
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
                raise self._wrong("expected ',' or '}'")
        self._at += 1
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
                raise self._wrong("expected ',' or ']'")
        self._at += 1

    def _expect(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise self._wrong(f"expected {wanted!r}")
        self._at += 1

    def _skip(self) -> bool:
        """Skip whitespace; False at the end of the file."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _WHITESPACE:
                self._at += 1
            if self._at < len(self._buffer):
                return True
            if not self._more():
                return False

    def _peek(self) -> str:
        if not self._skip():
            raise self._wrong(_TRUNCATED)
        return self._buffer[self._at]

    def _value(self) -> Any:
        self._peek()
        while True:
            if self._broken:
                return self._mended_value()
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._at)
            except RecursionError as error:
                raise self._wrong("values lie too deep in each other") from error
            except ValueError as error:
                if len(self._buffer) - self._at > LARGEST_VALUE_CHARS:
                    raise self._wrong(f"a value of more than {LARGEST_VALUE_CHARS >> 20} million characters") from error
                wrong_here = getattr(error, "pos", 0) < len(self._buffer) - CHUNK_CHARS
                if wrong_here or not self._more():
                    self._broken = True
                continue
            if end == len(self._buffer) and self._more():  # a number may go on
                continue
            self._at = end
            return value

    def _mended_value(self) -> Any:
        """The value that begins here, if need be with what is no JSON put right: in a copy of the text that follows."""
        size = _MENDED_CHARS
        while True:
            while self._at + size > len(self._buffer) and self._more():
                pass
            text = self._buffer[self._at : self._at + size]
            whole = len(text) < size
            found: Counter[str] = Counter()
            value, taken, fault = _decode(text, found, whole=whole)
            if fault is None:
                self.mended += found
                self._broken = bool(found)
                self._at += taken
                return value
            if whole and (not fault.certain or self._at + fault.at >= len(self._buffer)):
                raise self._wrong(_TRUNCATED, len(text))
            if fault.certain or size > LARGEST_VALUE_CHARS:
                raise self._wrong(fault.cause, fault.at)
            size *= 2

    def _more(self) -> bool:
        if self._ended:
            return False
        # As much again as there is: a value that is longer than a piece is tried a few times, not once a piece.
        data = self._file.read(max(CHUNK_CHARS, len(self._buffer) - self._at))
        self._ended = not data
        text = self._decoder.decode(data, final=self._ended)
        self._dropped += self._at
        self._buffer = self._buffer[self._at :] + text
        self._at = 0
        return bool(data)

    def _wrong(self, cause: str, ahead: int = 0) -> KvtraceError:
        """Return the error to raise about the text here, or so many characters ahead: line, byte and cause."""
        at = self._at + ahead
        found = self._buffer[at : at + 20]
        line, byte = _place(self.path, self._dropped + at)
        near = f" at {found!r}" if found else ""
        return KvtraceError(
            f"{self.path} is no trace of PyTorch's profiler, or damaged: line {line}, byte {byte}: {cause}{near}"
        )


class _Fault(NamedTuple):
    """Why a text is no value: the cause, the character, and if more text could not make it one."""

    cause: str
    at: int
    certain: bool


def _decode(text: str, found: Counter[str], *, whole: bool) -> tuple[Any, int, _Fault | None]:
    """Decode the value that a text begins with, mending it.

    Args:
        text: The text; if not `whole`, more of it follows.
        found: Counts what was mended.
        whole: The file ends where the text does.

    Returns:
        The value, how many characters of the text it takes, and None; or what is wrong.
    """
    decoder, shift = _DECODER, 0
    while True:
        try:
            value, end = decoder.raw_decode(text)
        except RecursionError:
            return None, 0, _Fault("values lie too deep in each other", 0, True)
        except json.JSONDecodeError as error:
            at, cause, near_end = error.pos, error.msg, not whole and error.pos > len(text) - _NEAR_END
            if near_end or cause.startswith("Unterminated"):
                return None, 0, _Fault(cause, at - shift, False)
            if cause.startswith("Invalid control") and decoder is _DECODER:
                decoder = _LENIENT
                found["values with control characters"] += 1
            elif cause.startswith("Invalid \\"):
                at = text.rindex("\\", 0, at + 1)  # of \uXXXX the decoder names what follows
                text, shift = f"{text[:at]}\\{text[at:]}", shift + 1
                found["single backslashes"] += 1
            elif (match := _NO_NUMBER.match(text, at)) is not None:
                text, shift = f"{text[:at]}null{text[match.end() :]}", shift + 4 - len(match[0])
                found["numbers that are none (nan, inf)"] += 1
            else:
                return None, 0, _Fault(cause, at - shift, True)
        except ValueError as error:  # more digits than Python takes
            return None, 0, _Fault(str(error), 0, True)
        else:
            if end == len(text) and not whole:
                return None, 0, _Fault("", 0, False)
            return value, end - shift, None


def _replacing(counts: Counter[str]) -> str:
    """The name of an error handler that counts what it replaces."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        counts[_BAD_UTF8] += 1
        return "\ufffd", error.end

    name = f"kvtrace-replace-{id(counts)}"
    codecs.register_error(name, replace)
    return name


def _place(path: Path, characters: int) -> tuple[int, int]:
    """Line, from 1, and byte, from 0, of what follows so many characters of a file's content."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    line, byte, left = 1, 0, characters
    with _open(path) as file:
        while left > 0 and (data := file.read(min(CHUNK_CHARS, left))):  # never more characters than bytes
            text = decoder.decode(data)
            line, byte, left = line + text.count("\n"), byte + len(data), left - len(text)
    return line, byte


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")  # type: ignore[return-value]


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
