"""Gives one input to a reader, and says what is wrong if it does not return or refuse as it should."""

from __future__ import annotations

import faulthandler
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from kvtrace.errors import KvtraceError
from tests.hostile.readers import Desk, Reader

Depth = Literal["dry", "read", "finish"]
LONGEST_S = 10
STUCK_S = 120
"""Longer than that inside a library that heeds no signal: the process ends."""
MOST_BYTES = 3 << 30
LONGEST_MESSAGE = 1200


class Finding(NamedTuple):
    """Failure of a reader: of one kind wherever `where` is the same."""

    where: str
    text: str


class TooLong(BaseException):
    """The alarm rang."""


class Judge:
    """Judges inputs one after another. Limits this process's memory for good if `limited`."""

    def __init__(self, folder: Path, *, limited: bool = False) -> None:
        self._folder = folder
        self._limited = limited
        self.desk = Desk(folder)
        self.accepted = 0
        signal.signal(signal.SIGALRM, _ring)
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MOST_BYTES, resource.RLIM_INFINITY))

    def judge(self, reader: Reader, path: str, data: bytes, depth: Depth = "finish") -> Finding | None:
        """Read an input: None if it was read, or refused in a message that names the file."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        file = reader.place(place, path, data)
        self.desk.begin(dry=depth == "dry")
        try:
            with _alarm(stuck=self._limited):
                rest = reader.read(place, file, self.desk)
                self.accepted += 1
                if depth == "finish":
                    rest()
        except KvtraceError as error:
            text = str(error)
            return _message_finding(text.split("\n", maxsplit=1)[0] if reader.shows_place else text, place)
        except (Exception, TooLong) as error:
            return Finding(_where(error), "".join(traceback.format_exception(error))[-4000:])
        finally:
            self.desk.undo()
            shutil.rmtree(place)
        return None


def _message_finding(message: str, place: Path) -> Finding | None:
    names = [path.name for path in (*place.rglob("*"), place) if path.is_file() or path is place]
    if not any(name in message for name in names):
        return Finding(f"message without a file: {_shape(message)}", message)
    if "\n" in message or len(message) > LONGEST_MESSAGE:
        return Finding(f"message of many lines or letters: {_shape(message)}", message[:2000])
    return None


def _shape(message: str) -> str:
    return "".join(char for char in message.rpartition("/")[2][:40] if not char.isdigit())


def _where(error: BaseException) -> str:
    """The kind of error and the innermost line of kvtrace's."""
    if "Query interrupted" in str(error):
        error = TooLong().with_traceback(error.__traceback__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/kvtrace/" in frame.filename]
    inner = frames[-1] if frames else None
    what = type(error).__name__
    return f"{what} in {Path(inner.filename).name}:{inner.name}" if inner else what


@contextmanager
def _alarm(*, stuck: bool) -> Iterator[None]:
    if stuck:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if stuck:
            faulthandler.cancel_dump_traceback_later()


def _ring(signum: int, frame: object) -> None:
    raise TooLong


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
