"""Puts the subcommands together and turns `KvtraceError` into a line on stderr and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.escape import inert_lines

COMMANDS = (
    "doctor",
    "record",
    "top",
    "metrics",
    "snapshot",
    "ingest",
    "findings",
    "explain",
    "query",
    "reuse",
    "sql",
    "report",
    "compare",
    "view",
    "export",
    "redact",
    "replay",
    "lab",
)
"""Modules of this package, in the order of a session; each has a `register(app)`."""

app = typer.Typer(
    name="kvtrace",
    help="See what happens to the KV cache inside a running vLLM.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 160},
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """See what happens to the KV cache inside a running vLLM."""
    if version:
        typer.echo(f"kvtrace {__version__}")
        raise typer.Exit


for command in COMMANDS:
    importlib.import_module(f"kvtrace.cli.{command}").register(app)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KvtraceError as error:
        typer.echo(f"kvtrace: {inert_lines(str(error))}", err=True)  # it quotes what files say
        sys.exit(error.exit_code)
