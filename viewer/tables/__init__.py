"""Tables of a page that are one query each: a file a table, with one declaration named `TABLE`. A new file is found."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from kvtrace.viewer.data_set import LaneTable


def declared() -> tuple[LaneTable, ...]:
    """Every module's declaration, by the modules' names."""
    return tuple(
        import_module(f"{__name__}.{name}").TABLE for name in sorted(each.name for each in iter_modules(__path__))
    )
