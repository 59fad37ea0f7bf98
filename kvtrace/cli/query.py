"""`kvtrace query`: the canned queries' catalogue, their documentation, their answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.cli.output import FormatOption, LimitOption, OutputOption, chosen_format, quiet_pipe, write_result
from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    from kvtrace.queries import Query, Trace

NameArgument = Annotated[str | None, typer.Argument(metavar="NAME", help="The query. Without it, list all queries.")]
TraceArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="TRACE",
        help="The trace, or a folder of `kvtrace export --parquet`. Without it, explain the query.",
    ),
]
ParamOption = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the query; repeatable.")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw the answer as .png, .svg or .pdf.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="duckdb; for a folder of `kvtrace export --parquet` also spark or spark=MASTER (docs/distributed.md).",
    ),
]
RunIdOption = Annotated[
    str | None, typer.Option("--run-id", metavar="ID", help="The run to read from a Parquet folder with several.")
]
HelpOption = Annotated[bool, typer.Option("--help-query", help="Explain the query and exit.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(query)


def query(
    name: NameArgument = None,
    trace: TraceArgument = None,
    param: ParamOption = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    output: OutputOption = None,
    limit: LimitOption = None,
    plot: PlotOption = None,
    engine: EngineOption = "duckdb",
    run_id: RunIdOption = None,
    help_query: HelpOption = False,
) -> None:
    """Answer a question about a trace with a canned query."""
    with needs_analysis():
        from kvtrace.queries import find
        from kvtrace.queries.backends.choose import open_with
    if name is None:
        return _list()
    if name.endswith(".duckdb") and Path(name).exists():
        raise KvtraceError(f"{name} is a trace; name the query first: kvtrace query NAME {name}")
    found = find(name)
    if trace is None or help_query:
        return _document(found)
    params = _params(param or [])
    if plot is not None:
        return _plot(found, trace, plot, params, engine, run_id)
    kind = chosen_format(format, output, trace)
    with needs_analysis(), open_with(trace, engine, run_id) as opened:
        _warn_of_missing(found, opened)
        units = {column.name: column.unit for column in found.columns if column.unit}
        write_result(opened.query(name, format="batches", **params), kind, output, limit, units)
    return None


def _plot(found: Query, trace: Path, path: Path, params: dict[str, str], engine: str, run_id: str | None) -> None:
    from kvtrace.queries.backends.choose import open_with
    from kvtrace.queries.plotting import check_path, plot_of, save

    plot_of(found.name)
    check_path(path)
    with needs_analysis(), open_with(trace, engine, run_id) as opened:
        _warn_of_missing(found, opened)
        save(opened.plot(found.name, **params), path)
    typer.echo(f"{path}")


def _list() -> None:
    from kvtrace.cli.terminal import print_catalogue
    from kvtrace.queries import catalogue

    with quiet_pipe() as stdout:
        print_catalogue(catalogue().values(), stdout)


def _document(found: Query) -> None:
    from kvtrace.cli.terminal import print_query

    with quiet_pipe() as stdout:
        print_query(found, stdout)


def _params(texts: list[str]) -> dict[str, str]:
    params: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise KvtraceError(f"--param {text!r}: expected NAME=VALUE")
        params[name] = value
    return params


def _warn_of_missing(found: Query, trace: Trace) -> None:
    if missing := trace.missing(found.name):
        typer.echo(
            f"kvtrace: {trace.path} has no rows in {', '.join(missing)}, which {found.name} needs; "
            f'`kvtrace sql {trace.path} "FROM hook"` shows what was recorded',
            err=True,
        )
