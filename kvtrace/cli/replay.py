"""`kvtrace replay` and `kvtrace advise`: vLLM's own scheduler in virtual time, from a recording."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    from kvtrace.lab.replay.advise import Advice
    from kvtrace.lab.replay.check import Agreement, Outcome
    from kvtrace.lab.replay.recording import Recording
    from kvtrace.lab.replay.resample import Spread
    from kvtrace.lab.replay.run import Job
    from kvtrace.lab.replay.session import Session
    from kvtrace.reports.document import Block, Section

    Spreads = dict[str, dict[str, Spread]]

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="The trace of a recording.")]
EngineOption = Annotated[int | None, typer.Option(metavar="ID", help="Which engine, where the trace has several.")]
LoopOption = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="How requests arrive: open (at recorded times), closed (a session's next turn comes its recorded gap "
        "after the last one's end), concurrency (as many at a time as recorded, the next one after any one's end), "
        "batch (a batch comes after all requests before it), or auto.",
    ),
]
TimeFromOption = Annotated[
    Path | None, typer.Option(metavar="OTHER", help="Take the times of steps from another trace's cost model.")
]
RecordedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--recorded",
        metavar="NAME=VALUE",
        help="A setting of the recorded engine that the trace does not tell, such as ttl_s; repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", help="The trace to make of the replay.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting, by vLLM's name: num_gpu_blocks=2x, max_num_seqs=64, policy=ttl-pin; repeatable.",
    ),
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Only replay with the recorded settings, and compare with the recording.")
]
TimeOption = Annotated[
    str, typer.Option(metavar="KIND", help="Times of steps: recorded, fitted, or auto: fitted with a change.")
]
RateOption = Annotated[
    str, typer.Option(metavar="FACTOR", help="Factor on the arrival rate, or on the requests at a time, as in 2x.")
]
SeedsOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Replay N resamples of the jobs, too: 95% intervals of the figures.")
]
DrawsOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Replay N times with step times that vary as the recording's do, too: by how much two runs of the same "
        "would differ.",
    ),
]
JudgedDrawsOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Replay what gains N times with step times that vary as the recording's do: a gain within what two runs "
        "differ by is not recommended. 8 or more.",
    ),
]
WorkloadOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which workload of a matrix.", show_default=False)
]
_AT_ONCE = 2
"""Repeated replays side by side."""

_LOOPS = ("auto", "open", "closed", "concurrency", "batch")


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    app.command()(replay)
    app.command()(advise)


def replay(
    trace: TraceArgument,
    output: OutputOption = None,
    set_: SetOption = None,
    check: CheckOption = False,
    time: TimeOption = "auto",
    time_from: TimeFromOption = None,
    recorded: RecordedOption = None,
    loop: LoopOption = "auto",
    rate: RateOption = "1x",
    engine: EngineOption = None,
    seeds: SeedsOption = 0,
    draws: DrawsOption = 0,
    workload: WorkloadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recording with other settings, without a GPU.

    Runs vLLM's own scheduler again on the recording's requests.

    The recorded settings are always replayed first: the table says how well that reproduces the recording, and so what
    error a what-if must be expected to have. Figures of a replay are predicted.

    TRACE may also be a workload that was never recorded: a request trace (`kvtrace ingest --requests`) or a matrix of
    `kvtrace lab`. The engine and the times of steps are then those of --time-from.
    """
    if time not in ("auto", "recorded", "fitted"):
        raise KvtraceError(f"--time {time}: expected auto, recorded or fitted", 2)
    factor = _factor(rate)
    if check and (set_ or factor != 1):
        raise KvtraceError("--check replays with the recorded settings: leave out --set and --rate", 2)
    with needs_analysis():
        from kvtrace.lab.replay.session import FITTED, Session
        from kvtrace.lab.replay.workload import is_request_trace, is_workload
    if is_workload(trace) or is_request_trace(trace):
        if check or time == "recorded":
            raise KvtraceError(f"{trace} was never recorded: there is nothing to check, and no recorded times", 2)
        if engine is not None:
            raise KvtraceError(f"{trace} was never recorded: its engine is the one of --time-from, not --engine", 2)
        repeats = {"seeds": seeds, "draws": draws}
        told = recorded or []
        _replay_unrecorded(trace, output, set_ or [], time_from, told, _loop(loop), factor, repeats, workload, as_json)
        return
    if workload is not None:
        raise KvtraceError(f"--workload names one of a matrix; {trace} is a recording", 2)
    with tempfile.TemporaryDirectory(prefix="kvtrace-replay-") as folder:
        session = Session(trace, Path(folder), engine, _loop(loop), time_from, recorded or ())
        changed = bool(set_ or factor != 1 or time == "fitted" or time_from) and not check
        if changed and time == "recorded":
            raise KvtraceError("recorded times only hold for the recorded settings; leave out --time recorded", 2)
        what_if = session.what_if("what if", set_ or [], factor, output) if changed else None
        results = session.run([what_if] if what_if else [], exact_to=None if changed else output)
        jobs = [session.what_if(FITTED, []), what_if] if what_if else [session.fitted()]
        spreads = _repeated(session.recording, jobs, seeds, draws)
        if as_json:
            typer.echo(json.dumps(session.to_json(results) | _to_json(spreads), indent=1))
        else:
            _print_check(session, results)
            _print_spreads(spreads, seeds, draws)
    _print_written(output)


