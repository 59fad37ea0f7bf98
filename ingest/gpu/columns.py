"""Types and columns that only the GPU tables have."""

from __future__ import annotations

from kvtrace.events import EnumType, Field, Type

UBIGINT = Type("ubigint", "", "UBIGINT")
U8 = Type("u8", "", "UTINYINT")


def choice(name: str, members: EnumType, doc: str) -> Field:
    """A column with one of an enum's values."""
    return Field(name, Type("enum", "", "ENUM"), doc, members)
