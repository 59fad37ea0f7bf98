"""`kvtrace export`: a trace in the formats of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import KvtraceError, needs_analysis, needs_extra

_MEGABYTE = 1_000_000

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace made by `kvtrace ingest`.")]
PerfettoOption = Annotated[
    Path | None, typer.Option("--perfetto", metavar="DIR", help="Write files for ui.perfetto.dev.")
]
ParquetOption = Annotated[
    Path | None,
    typer.Option(
        "--parquet",
        metavar="DIR",
        help="Write table=NAME/run=ID/hour=HOUR/part-*.parquet; a folder may hold many runs.",
    ),
]
CsvOption = Annotated[Path | None, typer.Option("--csv", metavar="DIR", help="Write NAME.csv for every table.")]
OtlpOption = Annotated[
    Path | None, typer.Option("--otlp", metavar="FILE", help="Write OpenTelemetry spans in JSON, one message per line.")
]
ViewsOption = Annotated[
    bool, typer.Option("--views", help="With --parquet or --csv: write the views too. kv_access can be very large.")
]
RunIdOption = Annotated[
    str | None,
    typer.Option("--run-id", metavar="ID", help="With --parquet or --otlp: name of the run.  [default: its start]"),
]
SliceOption = Annotated[
    int, typer.Option("--slice-mb", min=1, metavar="N", help="With --perfetto: largest file, in MB.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an earlier export.")]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(export)


def export(
    trace: TraceArgument,
    perfetto: PerfettoOption = None,
    parquet: ParquetOption = None,
    csv: CsvOption = None,
    otlp: OtlpOption = None,
    views: ViewsOption = False,
    run_id: RunIdOption = None,
    slice_mb: SliceOption = 500,
    force: ForceOption = False,
) -> None:
    """Export a trace to Perfetto, Parquet, CSV or OpenTelemetry.

    Name exactly one of the formats.
    """
    if sum(option is not None for option in (perfetto, parquet, csv, otlp)) != 1:
        raise KvtraceError("name exactly one of --perfetto DIR, --parquet DIR, --csv DIR and --otlp FILE", 2)
    if views and parquet is None and csv is None:
        raise KvtraceError("--views goes with --parquet and --csv", 2)
    if run_id is not None and parquet is None and otlp is None:
        raise KvtraceError("--run-id goes with --parquet and --otlp", 2)
    with needs_analysis():
        if perfetto is not None:
            _perfetto(trace, perfetto, slice_mb * _MEGABYTE, force=force)
        elif otlp is not None:
            from kvtrace.export.otlp import export_otlp

            _say(otlp, export_otlp(trace, otlp, run=run_id, force=force), "spans")
        else:
            _tables(trace, parquet, csv, run_id, views=views, force=force)


def _perfetto(trace: Path, folder: Path, most_bytes: int, *, force: bool) -> None:
    with needs_extra("export", "--perfetto"):
        from kvtrace.export.perfetto.write import export_perfetto
    files = export_perfetto(trace, folder, most_bytes=most_bytes, force=force)
    for file in files:
        _say(folder / file.file, file.rows, "rows", f"{file.bytes / 1e6:.1f} MB, ")
    if not files:
        _say(folder, {}, "rows")


def _tables(
    trace: Path, parquet: Path | None, csv: Path | None, run_id: str | None, *, views: bool, force: bool
) -> None:
    from kvtrace.export.columns import export_csv
    from kvtrace.export.parquet import export_parquet

    if parquet is not None:
        _say(parquet, export_parquet(trace, parquet, run=run_id, views=views, force=force), "rows")
    elif csv is not None:
        _say(csv, export_csv(trace, csv, views=views, force=force), "rows")


def _say(path: Path, counts: Mapping[str, int], what: str, size: str = "") -> None:
    typer.echo(f"{path}  {size}{sum(counts.values()):,} {what}")
    if not sum(counts.values()):
        typer.echo(f"kvtrace: the trace has nothing that becomes {what} there", err=True)
    for name, count in counts.items():
        if count:
            typer.echo(f"  {name:<20} {count:>12,}")
