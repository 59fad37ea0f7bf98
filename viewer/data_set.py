"""Data sets of a page: their columns, the types of these, and the check of a table against them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pyarrow as pa

Enum = type[enum.IntEnum]

_UNITS = {"_ns": "ns", "_us": "us", "_tokens": "tokens", "_blocks": "blocks", "_requests": "requests"}


class Column(NamedTuple):
    """A column of a data set. Its name carries its unit: times are ns after the run's `origin_ns`."""

    name: str
    type: Literal["number", "text", "flag"] = "number"
    null: bool = True
    """Unknown in some rows."""
    optional: bool = False
    """Missing where nothing of the kind was recorded."""
    delta: bool = False
    """Packed as its first value, then differences."""
    enum: Enum | None = None
    doc: str = ""

    @property
    def unit(self) -> str:
        """The unit that the name carries; empty for counts, numbers of things, text and flags."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "")


class DataSet(NamedTuple):
    """A table of a page: what a row is, at most how many rows a view draws at once, and its columns."""

    name: str
    doc: str
    drawn: int
    columns: tuple[Column, ...]

    @property
    def deltas(self) -> tuple[str, ...]:
        """Columns that are packed as differences."""
        return tuple(column.name for column in self.columns if column.delta)

    def check(self, table: pa.Table) -> None:
        """Compare a table's columns and their types with the declaration.

        Raises:
            ValueError: a column is missing, not declared, or of another type.
        """
        declared = {column.name: column for column in self.columns}
        for name in table.column_names:
            if name not in declared:
                raise ValueError(f"{self.name}.{name}: exported, but not declared")
            if (found := _type_of(table.schema.field(name).type)) not in {declared[name].type, "unknown"}:
                raise ValueError(f"{self.name}.{name}: exported as {found}, declared as {declared[name].type}")
        for column in self.columns:
            if not column.optional and column.name not in table.column_names:
                raise ValueError(f"{self.name}.{column.name}: declared, but not exported")


class LaneTable(NamedTuple):
    """A data set that one query exports for each engine."""

    data: DataSet
    needs: str
    """The recorded table without whose rows there is nothing to show."""
    query: str
    """Its rows, sorted by `start_ns`. `{engine}`, `{origin}`, `{bins}`: the engine, time zero, levels of a lane."""


def _type_of(arrow: pa.DataType) -> str:
    if pa.types.is_null(arrow):
        return "unknown"
    if pa.types.is_boolean(arrow):
        return "flag"
    return "number" if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) else "text"


def numbers(names: str, *, null: bool = True, optional: bool = False) -> Iterator[Column]:
    """Columns of numbers, from their names."""
    for name in names.split():
        yield Column(name, null=null, optional=optional)


def texts(names: str) -> Iterator[Column]:
    """Columns of text, from their names."""
    for name in names.split():
        yield Column(name, "text")


def key(name: str, doc: str = "") -> Column:
    """A sorted column of numbers that are never NULL, packed as differences."""
    return Column(name, null=False, delta=True, doc=doc)


def known(name: str, doc: str = "") -> Column:
    """A column of numbers that are never NULL."""
    return Column(name, null=False, doc=doc)


def enumerated(name: str, values: Enum, doc: str = "", *, null: bool = True) -> Column:
    """A column of an enum's names."""
    return Column(name, "text", null=null, enum=values, doc=doc)
