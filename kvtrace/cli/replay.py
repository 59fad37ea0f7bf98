"""`kvtrace replay` and `kvtrace advise`: vLLM's own scheduler in virtual time, from a recording."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    from kvtrace.lab.replay.check import Agreement, Outcome
    from kvtrace.lab.replay.session import Session

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="The trace of a recording.")]
EngineOption = Annotated[int | None, typer.Option(metavar="ID", help="Which engine, where the trace has several.")]
LoopOption = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="How requests arrive: open (at recorded times), closed (a session's next turn comes its recorded gap "
        "after the last one's end), batch (a batch comes after all requests before it), or auto.",
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
_LOOPS = ("auto", "open", "closed", "batch")


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    app.command()(replay)
    app.command()(advise)


def replay(
    trace: TraceArgument,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The trace to make of the replay.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting, by vLLM's name: num_gpu_blocks=2x, max_num_seqs=64, policy=ttl-pin; repeatable.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only replay with the recorded settings, and compare with the recording.")
    ] = False,
    time: Annotated[
        str, typer.Option(metavar="KIND", help="Times of steps: recorded, fitted, or auto: fitted with a change.")
    ] = "auto",
    time_from: TimeFromOption = None,
    recorded: RecordedOption = None,
    loop: LoopOption = "auto",
    rate: Annotated[str, typer.Option(metavar="FACTOR", help="Factor on the arrival rate, as in 2x.")] = "1x",
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recording with other settings, without a GPU.

    Runs vLLM's own scheduler again on the recording's requests.

    The recorded settings are always replayed first: the table says how well that reproduces the recording, and so what
    error a what-if must be expected to have. Figures of a replay are predicted.
    """
    if time not in ("auto", "recorded", "fitted"):
        raise KvtraceError(f"--time {time}: expected auto, recorded or fitted", 2)
    factor = _factor(rate)
    with needs_analysis():
        from kvtrace.lab.replay.session import Session
    with tempfile.TemporaryDirectory(prefix="kvtrace-replay-") as folder:
        session = Session(trace, Path(folder), engine, _loop(loop), time_from, recorded or ())
        changed = bool(set_ or factor != 1 or time == "fitted" or time_from) and not check
        if changed and time == "recorded":
            raise KvtraceError("recorded times only hold for the recorded settings; leave out --time recorded", 2)
        what_if = session.what_if("what if", set_ or [], factor, output) if changed else None
        results = session.run([what_if] if what_if else [], exact_to=None if changed else output)
        if as_json:
            typer.echo(json.dumps(session.to_json(results), indent=1))
        else:
            _print_check(session, results)
    if output is not None:
        typer.echo(f"kvtrace: wrote {output}, a trace of a replay", err=True)


def advise(
    trace: TraceArgument,
    time_from: TimeFromOption = None,
    recorded: RecordedOption = None,
    loop: LoopOption = "auto",
    engine: EngineOption = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Replays side by side.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Rank what-ifs on a recording by their gain.

    Tries the settings an operator would ask for.
    """
    with needs_analysis():
        from kvtrace.lab.replay.advise import advise as ask
        from kvtrace.lab.replay.session import Session
    with tempfile.TemporaryDirectory(prefix="kvtrace-advise-") as folder:
        session = Session(trace, Path(folder), engine, _loop(loop), time_from, recorded or ())
        advice = ask(session, jobs)
    if as_json:
        typer.echo(json.dumps(advice.to_json(), indent=1))
        return
    for line in advice.text():
        typer.echo(line)


def _loop(name: str) -> str:
    if name not in _LOOPS:
        raise KvtraceError(f"--loop {name}: expected {', '.join(_LOOPS)}", 2)
    return name


def _factor(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)x?", text, re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise KvtraceError(f"--rate {text}: expected a factor such as 2x", 2)
    return float(match[1])


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
    for each in session.model.residuals:
        typer.echo(
            f"time model, {each.kind}: {each.steps} held-out steps, median error {each.median_error:.1%}, "
            f"total {each.total_error:+.1%}"
        )
    speed = results["speed"]
    typer.echo(f"{speed['steps_per_s']:,.0f} steps/s, {speed['times_real']:,.0f} times real time; loop: {session.loop}")
