"""Azure's LLM inference traces and BurstGPT, as CSV: arrivals and tokens, without hashes of what prompts hold."""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime
from typing import ClassVar

from kvtrace.ingest.append import nanoseconds
from kvtrace.ingest.importers.request_trace.format import Asked, Format, ShortError, count, time_of

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def heading(text: str) -> dict[str, int]:
    """The place of each column of a CSV's heading, by its name in lower case; nothing if the text is no CSV."""
    try:
        names = list(enumerate(_values(text)))
    except ValueError:
        return {}
    return {name.strip().lower(): place for place, name in reversed(names)}


def _values(text: str) -> list[str]:
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error


class _Csv(Format):
    """Rows under a heading.

    Attributes:
        needs: The columns that make a CSV one of this format.
        known: Columns that it may also have; no table has them.
    """

    needs: ClassVar[set[str]]
    known: ClassVar[set[str]] = set()

    def __init__(self, columns: dict[str, int]) -> None:
        super().__init__()
        self._columns = columns
        self._width = 0

    def read(self, text: str) -> Asked | None:
        """The request of a row; None for the heading, also where files were put together."""
        values = _values(text)
        if not self._width:
            self._width = len(values)
            self.unknown.update(self._columns.keys() - self.needs - self.known)
            return None
        if len(values) != self._width:
            kind = ShortError if len(values) < self._width else ValueError
            raise kind(f"{len(values)} values, where the heading has {self._width}")
        try:
            return self._row({name: values[place].strip() for name, place in self._columns.items()})
        except ValueError:
            if heading(text) == self._columns:
                return None
            raise

    def _row(self, row: dict[str, str]) -> Asked:
        raise NotImplementedError


class Azure(_Csv):
    """Azure's traces of 2023, 2024 (language) and 2025 (with images)."""

    says = "Azure: times of day, taken for UTC"
    needs: ClassVar = {"timestamp", "contexttokens", "generatedtokens"}
    known: ClassVar = {"numimages"}

    def _row(self, row: dict[str, str]) -> Asked:
        given = row["timestamp"]
        return Asked(
            time_of(given, unix_ns(given), "TIMESTAMP"), count(row, "contexttokens"), count(row, "generatedtokens")
        )


class BurstGpt(_Csv):
    """BurstGPT: times in s from the first day's midnight. Newer files have sessions and how long a request took."""

    says = "BurstGPT: times in s"
    needs: ClassVar = {"timestamp", "request tokens", "response tokens"}
    known: ClassVar = {"model", "total tokens", "log type", "session id", "elapsed time"}

    def _row(self, row: dict[str, str]) -> Asked:
        given, took = row["timestamp"], row.get("elapsed time", "")
        arrival_ns = time_of(given, nanoseconds(given, 1e9), "Timestamp")
        took_ns = nanoseconds(took, 1e9)
        return Asked(
            arrival_ns, count(row, "request tokens"), count(row, "response tokens"),
            session=row.get("session id") or None,
            finished_ns=None if took_ns is None else arrival_ns + took_ns,
        )  # fmt: skip


def unix_ns(text: str) -> int | None:
    """A date with a time of day, to the ns, as UNIX time; None if it is none. Without a zone it is UTC."""
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        return None
    day, time, fraction, zone = match.groups()
    try:
        stamp = datetime.fromisoformat(f"{day}T{time}{zone or '+00:00'}")
    except ValueError:
        return None
    past = stamp - datetime(1970, 1, 1, tzinfo=UTC)
    whole_s = past.days * 86_400 + past.seconds
    return whole_s * 10**9 + int((fraction or "0").ljust(9, "0"))
