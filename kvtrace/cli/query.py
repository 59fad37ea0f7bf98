"""`kvtrace query`: the canned queries' catalogue, their documentation, their answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    quiet_pipe,
    sorted_by,
    split_columns,
    write_result,
)
from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    from kvtrace.queries import Query, Trace


def _complete(incomplete: str) -> list[str]:
    """Names of queries that a shell may complete a word to."""
    from kvtrace.queries import catalogue

    return [name for name in catalogue() if name.startswith(incomplete.replace("_", "-"))]


WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME] [TRACE]",
        help="The query, and the trace, its run directory or a folder of `kvtrace export --parquet`. Without TRACE, "
        "explain the query; without both, list all queries. Other words than a name search the list.",
        autocompletion=_complete,
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
OrderOption = Annotated[
    str | None,
    typer.Option(
        "--order", metavar="COLUMN", help="Sort by this column, the greatest first; 'COLUMN asc': the least first."
    ),
]
HelpOption = Annotated[bool, typer.Option("--help-query", help="Explain the query and exit.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(query)


def query(
    words: WordsArgument = None,
    param: ParamOption = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    output: OutputOption = None,
    limit: LimitOption = None,
    order: OrderOption = None,
    plot: PlotOption = None,
    engine: EngineOption = "duckdb",
    run_id: RunIdOption = None,
    help_query: HelpOption = False,
    columns: ColumnsOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    vertical: VerticalOption = False,
) -> None:
    """Answer a question about a trace with a canned query."""
    with needs_analysis():
        from kvtrace.queries import find
        from kvtrace.queries.backends.choose import open_with
    names, trace = _names_and_trace(words or [])
    if not names:
        if trace is not None:
            raise KvtraceError(f"{trace} is a trace; name the query first: kvtrace query NAME {trace}")
        return _list()
    if trace is None and _is_search(names):
        return _search(names)
    found = find(" ".join(names))
    if trace is None or help_query:
        return _document(found)
    params = _params(param or [])
    if plot is not None:
        return _plot(found, trace, plot, params, engine, run_id)
    kind = chosen_format(format, output, trace, as_json=as_json)
    with needs_analysis(), open_with(trace, engine, run_id) as opened:
        _warn_of_missing(found, opened)
        units = {column.name: column.unit for column in found.columns if column.unit}
        layout = Layout(found.key, split_columns(columns), wide, vertical, opened.origin_ns)
        reader = opened.query(found.name, format="batches", **params)
        if order:
            ordered, reader = sorted_by(reader, order)
            layout = replace(layout, key=tuple(dict.fromkeys((ordered, *layout.key))))  # what it is sorted by is shown
        write_result(reader, kind, output, limit, units, layout)
    return None


def _names_and_trace(words: list[str]) -> tuple[list[str], Path | None]:
    """Tell the words that name a query from the one that is a trace, in either order."""
    from kvtrace.queries.catalogue import is_name

    traces = [word for word in words if not is_name(word) and (Path(word).exists() or word.endswith(".duckdb"))]
    if not traces and len(words) == 2 and is_name(words[0]):
        traces = words[1:]  # it does not exist, which whoever opens it says
    if len(traces) > 1:
        raise KvtraceError(f"expected one trace, found {traces[0]} and {traces[1]}", 2)
    return [word for word in words if word not in traces], Path(traces[0]) if traces else None


def _is_search(names: list[str]) -> bool:
    from kvtrace.queries import search
    from kvtrace.queries.catalogue import is_name

    return not (len(names) == 1 and is_name(names[0])) and bool(search(names))


def _search(words: list[str]) -> None:
    from kvtrace.cli.terminal import print_found
    from kvtrace.queries import search

    with quiet_pipe() as stdout:
        print_found(search(words), stdout)


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
    from kvtrace.queries.missing import made_of

    if missing := trace.missing(found.name):
        source = made_of(trace)
        why = (
            f'`kvtrace sql {trace.path} "FROM hook"` shows what was recorded'
            if source is None
            else f"the trace is made of {source}, which does not tell them"
        )
        typer.echo(
            f"kvtrace: {trace.path} has no rows in {', '.join(missing)}, which {found.name} needs; {why}", err=True
        )
