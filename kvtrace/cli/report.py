"""`kvtrace report`: all that a trace can answer, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import KvtraceError, needs_analysis
from kvtrace.escape import inert_lines


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command()
    def report(
        trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace made by `kvtrace ingest`.")],
        output: Annotated[
            Path, typer.Option("-o", "--output", metavar="FOLDER", help="Folder to write to; created if missing.")
        ] = Path("report"),
        rows: Annotated[
            int,
            typer.Option(
                min=1, metavar="N", help="Show at most N rows per answer in the page; the CSV files have all."
            ),
        ] = 20,
        advise: Annotated[
            bool, typer.Option("--advise", help="Add the predictions of `kvtrace advise`; needs vLLM and a minute.")
        ] = False,
        draws: Annotated[
            int, typer.Option(metavar="N", min=0, help="With --advise: judge gains by N draws of step times.")
        ] = 0,
        force: Annotated[
            bool, typer.Option("--force", help="Replace a report.html that kvtrace did not make.")
        ] = False,
    ) -> None:
        """Answer all questions that apply to a trace.

        Writes a page, Markdown, CSV files and plots.
        """
        if draws and not advise:
            raise KvtraceError("--draws is for --advise", 2)
        with needs_analysis():
            from kvtrace.reports.report import write_report

            sections = []
            if advise:
                from kvtrace.cli.replay import advice_section

                sections.append(advice_section(trace, draws))
            made = write_report(trace, output, rows, sections, force=force)
        plots = sum(item.picture is not None for item in made.answered)
        typer.echo(
            f"{made.page}  {made.page.stat().st_size / 1e6:.2f} MB: {len(made.answered)} questions answered, "
            f"{plots} with a plot; {len(made.unanswered)} that this trace cannot answer"
        )
        failures = [(item.query, item.why[0]) for item in made.unanswered if item.failed]
        failures += [(item.query, item.problem) for item in made.answered if item.problem]
        for query, problem in failures:
            typer.echo(f"kvtrace: {query.name}: {inert_lines(problem)}", err=True)
