"""The one exception users see. The command line turns it into a line on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class KvtraceError(Exception):
    """Something a user can act on: what was found, where, what was expected, what to try.

    `exit_code` is what the command line exits with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_ANALYSIS = {
    "adbc_driver_manager",
    "adbc_driver_sqlite",
    "duckdb",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "sqlite_utils",
}


@contextmanager
def needs_analysis() -> Iterator[None]:
    """Turn a missing package of the extra `analysis` into advice."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in _ANALYSIS:
            raise
        raise KvtraceError(
            f"{missing.name} is not installed; reading a recording needs it: pip install 'kvtrace[analysis]'"
        ) from missing
