"""Writing a result where the user wants it: the options that `query` and `sql` share, and what they do."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TextIO, cast

import typer

from kvtrace.errors import KvtraceError
from kvtrace.permissions import make_usual

if TYPE_CHECKING:
    import pyarrow as pa

    from kvtrace.queries.writers import Limited

TABLE_ROWS = 50
"""Rows of a table when no limit is given."""


class Format(StrEnum):
    """Format of a written result."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


@dataclass(frozen=True)
class Layout:
    """How a table is laid out, and which columns are written.

    Args:
        key: Columns that matter most, in this order, where not all fit.
        columns: The columns to write, in this order; empty for all.
        wide: Show all columns, however wide the terminal.
        vertical: Write a column a line.
        origin_ns: UNIX time of the trace's start, which a terminal's times are relative to; None to leave values as
            they are.
    """

    key: Sequence[str] = ()
    columns: Sequence[str] = ()
    wide: bool = False
    vertical: bool = False
    origin_ns: int | None = None


def split_columns(text: str | None) -> tuple[str, ...]:
    """The names that --columns lists."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


FormatOption = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="All but table are lossless.  [default: by FILE's name, else table]"),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of standard output.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
WideOption = Annotated[bool, typer.Option("--wide", help="Show all columns, however wide the terminal.")]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="A,B", help="Write only these columns, in this order.")
]
VerticalOption = Annotated[bool, typer.Option("--vertical", help="Write each row as a list, a column a line.")]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=0,
        metavar="N",
        help=f"Write at most N rows; 0 for all.  [default: {TABLE_ROWS} in a table, else all]",
    ),
]


def chosen_format(format_: Format | None, output: Path | None, trace: Path, *, as_json: bool = False) -> Format:
    """The format asked for, or the one that the file's name implies.

    Args:
        format_: What --format says.
        output: Where the result goes; None for standard output.
        trace: The trace, which must not be written over.
        as_json: --json was given.

    Raises:
        KvtraceError: Parquet to the terminal, or a result over the trace itself.
    """
    if as_json:
        if format_ not in (None, Format.json):
            raise KvtraceError(f"--json and --format {format_} contradict each other", 2)
        format_ = Format.json
    if format_ is None:
        suffix = output.suffix.lstrip(".").lower() if output else ""
        format_ = Format(suffix) if suffix in set(Format) else Format.table
    if format_ is Format.parquet and output is None:
        raise KvtraceError("Parquet cannot be written to a terminal; name a file with -o FILE")
    from kvtrace.queries.trace import trace_file

    trace = trace_file(trace)
    if output is not None and output.exists() and trace.exists() and output.samefile(trace):
        raise KvtraceError(f"-o {output} is the trace itself; choose another file")
    return format_


def write_result(
    reader: pa.RecordBatchReader,
    format_: Format,
    output: Path | None,
    limit: int | None,
    units: Mapping[str, str] | None = None,
    layout: Layout | None = None,
) -> None:
    """Write a result, and say on stderr how many rows a limit left out.

    Args:
        reader: The result.
        format_: The format.
        output: The file; None for standard output.
        limit: Most rows to write, 0 for all; None for all, but `TABLE_ROWS` of a table.
        units: The columns' units, by name.
        layout: How a table is laid out, and the columns to write.

    Raises:
        KvtraceError: the file cannot be written, or a column of `layout` does not exist.
    """
    from kvtrace.queries.writers import Limited

    layout = layout or Layout()
    if layout.columns:
        reader = _only(reader, layout.columns)
    result = Limited(reader, TABLE_ROWS if limit is None and format_ is Format.table else limit or None)
    if output is None:
        with quiet_pipe() as stdout:
            _write(result, format_, stdout, units or {}, layout)
    else:
        with _whole_file(output) as file:
            _write(result, format_, file, units or {}, layout)
    if result.more:
        typer.echo(f"{result.more:,} more rows (--limit 0 for all)", err=True)


@contextlib.contextmanager
def quiet_pipe() -> Iterator[TextIO]:
    """Standard output that may be closed early (`| head`): then the command ends without a word."""
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more as it exits; give it something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def sorted_by(reader: pa.RecordBatchReader, order: str) -> tuple[str, pa.RecordBatchReader]:
    """Sort a result by `COLUMN`, the greatest first, or by `COLUMN asc`; NULLs are last, and ties stay as they were.

    Returns:
        The column's whole name, and the sorted result.
    """
    import pyarrow.compute as pc

    column, _, way = order.strip().partition(" ")
    if way.strip().lower() not in ("", "asc", "desc"):
        raise KvtraceError(f"--order {order!r}: expected COLUMN, 'COLUMN asc' or 'COLUMN desc'", 2)
    (name,) = _named(reader.schema.names, [column], "--order")
    table = reader.read_all()
    values = table[name]
    if str(values.type).startswith("dictionary"):
        values = values.cast(values.type.value_type)
    direction: Literal["ascending", "descending"] = "ascending" if way.strip().lower() == "asc" else "descending"
    places = pc.array_sort_indices(values, order=direction, null_placement="at_end")
    return name, table.take(places).to_reader()


def _only(reader: pa.RecordBatchReader, columns: Sequence[str]) -> pa.RecordBatchReader:
    """The named columns of a result."""
    import pyarrow as pa

    wanted = _named(reader.schema.names, columns, "--columns")
    schema = pa.schema([reader.schema.field(name) for name in wanted])
    return pa.RecordBatchReader.from_batches(schema, (batch.select(wanted) for batch in reader))


def _named(names: Sequence[str], columns: Sequence[str], option: str) -> list[str]:
    """Columns by name; the unit at a name's end may be left out, as tables on a terminal do."""
    from kvtrace.cli.columns import bare_names

    short = dict(zip(bare_names(names), names, strict=True))
    wanted = [name if name in names else short.get(name, name) for name in columns]
    if unknown := [name for name in wanted if name not in names]:
        begun = [name for name in names if name.startswith(f"{unknown[0]}_")]
        instead = f"did you mean {' or '.join(begun)}?" if begun else f"there are: {', '.join(names)}"
        raise KvtraceError(f"{option}: there is no column {unknown[0]!r}; {instead}", 2)
    return wanted


