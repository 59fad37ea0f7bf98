"""Declares derived tables, and the columns that event tables get."""

from __future__ import annotations

from typing import NamedTuple

from kvtrace.events import Event, Field, Type

TEXT = Type("text", "", "VARCHAR")
BIGINT = Type("bigint", "", "BIGINT")
INTEGER = Type("integer", "", "INTEGER")
DOUBLE = Type("double", "", "DOUBLE")
BOOLEAN = Type("bool", "", "BOOLEAN")


class Table(NamedTuple):
    """A derived table."""

    name: str
    doc: str
    fields: tuple[Field, ...]


def column(name: str, type_: Type, doc: str) -> Field:
    """A column of a derived table."""
    return Field(name, type_, doc)


SOURCE_ID = column("source_id", INTEGER, "The file it was read from (`source.source_id`).")


def event_columns(event: Event) -> tuple[Field, ...]:
    """An event table's columns: the recording process, then the declared fields."""
    return (Field(event.process_column, INTEGER, event.process_doc), *event.fields)
