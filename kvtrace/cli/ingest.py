"""`kvtrace ingest`: a run directory to a DuckDB file."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    from rich.table import Table

    from kvtrace.ingest.run import Progress, Summary


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def ingest(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory that `kvtrace record -o` made.")],
        output: Annotated[
            Path | None, typer.Option("-o", "--output", help="The trace to make.  [default: RUN/trace.duckdb]")
        ] = None,
        all_tiles: Annotated[
            bool,
            typer.Option(
                "--all-tiles", help="Take the tiles of every step; by default about 20 million, evenly spread."
            ),
        ] = False,
    ) -> None:
        """Turn a recording into one DuckDB file, replacing an earlier one."""
        with needs_analysis():
            from kvtrace.ingest.run import TRACE_NAME
            from kvtrace.ingest.run import ingest as ingest_run
        target = output or run / TRACE_NAME
        started = time.monotonic()
        with _interruptible(target), _progress_bar() as progress:
            summary = ingest_run(run, target, progress, all_tiles=all_tiles)
        _print_summary(summary, time.monotonic() - started)


@contextmanager
def _interruptible(target: Path) -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, and say what an interrupt left behind."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise KvtraceError(f"interrupted; {target} is as it was before", exit_code=130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress_bar() -> Iterator[Progress | None]:
    """A bar on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description:>20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=max(done, total))

        yield show


def _print_summary(summary: Summary, seconds: float) -> None:
    from rich.console import Console

    console = Console()
    totals: dict[str, tuple[int, int, int]] = {}
    for stream in summary.streams:
        records, torn, dropped = totals.get(stream.event, (0, 0, 0))
        totals[stream.event] = (records + stream.records, torn + stream.torn, dropped + stream.dropped)
    console.print(_table("stream", ("records", "torn", "dropped"), totals))
    joins = {join.name: (join.matched, join.unmatched) for join in summary.joins}
    console.print(_table("join", ("matched", "unmatched"), joins))
    for warning in summary.warnings:
        typer.echo(f"warning: {warning}", err=True)
    console.print(
        f"{summary.records:,} records in {seconds:.1f} s -> {summary.target}", highlight=False, soft_wrap=True
    )


def _table(what: str, columns: tuple[str, ...], rows: Mapping[str, tuple[int, ...]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(what, box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    for name, values in rows.items():
        table.add_row(name, *(f"{value:,}" for value in values))
    return table
