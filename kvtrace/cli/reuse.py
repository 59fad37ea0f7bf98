"""`kvtrace reuse`: what caches of other sizes would have missed, and how much cache given hit rates need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.cli.output import (
    ColumnsOption,
    FormatOption,
    JsonOption,
    Layout,
    OutputOption,
    VerticalOption,
    WideOption,
    chosen_format,
    split_columns,
    write_result,
)
from kvtrace.errors import KvtraceError, needs_analysis

if TYPE_CHECKING:
    import pandas as pd

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="The trace.")]
SizesOption = Annotated[
    str | None,
    typer.Option(metavar="N,N,...", help="Sizes in blocks.  [default: a range up to one that holds all blocks]"),
]
TargetOption = Annotated[
    list[float] | None,
    typer.Option(metavar="RATE", min=0, max=1, help="Also find the smallest size with this hit rate; repeatable."),
]
SampleOption = Annotated[
    float,
    typer.Option(
        metavar="SHARE", help="Follow only this share of the blocks, for large traces, and estimate the error."
    ),
]
BytesOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Bytes per block, if the trace does not say.")
]
PlotOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the curve as .png, .svg or .pdf.")]

_KEY = "size_of", "size_blocks", "lru_miss_ratio", "belady_miss_ratio", "recorded_miss_ratio", "size_bytes"
"""The columns that matter most."""


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command()(reuse)


def reuse(
    trace: TraceArgument,
    sizes: SizesOption = None,
    target_hit_rate: TargetOption = None,
    sample: SampleOption = 1.0,
    block_bytes: BytesOption = None,
    plot: PlotOption = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    output: OutputOption = None,
    columns: ColumnsOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    vertical: VerticalOption = False,
) -> None:
    """Compute the prefix cache's miss ratio at other sizes.

    For LRU and for the best possible policy (Belady), from the block references of a trace.
    """
    with needs_analysis():
        import pyarrow as pa

        from kvtrace.queries import Trace
        from kvtrace.queries.reuse import read_references, sizing
        from kvtrace.queries.reuse.sizing import UNITS
    wanted = _sizes(sizes)
    kind = chosen_format(format, output, trace, as_json=as_json)
    with needs_analysis(), Trace(trace) as opened:
        frame = sizing(read_references(opened), wanted, target_hit_rate or (), sample, block_bytes)
        if plot is not None:
            _draw(frame, plot)
    table = pa.Table.from_pandas(frame, preserve_index=False)  # NaN becomes NULL
    layout = Layout(_KEY, split_columns(columns), wide, vertical, origin_ns=0)
    write_result(table.to_reader(), kind, output, 0, UNITS, layout)
    _name_unreached(frame)


def _sizes(text: str | None) -> list[int]:
    try:
        sizes = [int(size) for size in text.split(",")] if text else []
    except ValueError:
        sizes = [-1]
    if any(size < 0 for size in sizes):
        raise KvtraceError(f"--sizes {text!r}: expected numbers of blocks, as in 1000,2000,4000")
    return sizes


def _draw(frame: pd.DataFrame, path: Path) -> None:
    from kvtrace.queries.plotting import save
    from kvtrace.queries.reuse.plot import plot

    save(plot(frame), path)


def _name_unreached(frame: pd.DataFrame) -> None:
    for engine, what in frame.loc[frame.size_blocks.isna(), ["engine_id", "size_of"]].itertuples(index=False):
        typer.echo(
            f"kvtrace: engine {engine}: no cache of any size has {what}: too many lookups are of blocks that were not "
            "stored before",
            err=True,
        )
