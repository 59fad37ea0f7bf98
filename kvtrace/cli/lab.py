"""`kvtrace lab`: workloads, experiments in many cells, their report and their explorer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace.errors import KvtraceError, needs_analysis
from kvtrace.escape import inert_lines

_PARAMETERS = "KEY=VALUE, such as jobs=30 or rate=0.5; values are JSON or text."

ParametersArgument = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help=_PARAMETERS)]
MatricesArgument = Annotated[
    list[Path], typer.Argument(metavar="MATRIX", help="Experiments to run, in TOML or JSON (docs/lab.md).")
]
SourcesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="SWEEP", help="Folders given to `kvtrace lab run -o`, or results.jsonl.gz of reports on them."
    ),
]
CellsOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the cells and their results.")
]
RetryOption = Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")]
WarmOption = Annotated[
    bool, typer.Option("--warm", help="Fork cells from a process that has imported vLLM, to start faster.")
]
TimeLimitOption = Annotated[
    float | None,
    typer.Option(metavar="MINUTES", min=0, help="Start no cell that would end after MINUTES.", show_default=False),
]
ShareOption = Annotated[
    str,
    typer.Option(
        metavar="I/N", help="Run every N-th cell from the I-th on, for one process per GPU with a common DIR."
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Run only cells whose label has TEXT in it; may be given more than once."),
]
BaselineOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--baseline",
        metavar="DIR",
        help="Compare each cell with that of an earlier DIR of the same matrices; given again, its repetitions.",
    ),
]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION", help="With --baseline: a gate, as of `kvtrace compare`, such as 'ttft_p99 > +5%'."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="List the cells in their order; run none.")]
ReplayOption = Annotated[
    bool, typer.Option("--replay", help="Predict the cells by vLLM's scheduler in virtual time; run no engine.")
]
TimeFromOption = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="With --replay: the trace that times of steps and copies come from.  [default: measured cells of DIR]",
        show_default=False,
    ),
]
DrawsOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="With --replay: replay each cell N times with step times that vary as the recording's do, too; 8 or more.",
    ),
]
AtOnceOption = Annotated[int, typer.Option("--at-once", min=1, help="With --replay: cells side by side.")]
EnginesOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Start the engines of N cells side by side; then the cells send their requests, one cell after another.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    lab = typer.Typer(help="Run experiments and report on them.", no_args_is_help=True)
    lab.command()(run)
    lab.command()(report)
    lab.command()(explorer)
    lab.command()(workload)
    lab.command()(drive)
    app.add_typer(lab, name="lab")


def run(
    matrices: MatricesArgument,
    output: CellsOption,
    retry_failed: RetryOption = False,
    warm: WarmOption = False,
    engines: EnginesOption = 1,
    time_limit: TimeLimitOption = None,
    share: ShareOption = "1/1",
    only: OnlyOption = None,
    baselines: BaselineOption = None,
    fail_if: FailIfOption = None,
    dry_run: DryRunOption = False,
    replay: ReplayOption = False,
    time_from: TimeFromOption = None,
    draws: DrawsOption = 0,
    at_once: AtOnceOption = 2,
) -> None:
    """Run and record every cell of the matrices, or predict them.

    Each cell has an engine of its own. The same command again runs the cells that have no result. One DIR can have
    predicted and measured cells.

    The exit code is 3 if cells or gates failed, and 4 if the time limit left some out or a gate has no verdict.
    """
    from kvtrace.lab.matrix import read_matrix
    from kvtrace.lab.sweep import cells_of

    part = _share(share)
    read = [read_matrix(path) for path in matrices]
    if bool(baselines) != bool(fail_if) or (baselines and replay):
        raise KvtraceError("--baseline and --fail-if belong together, and are for measured cells", 2)
    cells = cells_of(read, part, only or ())
    if dry_run:
        for matrix, cell in cells:
            typer.echo(f"{matrix.name}: {cell.label}  ({cell.id})")
        return
    if replay:
        if engines > 1:
            raise KvtraceError("--engines is for measured cells; --at-once predicts cells side by side", 2)
        if time_limit is not None:
            raise KvtraceError("--time-limit is for measured cells; stop predicting with Ctrl-C, and go on later", 2)
        _predict(read, output, retry_failed, part, only or [], time_from, at_once, draws)
        return
    if draws:
        raise KvtraceError("--draws is for --replay; `repeats` of a matrix measures cells again", 2)
    if time_from is not None:
        raise KvtraceError("--time-from is for --replay; a measured cell has its own times", 2)
    judge = _gates(baselines or [], fail_if or [])
    failed, left = _measure(read, output, retry_failed, warm, engines, time_limit, part, only or [])
    if failed:
        typer.echo(f"{failed} cells failed; `kvtrace lab report {output}` shows why, --retry-failed runs them again")
    code = judge([cell for _, cell in cells], output)
    if failed or left or code:
        raise typer.Exit(3 if failed or code == 3 else 4)


def _measure(
    matrices: list[Any],
    output: Path,
    retry_failed: bool,
    warm: bool,
    engines: int,
    time_limit: float | None,
    share: tuple[int, int],
    only: list[str],
) -> tuple[int, int]:
    """Run the cells; how many failed, and how many the time limit, in minutes, left out."""
    from kvtrace.lab.sweep import sweep

    try:
        return sweep(
            matrices,
            output,
            typer.echo,
            retry_failed=retry_failed,
            warm=warm,
            engines=engines,
            time_limit_s=time_limit * 60 if time_limit is not None else None,
            share=share,
            only=only,
        )
    except KeyboardInterrupt:
        raise KvtraceError("interrupted; the cell that ran is discarded, the same command goes on", 130) from None


def _gates(baselines: list[Path], conditions: list[str]) -> Callable[[list[Any], Path], int]:
    """A function that judges a sweep's cells, prints outcomes and returns the exit code; wrong gates are told now."""
    if not baselines:
        return lambda _, __: 0
    with needs_analysis():
        from kvtrace.lab.baseline import check_baselines, judge_cells, worst_code
        from kvtrace.reports.gates import read_gate
    check_baselines(baselines)
    gates = [read_gate(text) for text in conditions]

    def judge(cells: list[Any], output: Path) -> int:
        judged = []
        for each in judge_cells(cells, output, baselines, gates):
            judged.append(each)
            if each.problem:
                typer.echo(f"no verdict: {each.cell.label}: {inert_lines(each.problem)}")
            for one in each.judgements:
                typer.echo(f"{one.verdict}: {each.cell.label}: {one.gate.text}: {one.change}; {one.reason}")
        return worst_code(judged)

    return judge