def _write(result: Limited, format_: Format, file: TextIO, units: Mapping[str, str], layout: Layout) -> None:
    from kvtrace.queries import writers

    match format_:
        case Format.table:
            _write_table(result, file, units, layout)
        case Format.csv:
            writers.write_csv(result, cast(BinaryIO, _Inert(file.buffer)) if file.isatty() else file.buffer)
        case Format.json:
            writers.write_json(result, file.buffer)
        case Format.parquet:
            writers.write_parquet(result, file.buffer)


def _write_table(result: Limited, file: TextIO, units: Mapping[str, str], layout: Layout) -> None:
    """A table: on a terminal with people's units, and as wide as it is; elsewhere with all columns as they are."""
    from kvtrace.cli.columns import Columns
    from kvtrace.cli.terminal import print_rows, print_table, tell_left_out, width_of

    rows = [row for batch in result for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    width = width_of(file) if file.isatty() else None
    columns = Columns.of(result.schema, rows, units, None if width is None else layout.origin_ns)
    shown = list(range(len(columns.names)))
    fits = width is None or layout.wide or bool(layout.columns) or columns.width(shown) <= width
    if layout.vertical or (len(rows) == 1 and not fits):
        names = columns.names if width is None else columns.long_heads()
        return print_rows(names, [*zip(*columns.cells, strict=True)], file)
    if width is not None and not fits:
        shown = columns.choose(layout.key, width)
    heads = [[line[place] for place in shown] for line in (columns.heads, columns.units)]
    widths = None if width is None or fits else columns.fit(shown, width)
    right = [place not in columns.texts for place in shown]
    print_table(heads, [*zip(*(columns.cells[place] for place in shown), strict=True)], right, file, widths)
    if width:
        tell_left_out(columns.heads, shown, "--wide, --columns A,B or --vertical shows them", file)
    return None


class _Inert:
    """A terminal that gets CSV: control characters in values are escaped. Elsewhere CSV is left as it is."""

    def __init__(self, terminal: BinaryIO) -> None:
        self._terminal = terminal

    def write(self, data: bytes) -> int:
        from kvtrace.queries.text import inert

        lines = data.decode().split("\n")
        self._terminal.write("\n".join(map(inert, lines)).encode())
        return len(data)


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name only when it is whole; pipes and devices are written as they are."""
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as file:
                yield file
            return
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with io.TextIOWrapper(os.fdopen(descriptor, "wb"), encoding="utf-8") as file:
                yield file
            make_usual(Path(temporary))
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as error:
        raise KvtraceError(f"cannot write {path}: {error.strerror or error}") from error
