"""The requests that an engine has now, in a table of fixed size."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtrace.live.window import table

PLACES = 1 << 16
"""Most requests at once. Numbers grow, so a request's place is its number modulo this."""

_ROW = np.dtype(
    [
        ("request", "<u4"),
        ("state", "u1"),
        ("session", "<u4"),
        ("arrival_ns", "<i8"),
        ("queued_ns", "<i8"),
        ("first_token_ns", "<i8"),
        ("last_token_ns", "<i8"),
        ("prompt_tokens", "<i4"),
        ("output_tokens", "<i4"),
        ("cached_tokens", "<i4"),
        ("blocks", "<i4"),
        ("preemptions", "<i4"),
    ]
)


class State(enum.IntEnum):
    """Where a request is."""

    waiting = 1
    running = 2
    preempted = 3
    finished = 4


class Seen(NamedTuple):
    """A request as it is shown. Times are CLOCK_MONOTONIC nanoseconds; 0 where not known, or not yet."""

    request: int
    state: State
    session: int
    queued_ns: int
    first_token_ns: int
    ended_ns: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    blocks: int
    preemptions: int


class Requests:
    """Requests that are waiting or running, by number. Columns are those of the table's rows."""

    def __init__(self) -> None:
        self._rows = table(PLACES, _ROW)
        self._ended = table(PLACES, np.uint32)

    def place(self, requests: Any) -> NDArray[np.intp]:
        """Places of requests by number; a request that was not known gets its place, running."""
        requests = np.atleast_1d(np.asarray(requests, np.uint32))
        places: NDArray[np.intp] = (requests % PLACES).astype(np.intp)
        new = self._rows["request"][places] != requests
        if new.any():
            fresh = np.zeros(int(new.sum()), _ROW)
            fresh["request"], fresh["state"], fresh["prompt_tokens"] = requests[new], State.running, -1
            self._rows[places[new]] = fresh
        return places

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column over all places; it may be written to."""
        found: NDArray[Any] = self._rows[column]
        return found

    def is_live(self, request: int) -> bool:
        """Return whether a request waits or runs."""
        row = self._rows[request % PLACES]
        return bool(row["request"] == request and row["state"] != 0)

    def row(self, place: int) -> Any:
        """The row at a place."""
        return self._rows[place]

    def remove(self, place: int) -> None:
        """Free the place of a request that ended."""
        self._ended[place] = self._rows["request"][place]
        self._rows[place] = np.zeros((), _ROW)

    def has_not_ended(self, requests: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Tell requests apart from those that ended: a step may have been scheduled before its request's end came."""
        going_on: NDArray[np.bool_] = (requests != 0) & (self._ended[requests % PLACES] != requests)
        return going_on

    def live(self) -> NDArray[Any]:
        """A copy of the rows of all requests there are."""
        rows: NDArray[Any] = self._rows[self._rows["state"] != 0]
        return rows


def seen(row: Any, ended_ns: int = 0) -> Seen:
    """A row of the table as it is shown."""
    return Seen(
        int(row["request"]),
        State.finished if ended_ns else State(int(row["state"])),
        int(row["session"]),
        int(row["queued_ns"]),
        int(row["first_token_ns"]),
        ended_ns,
        int(row["prompt_tokens"]),
        int(row["output_tokens"]),
        int(row["cached_tokens"]),
        int(row["blocks"]),
        int(row["preemptions"]),
    )
