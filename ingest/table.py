"""How a derived table is declared."""

from __future__ import annotations

from typing import NamedTuple

from kvtrace.events import Field, Type


class Table(NamedTuple):
    """A derived table or view. A view has the SQL that makes it."""

    name: str
    doc: str
    fields: tuple[Field, ...]
    view: str | None = None


def column(name: str, type_: Type, doc: str) -> Field:
    """A column of a derived table."""
    return Field(name, type_, doc)
