"""Writing a result where the user wants it: the options that `query` and `sql` share, and what they do."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TextIO, cast

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


FormatOption = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="All but table are lossless.  [default: by FILE's name, else table]"),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of standard output.")
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=0,
        metavar="N",
        help=f"Write at most N rows; 0 for all.  [default: {TABLE_ROWS} in a table, else all]",
    ),
]


def chosen_format(format_: Format | None, output: Path | None, trace: Path) -> Format:
    """The format asked for, or the one that the file's name implies.

    Raises:
        KvtraceError: Parquet to the terminal, or a result over the trace itself.
    """
    if format_ is None:
        suffix = output.suffix.lstrip(".").lower() if output else ""
        format_ = Format(suffix) if suffix in set(Format) else Format.table
    if format_ is Format.parquet and output is None:
        raise KvtraceError("Parquet cannot be written to a terminal; name a file with -o FILE")
    if output is not None and output.exists() and trace.exists() and output.samefile(trace):
        raise KvtraceError(f"-o {output} is the trace itself; choose another file")
    return format_


def write_result(
    reader: pa.RecordBatchReader,
    format_: Format,
    output: Path | None,
    limit: int | None,
    units: Mapping[str, str] | None = None,
) -> None:
    """Write a result, and say on stderr how many rows a limit left out.

    Raises:
        KvtraceError: the file cannot be written.
    """
    from kvtrace.queries.writers import Limited

    result = Limited(reader, TABLE_ROWS if limit is None and format_ is Format.table else limit or None)
    if output is None:
        with quiet_pipe() as stdout:
            _write(result, format_, stdout, units or {})
    else:
        with _whole_file(output) as file:
            _write(result, format_, file, units or {})
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


def _write(result: Limited, format_: Format, file: TextIO, units: Mapping[str, str]) -> None:
    from kvtrace.queries import writers

    match format_:
        case Format.table:
            _write_table(result, file, units)
        case Format.csv:
            writers.write_csv(result, cast(BinaryIO, _Inert(file.buffer)) if file.isatty() else file.buffer)
        case Format.json:
            writers.write_json(result, file.buffer)
        case Format.parquet:
            writers.write_parquet(result, file.buffer)


def _write_table(result: Limited, file: TextIO, units: Mapping[str, str]) -> None:
    from pyarrow import types

    from kvtrace.cli.terminal import print_result

    numeric = [
        types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)
        for column in result.schema
    ]
    rows = [row for batch in result for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    print_result(result.schema.names, numeric, rows, units, file)


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
