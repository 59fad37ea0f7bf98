"""`kvtrace redact`: a trace without names, to give away."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import KvtraceError, needs_analysis
from kvtrace.escape import inert

SHORTEST_KEY_BYTES = 16

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
    if trace.is_dir():
        raise KvtraceError(f"{trace} is a directory; only traces are redacted: kvtrace ingest {trace}, then its trace")
    if output.exists() and not force:
        raise KvtraceError(f"{output} exists; choose another name, or use --force to replace it")
    key = secrets.token_bytes(KEY_BYTES) if key_file is None else _key(key_file, KEY_BYTES)
    done = redact_trace(trace, output, key)
    for column, count in done.hashed.items():
        typer.echo(f"  {column:<40} {count:>12,} hashed")
    for what in done.left_out:
        typer.echo(f"  left out: {inert(what)}")
    typer.echo(f"{done.rows:,} rows -> {output}")


def _key(path: Path, size: int) -> bytes:
    """The key that a file stands for."""
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(size) + "\n")
        secret = path.read_bytes()
    except OSError as error:
        raise KvtraceError(f"cannot use {path} as a key file: {error.strerror}") from error
    if len(secret.strip()) < SHORTEST_KEY_BYTES:
        raise KvtraceError(
            f"{path} is too short: it has {len(secret.strip())} bytes, expected at least {SHORTEST_KEY_BYTES}"
        )
    return hashlib.blake2b(secret, digest_size=size).digest()