def _replay_unrecorded(
    source: Path,
    output: Path | None,
    changes: list[str],
    time_from: Path | None,
    told: list[str],
    loop: str,
    rate: float,
    repeats: dict[str, int],
    workload: str | None,
    as_json: bool,
) -> None:
    from kvtrace.lab.replay.unrecorded import BASE, Unrecorded

    if time_from is None:
        raise KvtraceError(
            f"{source} was never recorded; --time-from TRACE says what engine it ran on and how long steps take", 2
        )
    with tempfile.TemporaryDirectory(prefix="kvtrace-replay-") as folder:
        made = Unrecorded(source, time_from, Path(folder), loop, workload, told)
        changed = bool(changes) or rate != 1
        jobs = [made.what_if(BASE, [], target=None if changed else output)]
        if changed:
            jobs.append(made.what_if("what if", changes, rate, output))
        results = made.run(jobs)
        spreads = _repeated(made.recording, jobs, **repeats)
        if as_json:
            typer.echo(json.dumps(made.to_json(results) | _to_json(spreads), indent=1))
        else:
            for warning in results["warnings"]:
                typer.echo(f"warning: {warning}", err=True)
            for line in made.table(results):
                typer.echo(line)
            _print_prefetches(results)
            _print_spreads(spreads, **repeats)
    _print_written(output)


def _repeated(recording: Recording, jobs: Sequence[Job], seeds: int, draws: int) -> dict[str, Spreads]:
    """Replay jobs with other jobs of the recording drawn, and with other times of steps, where that is asked for."""
    from kvtrace.lab.replay.resample import over_draws, over_seeds

    found = {}
    if seeds:
        found["over_seeds"] = over_seeds(recording, jobs, seeds, _AT_ONCE)
    if draws:
        found["over_draws"] = over_draws(recording, jobs, draws, _AT_ONCE)
    return found


def _to_json(spreads: dict[str, Spreads]) -> dict[str, Any]:
    return {
        over: {name: {figure: each.to_json() for figure, each in found.items()} for name, found in by_name.items()}
        for over, by_name in spreads.items()
    }


def _print_spreads(spreads: dict[str, Spreads], seeds: int, draws: int) -> None:
    from kvtrace.lab.replay.resample import lines

    titles = {"over_seeds": f"{seeds} resamples of the jobs", "over_draws": f"{draws} draws of step times"}
    for over, found in spreads.items():
        for line in lines(found, titles[over]):
            typer.echo(line)


def _print_written(output: Path | None) -> None:
    if output is not None:
        typer.echo(f"kvtrace: wrote {output}, a trace of a replay", err=True)


