"""Lines of text files that other tools wrote, plain or packed with xz or gzip, with errors that name line and byte."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from kvtrace.errors import KvtraceError

LARGEST_LINE_BYTES = 256 << 20
SHOWN_LINES = 5
_PACKED = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)
_AROUND = " \t\r\n"


class Line(NamedTuple):
    """A line of a file. The last one is not whole if the file does not end with a line break.

    Attributes:
        number: Its number, from 1.
        text: Its text, without what is blank around it. A byte that is no UTF-8 became U+FFFD.
        whole: A line break ends it.
        byte: Where its text begins in the file's content, unpacked, from 0.
        data: The bytes from there on.
    """

    number: int
    text: str
    whole: bool
    byte: int
    data: bytes

    def place(self, characters: int = 0) -> str:
        """Say where in the file so many characters of the text are: line and byte."""
        before = self.text[:characters].encode()
        if "\ufffd" in self.text[:characters]:  # it may stand for fewer bytes than it has
            before = next(self.data[:n] for n in range(len(self.data) + 1) if _characters(self.data[:n]) >= characters)
        return f"line {self.number}, byte {self.byte + len(before)}"


def _characters(data: bytes) -> int:
    return len(data.decode("utf-8", "replace"))


def read_lines(
    path: Path, expected: str, warnings: list[str] | None = None, *, may_be_written: bool = False
) -> Iterator[Line]:
    """The lines of a file that hold something, numbered from 1, one at a time.

    Args:
        path: The file; packed with xz or gzip if its first bytes say so.
        expected: What it should be, for messages.
        warnings: Gets one about bytes that are no UTF-8, when the last line was read.
        may_be_written: A packed file may lack its end, as its maker flushes it line by line; then this is warned of.

    Raises:
        KvtraceError: It cannot be read, is truncated, or holds bytes that no text has.
    """
    number = byte = 0
    mended = _Places()
    try:
        with path.open("rb") as packed:
            file = _unpacked(packed)
            while data := file.readline(LARGEST_LINE_BYTES + 1):
                number += 1
                if len(data) > LARGEST_LINE_BYTES:
                    raise KvtraceError(f"{path}, line {number}: longer than {LARGEST_LINE_BYTES >> 20} MiB; {expected}")
                if (at := data.find(b"\0")) >= 0:
                    raise KvtraceError(f"{path}, line {number}, byte {byte + at}: binary data; {expected}")
                line = _line(number, byte, data, mended)
                byte += len(data)
                if line.text:
                    yield line
    except _PACKED as error:
        if may_be_written and number and isinstance(error, EOFError) and warnings is not None:
            warnings.append(
                f"{path.name}: the packed file lacks its end, as while it is written; {number} lines were read"
            )
            return
        what = f"{path}, after line {number}" if number else str(path)
        raise KvtraceError(f"{what}: the packed file is truncated or damaged: {error}; copy it again") from error
    except OSError as error:
        raise KvtraceError(f"cannot read {path}: {error.strerror or error}; {expected}") from error
    finally:
        if mended.count and warnings is not None:
            warnings.append(f"{path.name}: bytes that are no UTF-8 were mended: {mended}")


def _line(number: int, byte: int, data: bytes, mended: _Places) -> Line:
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        decoded = data.decode("utf-8", "replace")
        mended.add(f"line {number}, byte {byte + error.start} (0x{data[error.start]:02x})")
    text = decoded.strip("\ufeff" + _AROUND)
    before = len(decoded[: decoded.find(text)].encode()) if text else 0
    return Line(number, text, data.endswith(b"\n"), byte + before, data[before:])


class _Places:
    """The first few places of something that is counted."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.first) < SHOWN_LINES:
            self.first.append(place)

    def __str__(self) -> str:
        return "; ".join(self.first) + (f"; ... ({self.count} in all)" if self.count > len(self.first) else "")


def fault(line: Line, cause: object) -> str:
    """Say where and why a line is not what it should be: line, byte, cause."""
    if isinstance(cause, json.JSONDecodeError):
        return f"{line.place(cause.pos)}: {cause.msg}"
    if isinstance(cause, RecursionError):
        return f"{line.place()}: values lie too deep in each other"
    text = f"{cause.args[0]} is missing" if isinstance(cause, KeyError) and cause.args else str(cause)
    return f"{line.place()}: {text[:120] or type(cause).__name__}"


class LeftOut:
    """Lines that an importer leaves out: it counts them and names the first few.

    Args:
        path: The file.
        what: What they are not, such as "no requests".
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._places = _Places()

    @property
    def count(self) -> int:
        """How many there are."""
        return self._places.count

    def add(self, line: Line, cause: object) -> None:
        """Leave out a line, because of an error or for a reason in words."""
        self._places.add(fault(line, cause))

    def warnings(self) -> list[str]:
        """One about all of them, if there are some."""
        if not self.count:
            return []
        return [f"{self._path.name}: {self.count} lines are {self._what} and were left out: {self._places}"]

    def refusal(self, expected: str) -> KvtraceError:
        """Return the error to raise where no line is left: it names the first one, or says that the file is empty."""
        if not self.count:
            return KvtraceError(f"{self._path} is empty; {expected}")
        return KvtraceError(f"{self._path}, {self._places.first[0]}; {expected}")


def read_head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file's content, unpacked; fewer if it is shorter or damaged.

    Raises:
        KvtraceError: It cannot be read.
    """
    try:
        with path.open("rb") as packed:
            try:
                return _unpacked(packed).read(size)
            except _PACKED:
                return b""
    except OSError as error:
        raise KvtraceError(f"cannot read {path}: {error.strerror or error}") from error


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\xfd7zXZ\0"):
        return lzma.open(file)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(file)  # type: ignore[return-value]
    return file


def plain_name(path: Path) -> str:
    """The file's name without what says that it is packed."""
    return path.name.removesuffix(".xz").removesuffix(".gz")
