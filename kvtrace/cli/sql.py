"""`kvtrace sql`: one's own SELECT over a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.cli.output import (
    ColumnsOption,
    FormatOption,
    JsonOption,
    Layout,
    LimitOption,
    OutputOption,
    VerticalOption,
    WideOption,
    chosen_format,
    split_columns,
    write_result,
)
from kvtrace.errors import needs_analysis

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="The trace, or its run directory.")]
SqlArgument = Annotated[
    str, typer.Argument(metavar="SQL", help="One SELECT in DuckDB's SQL; - reads it from standard input.")
]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(sql)


def sql(
    trace: TraceArgument,
    sql: SqlArgument,
    format: FormatOption = None,  # noqa: A002 - the option's name
    output: OutputOption = None,
    limit: LimitOption = None,
    columns: ColumnsOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    vertical: VerticalOption = False,
) -> None:
    """Run your own SQL over a trace, read-only.

    TRACE and SQL may change places. `SHOW TABLES`, `DESCRIBE step` and the like work too.
    """
    with needs_analysis():
        from kvtrace.queries import Trace
    if _exists(Path(sql)) and not _exists(trace):
        trace, sql = Path(sql), str(trace)
    text = sys.stdin.read() if sql == "-" else sql
    kind = chosen_format(format, output, trace, as_json=as_json)
    layout = Layout(columns=split_columns(columns), wide=wide, vertical=vertical)
    with needs_analysis(), Trace(trace) as opened:
        write_result(opened.sql(text, format="batches"), kind, output, limit, layout=layout)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # SQL may be longer than a name of a file
        return False
