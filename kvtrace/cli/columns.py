"""Columns of a table on a terminal: values in people's units, and the choice of columns that fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from kvtrace.queries.text import cell, duration, inert, rounded, size

if TYPE_CHECKING:
    import pyarrow as pa

GAP = 2
"""Spaces between columns."""

ENGINE = "engine_id"
"""The column that is shown first where there are several engines, and last where there is one."""

_OFFSET = "offset_ns"
"""The end of the names of clocks' offsets, which are neither points in time nor durations."""

_SHORT_TEXT = 20
"""Text may be cut to so much to make room for a further column."""

_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_SUFFIX = re.compile(r"(?<!_per)_(ns|us|ms|s|tokens|blocks|bytes)$")


def bare_names(names: Sequence[str]) -> list[str]:
    """The columns' names without the unit at their ends, where no two become alike."""
    short = [_SUFFIX.sub("", name) for name in names]
    return [name if short.count(bare) > 1 else bare for name, bare in zip(names, short, strict=True)]


def places_that_fit(
    order: Iterable[int], needs: Callable[[int], int], width: int, passed_over: Container[int]
) -> list[int]:
    """The columns that fit beside each other, from left to right.

    Args:
        order: The columns' places, the most important first.
        needs: Cells that a column takes.
        width: Cells of the terminal.
        passed_over: Columns behind which others are still tried if they do not fit.
    """
    chosen: list[int] = []
    used = -GAP
    for place in order:
        until = used + GAP + needs(place)
        if until <= width:
            chosen.append(place)
            used = until
        elif place not in passed_over:
            break
    return sorted(chosen)


@dataclass(frozen=True)
class Columns:
    """A result as text, column by column.

    Attributes:
        names: The columns' names.
        heads: What stands over them: the name without its unit.
        units: Units under the heads, empty where each cell has its own.
        cells: The cells of each column.
        texts: The columns that hold text, which may be cut.
        empty: The columns without any value.
    """

    names: tuple[str, ...]
    heads: tuple[str, ...]
    units: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    texts: frozenset[int]
    empty: frozenset[int]

    @classmethod
    def of(
        cls, schema: pa.Schema, rows: Sequence[Sequence[Any]], units: Mapping[str, str], origin_ns: int | None
    ) -> Columns:
        """Make text of a result.

        Args:
            schema: Its names and types.
            rows: Its rows.
            units: Units by name.
            origin_ns: UNIX time that points in time are relative to; None leaves all values as they are.
        """
        from pyarrow import types

        values = list(zip(*rows, strict=True)) or [()] * len(schema)
        human = origin_ns is not None
        each = [
            _Column(
                own,
                units.get(field.name) if human and not field.name.endswith(_OFFSET) else None,
                types.is_integer(field.type),
                origin_ns or 0,
            )
            for field, own in zip(schema, values, strict=True)
        ]
        return cls(
            tuple(schema.names),
            tuple(map(inert, bare_names(schema.names) if human else schema.names)),
            tuple(_under(name, units.get(name), human) for name in schema.names),
            tuple(column.cells() for column in each),
            frozenset(
                place
                for place, field in enumerate(schema)
                if not any(holds(field.type) for holds in (types.is_integer, types.is_floating, types.is_decimal))
            ),
            frozenset(place for place, own in enumerate(values) if all(value is None for value in own)),
        )

    def long_heads(self) -> list[str]:
        """The heads with their units beside them."""
        return [f"{head} {unit}".rstrip() for head, unit in zip(self.heads, self.units, strict=True)]

    def widths(self, places: Iterable[int]) -> list[int]:
        """Cells that each of these columns takes."""
        return [max(map(cell_len, (self.heads[each], self.units[each], *self.cells[each]))) for each in places]

    def width(self, places: Sequence[int]) -> int:
        """Cells that a table of these columns takes."""
        return sum(self.widths(places)) + GAP * max(0, len(places) - 1)

    def choose(self, key: Sequence[str], width: int) -> list[int]:
        """The columns that fit, in their order: first those of `key`, then the others, those without values last.

        Args:
            key: Names of the columns that matter most, the most important first.
            width: Cells of the terminal.
        """
        first = [ENGINE, *key] if not self._is_only_engine(ENGINE) else key
        wanted = [self.names.index(name) for name in first if name in self.names]
        others = [place for place in range(len(self.names)) if place not in wanted]
        order = sorted(
            [*wanted, *others], key=lambda each: each in self.empty or self._is_only_engine(self.names[each])
        )
        return places_that_fit(order, self._least, width, wanted)

    def _is_only_engine(self, name: str) -> bool:
        return name == ENGINE in self.names and len({*self.cells[self.names.index(name)]}) <= 1

    def fit(self, places: Sequence[int], width: int) -> list[int]:
        """The widths of these columns, text cut until all fit into `width` cells; the last text is cut least."""
        widths = self.widths(places)
        for index, place in enumerate(places):
            over = sum(widths) + GAP * (len(places) - 1) - width
            if over > 0 and place in self.texts:
                widths[index] = max(self._least(place), widths[index] - over)
        return widths

    def _least(self, place: int) -> int:
        whole = self.widths([place])[0]
        head = max(cell_len(self.heads[place]), cell_len(self.units[place]))
        return min(whole, max(_SHORT_TEXT, head)) if place in self.texts else whole


@dataclass(frozen=True)
class _Column:
    values: Sequence[Any]
    unit: str | None
    whole: bool
    origin_ns: int

    def cells(self) -> tuple[str, ...]:
        return tuple("-" if value is None else self._cell(value) for value in self.values)

    def _cell(self, value: Any) -> str:
        if self.unit == "ns" and self.whole:  # a point in time
            return f"{(value - self.origin_ns) / 1e9:+.4f} s"
        if self.unit in _MS:
            return duration(value * _MS[self.unit])
        if self.unit == "bytes":
            return size(value)
        if self.unit == "bytes/s":
            return f"{size(value)}/s"
        if self.unit == "ratio":
            return f"{value * 100:.1f}%" if self._is_share() else f"{value:.3g}x"
        if self.unit is not None and isinstance(value, (int, float)):
            return rounded(value)
        return cell(value)

    def _is_share(self) -> bool:
        return all(value is None or -1 <= value <= 1 for value in self.values)


def _under(name: str, unit: str | None, human: bool) -> str:
    if unit is None or (human and unit in (*_MS, "bytes", "bytes/s", "ratio")):
        return ""
    return f"[{unit}]" if human or not name.endswith("_" + unit) else ""
