"""A derived table or view of a trace."""

from __future__ import annotations

from typing import NamedTuple

from kvtrace.events import Field


class Table(NamedTuple):
    """A derived table or view. A view has the SQL that makes it."""

    name: str
    doc: str
    fields: tuple[Field, ...]
    view: str | None = None