def advise(
    trace: TraceArgument,
    time_from: TimeFromOption = None,
    recorded: RecordedOption = None,
    loop: LoopOption = "auto",
    engine: EngineOption = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Replays side by side.")] = 2,
    draws: JudgedDrawsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Rank what-ifs on a recording by their gain.

    Tries the settings an operator would ask for.
    """
    advice = read_advice(trace, time_from, recorded or (), loop, engine, jobs, draws)
    if as_json:
        typer.echo(json.dumps(advice.to_json(), indent=1))
        return
    for line in advice.text():
        typer.echo(line)


def read_advice(
    trace: Path,
    time_from: Path | None = None,
    recorded: Sequence[str] = (),
    loop: str = "auto",
    engine: int | None = None,
    jobs: int = 2,
    draws: int = 0,
) -> Advice:
    """Replay the what-ifs of `kvtrace advise`, whose options these are."""
    with needs_analysis():
        from kvtrace.lab.replay.advise import advise as ask
        from kvtrace.lab.replay.session import Session
    with tempfile.TemporaryDirectory(prefix="kvtrace-advise-") as folder:
        return ask(Session(trace, Path(folder), engine, _loop(loop), time_from, recorded), jobs, draws)


def advice_section(trace: Path, draws: int = 0) -> Section:
    """The section of a report with the advice on its trace."""
    advice = read_advice(trace, draws=draws)
    from kvtrace.lab.replay.advise import COLUMNS, DRAWN_COLUMNS
    from kvtrace.reports.document import Code, Column, Items, Paragraph, Section, Table, Words, text_table

    def table(names: Sequence[str], rows: list[list[str]]) -> Table:
        return Table([Column(name, number=name != names[0]) for name in names], rows)

    blocks: list[Block] = [table(COLUMNS, advice.rows)]
    if rows := advice.drawn_rows:
        blocks += [Paragraph([Words(f"{advice.drawn_title}:")]), table(DRAWN_COLUMNS, rows)]
    blocks.append(Items(advice.notes))
    if advice.options:
        options = [(Words(name), Code(option)) for name, option in advice.options]
        blocks.append(text_table(("what if", "in vLLM"), options))
    return Section(Words("Other settings, predicted"), "advice", blocks)


def _loop(name: str) -> str:
    if name not in _LOOPS:
        raise KvtraceError(f"--loop {name}: expected {', '.join(_LOOPS)}", 2)
    return name


def _factor(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)x?", text, re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise KvtraceError(f"--rate {text}: expected a factor such as 2x", 2)
    return float(match[1])


def _print_prefetches(results: dict[str, Any]) -> None:
    from kvtrace.lab.replay.tiers.prefetch import Counts

    for name, counts in results["prefetches"].items():
        typer.echo(f"{name}: {Counts(**counts)}")


def _print_check(session: Session, results: dict[str, Any]) -> None:
    for warning in dict.fromkeys(results["warnings"]):
        typer.echo(f"warning: {warning}", err=True)
    agreement: Agreement = results["agreement"]
    outcomes: dict[str, Outcome] = results["outcomes"]
    for line in session.table(outcomes):
        typer.echo(line)
    typer.echo(
        f"\nrecorded times: {agreement.identical_steps:.2%} of the steps and {agreement.identical_blocks:.2%} "
        "of the block operations are those of the recording"
    )
    typer.echo(f"first departure: {agreement.departs}" if agreement.departs else "it departs nowhere")
    _print_prefetches(results)
    for each in session.model.residuals:
        typer.echo(
            f"time model, {each.kind}: {each.steps} held-out steps, median error {each.median_error:.1%}, "
            f"total {each.total_error:+.1%}"
        )
    if (launches := session.model.launches).each_ns:
        graphs = session.model.graph_launches
        less = f", {graphs.mean_ns / 1e6:.1f} ms with CUDA graphs" if graphs else ""
        typer.echo(f"time model: launching a step with prefill takes the host {launches.mean_ns / 1e6:.1f} ms{less}")
    speed = results["speed"]
    typer.echo(f"{speed['steps_per_s']:,.0f} steps/s, {speed['times_real']:,.0f} times real time; loop: {session.loop}")
