"""Checks of every importer: times that cannot be, and values that DuckDB or Arrow cannot take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from kvtrace.errors import KvtraceError

LONGEST_NS = 30 * 86_400 * 10**9
"""A duration beyond it is no measurement."""
LARGEST_TIME_BITS = 61
"""A time that needs more is none: a clock's base, a start and a duration add up within 64 bits."""

_BEYOND = (duckdb.DataError, duckdb.InvalidInputException, pa.ArrowInvalid, OverflowError, UnicodeError)


def span_sql(start: str, end: str) -> str:
    """SQL that says whether something can have begun and ended then, DuckDB's and SQLite's; true where one is NULL."""
    limit = 1 << LARGEST_TIME_BITS
    return (
        f"coalesce({start} BETWEEN {-limit} AND {limit} AND {end} BETWEEN {start} AND {limit} "
        f"AND {end} / 2 - {start} / 2 <= {LONGEST_NS // 2}, true)"
    )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file where its numbers are out of all range, alone or together: sums and differences are taken in SQL.

    Raises:
        KvtraceError: In place of the library's error.
    """
    try:
        yield
    except _BEYOND as error:
        text = str(error).strip().splitlines()[0][:300]
        raise KvtraceError(f"{path} is damaged: it holds a value that no table takes: {text}") from error
