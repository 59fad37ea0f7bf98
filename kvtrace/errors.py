"""The one exception users see. The command line turns it into a line on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


class KvtraceError(Exception):
    """Something a user can act on: what was found, where, what was expected, what to try.

    `exit_code` is what the command line exits with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DamageError(KvtraceError):
    """A file of a recording is damaged, truncated or foreign; the others may be whole."""


Tell = Callable[[str], None]
"""Takes a sentence about what was left out."""


def refuse(message: str, tell: Tell | None) -> None:
    """Refuse what is damaged, or only tell of it where that is asked for.

    Raises:
        DamageError: There is no `tell`.
    """
    if tell is None:
        raise DamageError(message)
    tell(message)


def name_below(folder: Path, pattern: str) -> str:
    """Folders in `folder` that hold what was looked for in itself, as advice: `; name one in it: a, b`. Else nothing.

    Args:
        folder: The folder that a user named.
        pattern: What it lacks: the name of a file or folder.
    """
    below = [str(path.parent) for path in sorted(folder.glob(f"*/{pattern}"))]
    more = f" and {len(below) - 3} more" if len(below) > 3 else ""
    return f"; name one in it: {', '.join(below[:3])}{more}" if below else ""


EXTRAS = {
    "analysis": (
        "adbc_driver_manager",
        "adbc_driver_sqlite",
        "duckdb",
        "matplotlib",
        "numpy",
        "pandas",
        "pyarrow",
        "sqlite_utils",
    ),
    "export": ("perfetto", "google"),
    "polars": ("polars",),
    "spark": ("pyspark", "sqlglot"),
}
"""Extras of pyproject.toml, and the top-level modules that they bring."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn a missing package of an extra into advice. `what` is what needs it, such as "--perfetto"."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in EXTRAS[extra]:
            raise
        raise KvtraceError(
            f"{missing.name} is not installed; {what} needs it: pip install 'kvtrace[{extra}]'"
        ) from missing


def needs_analysis() -> AbstractContextManager[None]:
    """Turn a missing package of the extra `analysis` into advice."""
    return needs_extra("analysis", "reading a recording")
