"""Tables for people: a result, the catalogue, a query's documentation. All text from a trace is made inert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvtrace.queries.text import cell, inert

if TYPE_CHECKING:
    from kvtrace.queries import Query

_INDENT = (0, 0, 0, 2)


def print_result(
    columns: Sequence[str],
    numeric: Sequence[bool],
    rows: Iterable[Sequence[Any]],
    units: Mapping[str, str],
    file: TextIO,
) -> None:
    """Print rows as a table, numbers to the right, units under the names. It is never squeezed: it may be wide."""
    heads = [_heading(name, units.get(name)) for name in columns]
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*_lines(heads), *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        parts = (_padded(text, width, number) for text, width, number in zip(texts, widths, numeric, strict=True))
        return "  ".join(parts).rstrip()

    console = _console(file)
    for head in _lines(heads):
        if any(head):
            console.print(Text(line(head), style="bold"), soft_wrap=True)
    console.print(Text("  ".join("-" * width for width in widths), style="dim"), soft_wrap=True)
    file.writelines(line(row) + "\n" for row in cells)


def _lines(heads: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """The names, then the units."""
    return [tuple(name for name, _ in heads), tuple(unit for _, unit in heads)]


def _padded(text: str, width: int, number: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if number else text + padding


def print_catalogue(queries: Iterable[Query], file: TextIO) -> None:
    """Print the queries' names and questions by group; those with a plot are marked."""
    from kvtrace.queries import grouped
    from kvtrace.queries.plotting import has_plot

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for group, members in grouped(queries).items():
        table.add_row(Text(group, style="bold"))
        for query in members:
            table.add_row(f"  {query.name} ", "*" if has_plot(query.name) else "", Text(query.title))
    console = _console(file)
    console.print(table)
    console.print(Text("\n* has a plot: kvtrace query NAME TRACE --plot FILE.svg"))
    console.print(Text("kvtrace query NAME          what a query computes, its parameters and columns"))
    console.print(Text("kvtrace query NAME TRACE    its answer"))


def print_query(query: Query, file: TextIO) -> None:
    """Print a query's documentation: its header."""
    console = _console(file)
    console.print(Text(f"{query.name}: {query.title}\n", style="bold"))
    if query.description:
        console.print(Text(f"{query.description}\n"))
    console.print(Text(f"Needs: {', '.join(query.needs)}\n"))
    if query.params:
        params = ((f"{param.name}", f"{param.type}, {_default(param)}", param.meaning) for param in query.params)
        _print_section("Parameters (--param NAME=VALUE)", params, console)
    columns = ((column.name, column.unit or "", f"{column.meaning} ({column.source})") for column in query.columns)
    _print_section("Columns", columns, console)


def _heading(name: str, unit: str | None) -> tuple[str, str]:
    """The name and, unless it ends in it, the unit."""
    implied = unit is None or name.endswith("_" + unit)
    return inert(name), "" if implied else f"[{unit}]"


def _default(param: Any) -> str:
    return "required" if param.required else f"default {'NULL' if param.default is None else param.default}"


def _print_section(title: str, rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(Text(title))
    console.print(Padding(table, _INDENT))
    console.print()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the caller; Rich would exit with 1."""
        raise BrokenPipeError


def _console(file: TextIO) -> Console:
    return _Console(file=file, markup=False, highlight=False, emoji=False)
