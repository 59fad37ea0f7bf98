"""`kvtrace record`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.capture.tenants import HEADER, KEY_BYTES, Tenants
from kvtrace.cli.key_file import read_key
from kvtrace.errors import KvtraceError

if TYPE_CHECKING:
    from kvtrace.capture.tile_options import TileOptions


class KvLevel(enum.StrEnum):
    """Depth of the recording on the GPU."""

    host = "host"
    layer = "layer"
    tile = "tile"


class TenantNames(enum.StrEnum):
    """How a recording names tenants."""

    hashed = "hashed"
    names = "names"
    off = "off"


Command = Annotated[
    list[str],
    typer.Argument(metavar="COMMAND", show_default=False, help="Any command that starts vLLM, with its options."),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="RUN",
        help="Run directory to create.  [default: kvtrace-run-DATE-TIME]",
        show_default=False,
    ),
]
Level = Annotated[
    KvLevel,
    typer.Option(
        "--kv-level",
        help="host: record nothing on the GPU. layer: also time each layer's KV write and attention there. "
        "tile: also record every block that each head reads or writes (Triton backend), or reads (FlashAttention 4 or "
        "FlashInfer on Hopper).",
    ),
]
Layers = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="layer, tile: record only these layers, such as 0,15,30-31, or all. By default, layer observes every "
        "layer in steps without CUDA graphs. In others, kernels that can be rewritten (Triton backend, FlashAttention "
        "4 and FlashInfer on Hopper) observe every layer; with other kernels one of sixteen is timed.",
    ),
]
Heads = Annotated[str, typer.Option(metavar="LIST", help="tile: record only these KV heads.")]
Every = Annotated[int, typer.Option(metavar="N", min=1, help="tile: record every Nth step.")]
Steps = Annotated[str, typer.Option(metavar="A:B", help="tile: record only steps A to B.")]
Kinds = Annotated[str, typer.Option(metavar="LIST", help="tile: record read, write or both.")]
MaxRate = Annotated[
    float | None, typer.Option(metavar="MB", min=0.001, help="tile: leave out whole steps to stay below this rate.")
]
RingSize = Annotated[
    int | None, typer.Option(metavar="MB", min=1, help="tile: device memory for records, in MB.", show_default=False)
]
MaxBytes = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Stop recording at this size, such as 20GB. With --keep-last, discard the oldest records instead.",
        show_default=False,
    ),
]
SegmentMinutes = Annotated[
    float | None,
    typer.Option(
        metavar="M",
        min=0.01,
        help="Length of a segment in minutes; --keep-last discards whole segments.",
        show_default=False,
    ),
]
KeepLast = Annotated[
    str,
    typer.Option(
        metavar="TIME|SIZE",
        help="Flight recorder: keep only the last 10m, 2h or 2GB. `kvtrace snapshot RUN`, or SIGUSR2 to this "
        "process, copies them.",
        show_default=False,
    ),
]
TenantNaming = Annotated[
    TenantNames,
    typer.Option(
        "--tenants",
        help="Record who a request is for: tag kvtrace_tenant, else a header, else OpenAI's `user`. hashed: as a keyed "
        "hash. names: as given. off: not at all.",
    ),
]
TenantHeader = Annotated[
    str, typer.Option("--tenant-header", metavar="NAME", help="HTTP header that names the tenant.")
]
TenantKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--tenant-key-file",
        metavar="FILE",
        help="Secret key of the hashes; created if missing. Recordings with one key have equal hashes for equal "
        "tenants.  [default: a random key that is not stored]",
    ),
]
Nvtx = Annotated[bool, typer.Option("--nvtx", help="Mark steps with NVTX ranges, even if no profiler is detected.")]
Nsys = Annotated[bool, typer.Option("--nsys", help="Run COMMAND under Nsight Systems and export its report to SQLite.")]
NsysArgs = Annotated[
    str,
    typer.Option(
        "--nsys-args",
        metavar="TEXT",
        help="Options of `nsys profile`, as one quoted string; they override kvtrace's.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier recording in RUN.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no status line, and only problems in the summary.")]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="Do not check first that the command's Python has vLLM and kvtrace.")
]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    settings = {"allow_interspersed_args": False}
    app.command(context_settings=settings, options_metavar="[-o RUN] [OPTIONS]")(record)


def record(
    command: Command,
    output: Output = None,
    kv_level: Level = KvLevel.layer,
    layers: Layers = "",
    heads: Heads = "",
    every: Every = 1,
    steps: Steps = "",
    kinds: Kinds = "read,write",
    max_mb_per_s: MaxRate = None,
    ring_mb: RingSize = None,
    max_bytes: MaxBytes = "",
    segment_minutes: SegmentMinutes = None,
    keep_last: KeepLast = "",
    tenants: TenantNaming = TenantNames.hashed,
    tenant_header: TenantHeader = HEADER,
    tenant_key_file: TenantKeyFile = None,
    nvtx: Nvtx = False,
    nsys: Nsys = False,
    nsys_args: NsysArgs = "",
    force: Force = False,
    quiet: Quiet = False,
    no_preflight: NoPreflight = False,
) -> None:
    """Run COMMAND and record the KV cache of every vLLM in it.

    The command keeps its standard streams and its signals. All words after COMMAND are passed to it.
    Read the recording with `kvtrace ingest RUN`.

    The exit code is the command's. It is 127 if there is no such command, 126 if it cannot be executed, and 2 if
    recording cannot start.
    """
    from kvtrace.capture.limits import parse_limits
    from kvtrace.launch.launch import Launch
    from kvtrace.launch.launch import record as run
    from kvtrace.launch.supervise import die_by

    launch = Launch(
        command,
        output,
        force=force,
        quiet=quiet,
        check_first=not no_preflight,
        kv_level=kv_level.value,
        tiles=_tile_options(kv_level, layers, heads, every, steps, kinds, max_mb_per_s, ring_mb),
        nvtx=nvtx,
        nsys=nsys or bool(nsys_args),
        nsys_args=nsys_args,
        limits=parse_limits(max_bytes, segment_minutes, keep_last),
        tenants=_tenants(tenants, tenant_header, tenant_key_file),
    )
    code = run(launch)
    if code < 0:
        die_by(-code)
    raise typer.Exit(code)


def _tenants(naming: TenantNames, header: str, key_file: Path | None) -> Tenants:
    """Make the options of a recording of tenants.

    Raises:
        KvtraceError: The header is none, its values are secrets that would be recorded, or the key file is unusable.
    """
    if key_file is not None and naming is not TenantNames.hashed:
        raise KvtraceError("--tenant-key-file is for --tenants hashed", exit_code=2)
    given = {} if key_file is None else {"key": read_key(key_file, KEY_BYTES).hex()}
    tenants = Tenants(naming.value, header, **given)
    tenants.check()
    return tenants


def _tile_options(
    kv_level: KvLevel,
    layers: str,
    heads: str,
    every: int,
    steps: str,
    kinds: str,
    max_mb_per_s: float | None,
    ring_mb: int | None,
) -> TileOptions:
    """Parse the filters and limits of tiles.

    Raises:
        KvtraceError: An option is malformed, or needs a deeper `--kv-level`.
    """
    from kvtrace.capture.tile_options import TileOptions, parse_indices, parse_kinds, parse_steps

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
    return tiles
