"""Tables for people: a result, the catalogue, a query's documentation. All text from a trace is made inert."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvtrace.cli.columns import GAP, places_that_fit

if TYPE_CHECKING:
    from kvtrace.queries import Query

_INDENT = (0, 0, 0, 2)
_USUAL_WIDTH = 80
"""Of terminals that do not tell theirs."""


def print_table(
    heads: Sequence[Sequence[str]],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    file: TextIO,
    widths: Sequence[int] | None = None,
) -> None:
    """Print rows of text as a table.

    Args:
        heads: Lines above them, a text a column each; a line without any text is left out.
        rows: A text a column each.
        right: For each column: its texts go to the right, as numbers do.
        file: Where to.
        widths: Cells of each column, to which texts are cut; None leaves them whole, however wide the table becomes.
    """
    if widths is None:
        widths = [max(map(cell_len, column)) for column in zip(*heads, *rows, strict=True)]

    def line(texts: Iterable[str]) -> str:
        parts = (_padded(_cut(text, own), own, number) for text, own, number in zip(texts, widths, right, strict=True))
        return (" " * GAP).join(parts).rstrip()

    console = _console(file)
    for head in heads:
        if any(head):
            console.print(Text(line(head), style="bold"), soft_wrap=True)
    console.print(Text((" " * GAP).join("-" * own for own in widths), style="dim"), soft_wrap=True)
    file.writelines(line(row) + "\n" for row in rows)


def print_fitting(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], order: Sequence[int], file: TextIO
) -> None:
    """Print rows of text as a table, on a terminal only the columns that fit; stderr says which are left out.

    Args:
        heads: The columns' heads.
        rows: A text a column each.
        right: For each column: its texts go to the right, as numbers do.
        order: The columns' places, the most important first.
        file: Where to.
    """
    shown = sorted(order)
    if file.isatty():
        needed = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
        shown = places_that_fit(order, needed.__getitem__, width_of(file), order)
    print_table(
        [[heads[place] for place in shown]],
        [[row[place] for place in shown] for row in rows],
        [right[place] for place in shown],
        file,
    )
    tell_left_out(heads, shown, "a wider terminal or a pipe shows them", file)


def tell_left_out(heads: Sequence[str], shown: Sequence[int], advice: str, file: TextIO) -> None:
    """Say on stderr which columns a terminal's table left out, and how to see them."""
    if left_out := [head for place, head in enumerate(heads) if place not in shown]:
        file.flush()
        typer.echo(fill(f"Left out: {', '.join(left_out)} ({advice})", width_of(file)), err=True)


def width_of(file: TextIO) -> int:
    """Cells of a terminal's line."""
    return os.get_terminal_size(file.fileno()).columns or _USUAL_WIDTH


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], file: TextIO) -> None:
    """Print each row as a list, a column a line."""
    console = _console(file)
    for number, row in enumerate(rows, 1):
        if len(rows) > 1:
            console.print(Text(f"row {number}", style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for head, text in zip(heads, row, strict=True):
            table.add_row(Text(head), Text(text))
        console.print(table)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


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


_MOST_FOUND = 10


def print_found(queries: Sequence[Query], file: TextIO) -> None:
    """Print the queries that a search found, the closest first."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for query in queries[:_MOST_FOUND]:
        table.add_row(f"{query.name} ", Text(query.title))
    console = _console(file)
    console.print(table)
    if more := len(queries) - _MOST_FOUND:
        console.print(Text(f"\n{more} more speak of these words." if more > 0 else ""))
    console.print(Text("kvtrace query NAME TRACE    the answer"))
    console.print(Text("kvtrace explain TRACE ID    one request: where its time went, why it waited and missed"))
    console.print(Text("kvtrace findings TRACE      what cost the run most"))


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