def _predict(
    matrices: list[Any],
    output: Path,
    retry_failed: bool,
    share: tuple[int, int],
    only: list[str],
    time_from: Path | None,
    at_once: int,
    draws: int,
) -> None:
    with needs_analysis():
        from kvtrace.lab.replay.sweep import predict
    try:
        failed = predict(
            matrices,
            output,
            typer.echo,
            time_from=time_from,
            retry_failed=retry_failed,
            share=share,
            only=only,
            at_once=at_once,
            draws=draws,
        )
    except KeyboardInterrupt:
        raise KvtraceError("interrupted; the same command goes on with the cells that have no result", 130) from None
    if failed:
        typer.echo(
            f"{failed} cells failed; `kvtrace lab report {output}` shows why, --retry-failed predicts them again"
        )
        raise typer.Exit(3)


def _share(text: str) -> tuple[int, int]:
    number, _, shares = text.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise KvtraceError(f"--share {text!r}: expected I/N with I from 1 to N, such as 1/4")
    return int(number), int(shares)


def report(
    sweeps: SourcesArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Folder to write to.  [default: report in the first]"),
    ] = None,
) -> None:
    """Report on all cells.

    Ingests the recordings that are not ingested yet, and writes report.md and report.html: tables, plots,
    comparisons, warnings. results.jsonl.gz beside them has all that the report needs, without the recordings.

    A cell that several sweeps have ran as often. A measured one stands beside its prediction, whichever sweeps they
    are in.
    """
    if output is None and sweeps[0].is_file():
        raise KvtraceError(f"{sweeps[0]} is a file: -o FOLDER says where to write the report", 2)
    target = output or sweeps[0] / "report"
    with needs_analysis():
        from kvtrace.lab.report.write import write_report

        warnings = write_report(sweeps, target)
    for warning in warnings:
        typer.echo(f"warning: {inert_lines(warning)}", err=True)
    typer.echo(f"{target / 'report.md'}\n{target / 'report.html'}")


def explorer(
    sweeps: SourcesArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="SITE", help="Folder to write.")],
    pages: Annotated[bool, typer.Option(" /--no-pages", help="Write no page per trace.", show_default=False)] = True,
) -> None:
    """Write a static site over one or more sweeps."""
    with needs_analysis():
        from kvtrace.lab.explorer import write_site
        from kvtrace.viewer.page import make_page

        runs = write_site(sweeps, output, make_page if pages else None)
    typer.echo(f"{runs} runs in {output / 'index.html'}")


def workload(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Without it, list the kinds and their parameters.")
    ] = None,
    parameters: ParametersArgument = None,
) -> None:
    """Describe a workload as JSON.

    Prints the requests it would send, and its digest.
    """
    from kvtrace.lab.workloads import KINDS, make, parameters_of

    if kind is None:
        for name in KINDS:
            own = (f"{key}={'?' if value is ... else json.dumps(value)}" for key, value in parameters_of(name).items())
            typer.echo(f"{name}: {' '.join(own)}")
        return
    typer.echo(json.dumps(make(kind, {"kind": kind, **_parse(parameters)}).describe(), indent=1))


def drive(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A server with an OpenAI API, such as http://127.0.0.1:8000.")
    ],
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of workload.")],
    parameters: ParametersArgument = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="RUN", help="Run directory, for client.jsonl.")
    ] = Path(),
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The served model's name.", show_default=False)
    ] = None,
) -> None:
    """Send a workload to a served engine.

    Writes what the client sees to client.jsonl, which `kvtrace ingest RUN` reads. Start the server with
    --enable-prompt-tokens-details to see cached tokens too.
    """
    import asyncio

    from kvtrace.format import layout
    from kvtrace.lab.client import Client, Notes
    from kvtrace.lab.engines import Served
    from kvtrace.lab.workloads import make

    made = make(kind, {"kind": kind, **_parse(parameters)})
    if not output.is_dir():
        raise KvtraceError(f"{output} is not a directory; name the one given to `kvtrace record -o`")
    if (output / layout.CLIENT).exists():
        raise KvtraceError(f"{output / layout.CLIENT} exists; a run has one workload")
    failures = 0

    async def go() -> None:
        nonlocal failures
        async with Served(url, model) as engine:
            with Notes(output / layout.CLIENT) as notes:

                def write(record: dict[str, Any]) -> None:
                    nonlocal failures
                    failures += record["error"] is not None
                    notes.write(record)

                await Client(engine, write).drive(made)

    (output / layout.WORKLOAD).write_text(json.dumps([{"phase": 0, **made.describe()}], indent=1) + "\n")
    asyncio.run(go())
    if failures:
        typer.echo(f"{failures} requests failed; {output / layout.CLIENT} says why", err=True)
        sys.exit(3)


def _parse(parameters: list[str] | None) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for text in parameters or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise KvtraceError(f"{text!r}: expected KEY=VALUE")
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed
