"""`kvtrace record`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.errors import KvtraceError


class KvLevel(enum.StrEnum):
    """Depth of the recording on the GPU."""

    host = "host"
    layer = "layer"
    tile = "tile"


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(
        context_settings={"allow_interspersed_args": False},
        options_metavar="[-o RUN] [OPTIONS]",
    )
    def record(
        command: Annotated[
            list[str],
            typer.Argument(
                metavar="COMMAND", show_default=False, help="Any command that starts vLLM, with its options."
            ),
        ],
        output: Annotated[
            Path | None,
            typer.Option(
                "-o",
                "--output",
                metavar="RUN",
                help="Run directory to create.  [default: kvtrace-run-DATE-TIME]",
                show_default=False,
            ),
        ] = None,
        kv_level: Annotated[
            KvLevel,
            typer.Option(
                "--kv-level",
                help="host: record nothing on the GPU. layer: also time each layer's KV write and attention there. "
                "tile: also record every block that each head reads or writes (Triton backend).",
            ),
        ] = KvLevel.layer,
        layers: Annotated[
            str,
            typer.Option(
                metavar="LIST",
                help="layer, tile: record only these layers, such as 0,15,30-31, or all. By default, layer times every "
                "layer in steps without CUDA graphs and one of sixteen in others.",
            ),
        ] = "",
        heads: Annotated[str, typer.Option(metavar="LIST", help="tile: record only these KV heads.")] = "",
        every: Annotated[int, typer.Option(metavar="N", min=1, help="tile: record every Nth step.")] = 1,
        steps: Annotated[str, typer.Option(metavar="A:B", help="tile: record only steps A to B.")] = "",
        kinds: Annotated[str, typer.Option(metavar="LIST", help="tile: record read, write or both.")] = "read,write",
        max_mb_per_s: Annotated[
            float | None,
            typer.Option(metavar="MB", min=0.001, help="tile: leave out whole steps to stay below this rate."),
        ] = None,
        ring_mb: Annotated[
            int | None,
            typer.Option(metavar="MB", min=1, help="tile: device memory for records, in MB.", show_default=False),
        ] = None,
        max_bytes: Annotated[
            str,
            typer.Option(
                metavar="SIZE",
                help="Stop recording at this size, such as 20GB. With --keep-last, discard the oldest records instead.",
                show_default=False,
            ),
        ] = "",
        segment_minutes: Annotated[
            float | None,
            typer.Option(
                metavar="M",
                min=0.01,
                help="Length of a segment in minutes; --keep-last discards whole segments.",
                show_default=False,
            ),
        ] = None,
        keep_last: Annotated[
            str,
            typer.Option(
                metavar="TIME|SIZE",
                help="Flight recorder: keep only the last 10m, 2h or 2GB. `kvtrace snapshot RUN`, or SIGUSR2 to this "
                "process, copies them.",
                show_default=False,
            ),
        ] = "",
        nvtx: Annotated[
            bool,
            typer.Option("--nvtx", help="Mark steps with NVTX ranges, even if no profiler is detected."),
        ] = False,
        nsys: Annotated[
            bool, typer.Option("--nsys", help="Run COMMAND under Nsight Systems and export its report to SQLite.")
        ] = False,
        nsys_args: Annotated[
            str,
            typer.Option(
                "--nsys-args",
                metavar="TEXT",
                help="Options of `nsys profile`, as one quoted string; they override kvtrace's.",
                show_default=False,
            ),
        ] = "",
        force: Annotated[bool, typer.Option("--force", help="Replace an earlier recording in RUN.")] = False,
        quiet: Annotated[
            bool, typer.Option("--quiet", help="Show no status line, and only problems in the summary.")
        ] = False,
        no_preflight: Annotated[
            bool,
            typer.Option("--no-preflight", help="Do not check first that the command's Python has vLLM and kvtrace."),
        ] = False,
    ) -> None:
        """Run COMMAND and record the KV cache of every vLLM in it.

        The command keeps its standard streams and its signals. All words after COMMAND are passed to it.
        Read the recording with `kvtrace ingest RUN`.

        The exit code is the command's. It is 127 if there is no such command, 126 if it cannot be executed, and 2 if
        recording cannot start.
        """  # fmt: skip
        from kvtrace.capture.limits import parse_limits
        from kvtrace.capture.tile_options import TileOptions, parse_indices, parse_kinds, parse_steps
        from kvtrace.launch.launch import Launch
        from kvtrace.launch.launch import record as run
        from kvtrace.launch.supervise import die_by

        if layers == "all":
            layers = "0-255" if kv_level is KvLevel.layer else ""  # tiles are of all unless some are named
        tiles = TileOptions(
            layers=parse_indices(layers, "--layers", 256) if layers else (),
            heads=parse_indices(heads, "--heads", 64) if heads else (),
            every=every,
            kinds=parse_kinds(kinds),
            max_mb_per_s=max_mb_per_s,
            ring_mb=ring_mb,
            **parse_steps(steps),
        )
        if kv_level is KvLevel.host and tiles.layers:
            raise KvtraceError("--layers needs --kv-level layer or tile", exit_code=2)
        if kv_level is not KvLevel.tile and tiles != TileOptions(layers=tiles.layers):
            raise KvtraceError("the filters and limits of tiles need --kv-level tile", exit_code=2)
        code = run(
            Launch(
                command,
                output,
                force=force,
                quiet=quiet,
                check_first=not no_preflight,
                kv_level=kv_level.value,
                tiles=tiles,
                nvtx=nvtx,
                nsys=nsys or bool(nsys_args),
                nsys_args=nsys_args,
                limits=parse_limits(max_bytes, segment_minutes, keep_last),
            )
        )
        if code < 0:
            die_by(-code)
        raise typer.Exit(code)
