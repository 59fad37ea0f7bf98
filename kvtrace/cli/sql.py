"""`kvtrace sql`: one's own SELECT over a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.cli.output import FormatOption, LimitOption, OutputOption, chosen_format, write_result
from kvtrace.errors import needs_analysis

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="The trace.")]
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
) -> None:
    """Run your own SQL over a trace, read-only.

    `SHOW TABLES`, `DESCRIBE step` and the like work too.
    """
    with needs_analysis():
        from kvtrace.queries import Trace
    text = sys.stdin.read() if sql == "-" else sql
    kind = chosen_format(format, output, trace)
    with needs_analysis(), Trace(trace) as opened:
        write_result(opened.sql(text, format="batches"), kind, output, limit)
