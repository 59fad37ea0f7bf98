"""Lines of text files that other tools wrote, plain or packed with xz or gzip, with errors that name the line."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from kvtrace.errors import KvtraceError

LARGEST_LINE_BYTES = 256 << 20
_PACKED = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


class Line(NamedTuple):
    """A line of a file. The last one is not whole if the file does not end with a line break."""

    number: int
    text: str
    whole: bool


def read_lines(path: Path, expected: str) -> Iterator[Line]:
    """The lines of a file that hold something, numbered from 1, one at a time.

    Args:
        path: The file; packed with xz or gzip if its first bytes say so.
        expected: What it should be, for messages.

    Raises:
        KvtraceError: It cannot be read, is truncated, or holds bytes that no text has.
    """
    number = 0
    try:
        with path.open("rb") as packed:
            file = _unpacked(packed)
            while data := file.readline(LARGEST_LINE_BYTES + 1):
                number += 1
                if len(data) > LARGEST_LINE_BYTES:
                    raise KvtraceError(f"{path}, line {number}: longer than {LARGEST_LINE_BYTES >> 20} MiB; {expected}")
                if b"\0" in data:
                    raise KvtraceError(f"{path}, line {number}: binary data; {expected}")
                text = data.decode("utf-8", "replace").strip("\ufeff \t\r\n")
                if text:
                    yield Line(number, text, data.endswith(b"\n"))
    except _PACKED as error:
        what = f"{path}, after line {number}" if number else str(path)
        raise KvtraceError(f"{what}: the packed file is truncated or damaged: {error}; copy it again") from error
    except OSError as error:
        raise KvtraceError(f"cannot read {path}: {error.strerror or error}; {expected}") from error


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
