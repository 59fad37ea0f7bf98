"""`kvtrace ingest`: a run directory to a DuckDB file."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.errors import DamageError, KvtraceError, needs_analysis
from kvtrace.escape import inert, inert_lines
from kvtrace.ingest.importers.registry import all_importers, recognise

if TYPE_CHECKING:
    from rich.table import Table

    from kvtrace.ingest.importers.importer import Progress
    from kvtrace.ingest.run import Summary


Run = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Run directories that `kvtrace record -o` made, several are merged; or files, see below.",
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="The trace to make.  [default: RUN/trace.duckdb]")]
AllTiles = Annotated[
    bool,
    typer.Option("--all-tiles", help="Take the tiles of every step; by default about 20 million, evenly spread."),
]
BlockSize = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens a block, of --unboxkv and --requests, where the data do not tell."),
]
BlockBytes = Annotated[
    int | None, typer.Option(min=1, help="Bytes of K of a block in a layer, of --unboxkv's patterns.")
]
TickNs = Annotated[int | None, typer.Option(min=1, help="Length of a tick of --unboxkv's patterns.  [default: 1000]")]
LaunchShapes = Annotated[
    bool, typer.Option("--launch-shapes", help="Read grids, blocks and registers of Nsight's kernels, too.")
]
NsightOfRun = Annotated[
    bool, typer.Option(" /--no-nsight", help="Skip the exports of `record --nsys`.", show_default=False)
]
ClockOffset = Annotated[
    list[str] | None,
    typer.Option(
        "--clock-offset",
        metavar="RUN=NS",
        help="Add so many ns to RUN's clock, rather than estimate it from what hosts told each other.",
    ),
]


SkipDamaged = Annotated[
    bool,
    typer.Option("--skip-damaged", help="Take what is whole of a damaged recording, and say what was left out."),
]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    _add_importers(ingest)
    app.command()(ingest)


def ingest(
    run: Run = None,
    output: Output = None,
    all_tiles: AllTiles = False,
    block_size: BlockSize = None,
    block_bytes: BlockBytes = None,
    tick_ns: TickNs = None,
    launch_shapes: LaunchShapes = False,
    nsight_of_run: NsightOfRun = True,
    clock_offset: ClockOffset = None,
    skip_damaged: SkipDamaged = False,
    **given: list[Path] | None,
) -> None:
    """Turn recordings and other tools' files into a trace.

    The trace is one DuckDB file. It also takes profiles made beside a recording.

    An earlier one is replaced. Files that follow RUN are further ones of the kind given, so that
    --nsight RUN/*.sqlite works; without an option their content says what they are. Recordings of several hosts are
    put on the first one's clock.
    """
    with needs_analysis():
        from kvtrace.ingest.importers.options import Options
        from kvtrace.ingest.run import ingest as ingest_run
        from kvtrace.ingest.sources import Sources
    files = {kind: list(paths) for kind, paths in given.items() if paths}
    more = [path for path in run or [] if path.is_file()]
    directories = [path for path in run or [] if path not in more]
    for path in more:
        files.setdefault(_kind_of(path, list(files)), []).append(path)
    options = Options(block_tokens=block_size, block_bytes=block_bytes, tick_ns=tick_ns, launch_shapes=launch_shapes)
    sources = Sources(**files, options=options)
    target = _target(directories, output)
    offsets = dict(map(_offset, clock_offset or []))
    started = time.monotonic()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # ingest makes millions of objects and hardly a cycle; seeking those takes it 3%
    with _advising_to_skip(), _interruptible(target), _progress_bar() as progress:
        summary = ingest_run(
            directories,
            target,
            progress,
            sources,
            nsight_of_run=nsight_of_run,
            all_tiles=all_tiles,
            clock_offsets=offsets,
            skip_damaged=skip_damaged,
        )
    _print_summary(summary, time.monotonic() - started)
    _print_findings(target)


def _target(directories: list[Path], output: Path | None) -> Path:
    """Choose the trace to make: what -o names, or else a file in the one run directory."""
    from kvtrace.queries.trace import TRACE_NAME

    if output is not None:
        return output
    if not directories:
        raise KvtraceError("expected RUN, or files to ingest (--nsight, ...) and the trace to make of them (-o)", 2)
    if len(directories) > 1:
        raise KvtraceError(f"expected one run directory, found {directories[0]} and {directories[1]}; to merge "
                           "them, name the trace to make with -o", 2)  # fmt: skip
    return directories[0] / TRACE_NAME


def _add_importers(command: Callable[..., None]) -> None:
    """Give a command an option for each importer, in place of its `**given`."""
    signature = inspect.signature(command, eval_str=True)
    fixed = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            kind,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[Path] | None,
                typer.Option(importer.option, metavar=importer.metavar, help=f"{importer.help}; repeatable."),
            ],
        )
        for kind, importer in all_importers().items()
    ]
    parameters = [*fixed, *options]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}


def _kind_of(path: Path, given: list[str]) -> str:
    """The kind of a file without an option: that of the others, or what its content says."""
    if not given:
        return recognise(path).kind
    if len(given) == 1 or "nsight" in given:
        return "nsight" if "nsight" in given else given[0]
    raise KvtraceError(f"{path}: give its kind before it, as there are several", 2)


def _offset(text: str) -> tuple[str, int]:
    """RUN=NS as the two."""
    name, _, number = text.rpartition("=")
    try:
        return name, int(number)
    except ValueError:
        raise KvtraceError(f"--clock-offset {text}: expected RUN=NS, a whole number of nanoseconds", 2) from None


@contextmanager
def _advising_to_skip() -> Iterator[None]:
    """Say of damage how to take what is whole."""
    try:
        yield
    except DamageError as error:
        raise KvtraceError(f"{error}; --skip-damaged takes what is whole") from error


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


_FINDINGS = 3
"""Findings that ingest ends with; `kvtrace findings` has them all."""


def _print_summary(summary: Summary, seconds: float) -> None:
    from rich.console import Console

    console = Console()
    totals: dict[str, tuple[int, int, int]] = {}
    for stream in summary.streams:
        records, torn, dropped = totals.get(stream.event, (0, 0, 0))
        totals[stream.event] = (records + stream.records, torn + stream.torn, dropped + stream.dropped)
    if totals:
        console.print(_table("stream", ("records", "torn", "dropped"), totals))
    if summary.source_tables:
        tables = {f"{each.file}: {each.table}": (each.rows, each.imported) for each in summary.source_tables}
        console.print(_table("source", ("rows", "imported"), tables))
    _print_unmatched(summary)
    if len(summary.clocks.hosts) > 1:
        console.print(_clocks(summary))
    for warning in summary.warnings:
        typer.echo(f"warning: {inert_lines(warning)}", err=True)
    console.print(
        f"{summary.records:,} records in {seconds:.1f} s -> {inert(str(summary.target))}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _print_unmatched(summary: Summary) -> None:
    """Print the joins that left rows without a match, and what that means."""
    unmatched = [join for join in summary.joins if join.unmatched]
    for join in unmatched:
        left, _, right = map(inert, join.name.partition(" -> "))
        typer.echo(f"{left}: {join.unmatched:,} of {join.matched + join.unmatched:,} rows have no row in {right}")
    if any(not join.name.endswith("-> gpu_call") for join in unmatched):
        typer.echo(
            "Such rows are of steps and requests that the recording has only in part: it began or ended amid them, or\n"
            "records were dropped or discarded. Queries show NULL for the other part."
        )


def _print_findings(target: Path) -> None:
    """Print what cost most. The trace is whole by now, so a question that fails is only told."""
    from kvtrace.cli.findings import lines
    from kvtrace.queries import Trace
    from kvtrace.queries.findings import find_findings

    try:
        with Trace(target) as trace:
            found = find_findings(trace)
    except KvtraceError as error:
        typer.echo(f"warning: no findings: {inert_lines(str(error))}", err=True)
        return
    if found:
        typer.echo(f"\nWhat cost most (kvtrace findings {inert(str(target))}):")
        for line in lines(found[:_FINDINGS]):
            typer.echo(line)


def _clocks(summary: Summary) -> Table:
    """The hosts' clocks: what was added to each, and how sure that is."""
    from kvtrace.queries.text import inert

    table = _table("clock", ("recording", "correction ms", "+/- ms", "messages", "method"), {})
    for (host, recording), each in zip(summary.clocks.hosts, summary.clocks.corrections.values(), strict=True):
        sure = "unknown" if each.uncertainty_ns is None else f"{each.uncertainty_ns / 1e6:.3f}"
        numbers = str(recording), f"{each.correction_ns / 1e6:.3f}", sure, f"{each.messages:,}"
        table.add_row(inert(host or "(client)"), *numbers, each.method)
    return table


def _table(what: str, columns: tuple[str, ...], rows: Mapping[str, tuple[int, ...]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(what, box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    for name, values in rows.items():
        table.add_row(Text(inert(name)), *(f"{value:,}" for value in values))
    return table
