"""The last net under the importers: what DuckDB or Arrow cannot take is said of the file that it came from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from kvtrace.errors import KvtraceError

_BEYOND = (duckdb.DataError, duckdb.InvalidInputException, pa.ArrowInvalid, OverflowError, UnicodeError)


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
