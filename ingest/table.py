"""How a derived table or view is declared."""

from __future__ import annotations

from typing import NamedTuple

from kvtrace.events import EnumType, Field, Type

TEXT = Type("text", "", "VARCHAR")
BIGINT = Type("bigint", "", "BIGINT")
UBIGINT = Type("ubigint", "", "UBIGINT")
INTEGER = Type("integer", "", "INTEGER")
DOUBLE = Type("double", "", "DOUBLE")
BOOLEAN = Type("bool", "", "BOOLEAN")
U8 = Type("u8", "", "UTINYINT")


class Table(NamedTuple):
    """A derived table or view. A view has the SQL that makes it."""

    name: str
    doc: str
    fields: tuple[Field, ...]
    view: str | None = None


def column(name: str, type_: Type, doc: str) -> Field:
    """A column of a derived table."""
    return Field(name, type_, doc)


def choice(name: str, members: EnumType, doc: str) -> Field:
    """A column with one of an enum's values."""
    return Field(name, Type("enum", "", "ENUM"), doc, members)
