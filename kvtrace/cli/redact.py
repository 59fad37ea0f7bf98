"""`kvtrace redact`: a trace without names, to give away."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.cli.key_file import read_key
from kvtrace.errors import KvtraceError, needs_analysis
from kvtrace.escape import inert

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace made by `kvtrace ingest`.")]
OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="The redacted trace.")]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="Secret key of the hashes; created if missing. Traces redacted with one key have equal hashes for equal "
        "names.  [default: a random key that is not stored]",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an earlier trace.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(redact)


def redact(trace: TraceArgument, output: OutputOption, key_file: KeyOption = None, force: ForceOption = False) -> None:
    """Replace the names in a trace by hashes.

    Names are those of people, requests, hosts, models and files. Every query counts the same afterwards.
    """
    with needs_analysis():
        from kvtrace.ingest.redaction import KEY_BYTES, redact_trace
        from kvtrace.queries.trace import trace_file
    trace = trace_file(trace)
    if trace.is_dir():
        raise KvtraceError(f"{trace} is a directory; only traces are redacted: kvtrace ingest {trace}, then its trace")
    if output.exists() and not force:
        raise KvtraceError(f"{output} exists; choose another name, or use --force to replace it")
    key = secrets.token_bytes(KEY_BYTES) if key_file is None else read_key(key_file, KEY_BYTES)
    done = redact_trace(trace, output, key)
    for column, count in done.hashed.items():
        typer.echo(f"  {column:<40} {count:>12,} hashed")
    for what in done.left_out:
        typer.echo(f"  left out: {inert(what)}")
    typer.echo(f"{done.rows:,} rows -> {output}")
