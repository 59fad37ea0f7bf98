"""`kvtrace record` without the command line: makes the run directory, runs the command, tells what was recorded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from kvtrace.capture.limits import LIMITS_VARIABLE, Limits
from kvtrace.capture.tenants import TENANTS_VARIABLE, Tenants
from kvtrace.capture.tile_options import TileOptions
from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.format.manifest import Manifest
from kvtrace.format.secrets import redact
from kvtrace.launch import preflight
from kvtrace.launch.meter import Meter
from kvtrace.launch.nsys import Nsys, command_pid, find_nsys, pid_file
from kvtrace.launch.nsys_report import Report, finish_report, last_words
from kvtrace.launch.rundir import default_run_dir, make_run_dir
from kvtrace.launch.status import INTERVAL_S, StatusLine, begin_line, is_usable, status_text
from kvtrace.launch.summary import Ending, summarize
from kvtrace.launch.supervise import Between, Child
from kvtrace.retention.thread import FlightRecorder

_PLUGINS_VARIABLE = "VLLM_PLUGINS"
_PLUGIN = "kvtrace"
_RAY_PREFIXES_VARIABLE = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
_PREFIX = "KVTRACE_"
_STDERR = 2


@dataclass(frozen=True)
class Launch:
    """Command to record, and the options of its recording.

    `quiet` leaves out the status line and everything of the summary but problems. `kv_level` is `host`, or `layer` or
    `tile` to time KV accesses on a GPU too where there is one; `tiles` has the filters of the last. `nvtx` speaks NVTX
    even if no profiler seems to listen. `nsys` runs the command under Nsight Systems, with `nsys_args` as further
    options of `nsys profile`. `limits` are those of the recording. `tenants` tells how tenants are named.
    """

    command: Sequence[str]
    run_dir: Path | None = None
    force: bool = False
    quiet: bool = False
    check_first: bool = True
    kv_level: str = "layer"
    tiles: TileOptions = field(default_factory=TileOptions)
    nvtx: bool = False
    nsys: bool = False
    nsys_args: str = ""
    limits: Limits = field(default_factory=Limits)
    tenants: Tenants = field(default_factory=Tenants)


def record(launch: Launch) -> int:
    """Run the command to its end and record the vLLM in it.

    Signals that this process blocks meanwhile stay blocked, so that nothing but the command's end ends it.

    Returns:
        The command's exit code; negative, the signal that killed it. That of nsys if it left the command running.

    Raises:
        KvtraceError: the command did not start.
    """
    environment = {key: value for key, value in os.environ.items() if key not in (LIMITS_VARIABLE, TENANTS_VARIABLE)}
    program = preflight.find_program(launch.command[0], environment)
    nsys = find_nsys(environment, launch.nsys_args) if launch.nsys else None
    interpreter = preflight.find_interpreter(program, launch.command[1:], environment) if launch.check_first else None
    if interpreter is not None:
        for warning in preflight.check(interpreter, environment, needs_nvtx=launch.nvtx, wants_nvtx=launch.nsys):
            _say(warning)
    run_dir = launch.run_dir or default_run_dir()
    is_new = make_run_dir(run_dir, force=launch.force)
    limits = {key: value for key, value in asdict(launch.limits).items() if value} or None
    manifest = Manifest(command=redact(launch.command), started_ns=time.time_ns(), limits=limits, pid=os.getpid())
    started_ns = time.monotonic_ns()
    try:
        manifest.write(run_dir)
        if not launch.quiet:
            _say(f"recording to {run_dir}; when the command has ended: kvtrace ingest {run_dir}")
        child = _start(launch, nsys, program, environment, run_dir)
    except KvtraceError:
        _remove_unused(run_dir, is_new=is_new)
        raise
    manifest = _update(replace(manifest, pid=child.pid), run_dir)
    code = _watch(child, run_dir, started_ns, launch)
    elapsed_ns = time.monotonic_ns() - started_ns
    if nsys is not None and run_dir.exists() and not pid_file(run_dir).exists():
        reason = last_words(run_dir / layout.NSYS_LOG)
        _remove_unused(run_dir, is_new=is_new)
        raise KvtraceError(f"{nsys.program} did not start the command: {reason}. Look at --nsys-args, if given.", 2)
    told_code = None if child.was_left else code
    manifest = _update(replace(manifest, ended_ns=time.time_ns(), exit_code=told_code), run_dir)
    report = _report(nsys, run_dir, environment, quiet=launch.quiet) if nsys is not None else None
    if report is not None and report.sqlite is not None:
        _update(replace(manifest, nsight=[report.sqlite.name]), run_dir)
    lines = summarize(Ending(run_dir, told_code, elapsed_ns, interpreter is not None, report), quiet=launch.quiet)
    if lines:
        begin_line(_STDERR, os.environ)
    for line in lines:
        _say(line)
    return code


def _start(launch: Launch, nsys: Nsys | None, program: Path, environment: Mapping[str, str], run_dir: Path) -> Child:
    inherited = child_environment(environment, run_dir, launch.kv_level, launch.tiles, nvtx=launch.nvtx or launch.nsys)
    inherited |= launch.limits.to_environment() | launch.tenants.to_environment()
    if nsys is None:
        return Child(program, launch.command, inherited)
    command = nsys.profile(run_dir / layout.PROFILE, pid_file(run_dir), program, launch.command)
    between = Between(run_dir / layout.NSYS_LOG, partial(command_pid, run_dir))
    return Child(nsys.program, command, inherited, between)


def _report(nsys: Nsys, run_dir: Path, environment: Mapping[str, str], *, quiet: bool) -> Report:
    pid_file(run_dir).unlink(missing_ok=True)
    if not quiet:
        begin_line(_STDERR, os.environ)
    try:
        return finish_report(nsys, run_dir, environment, (lambda line: None) if quiet else _say)
    except OSError as error:
        return Report(None, f"the report of nsys in {run_dir} cannot be finished: {error}")


def child_environment(
    environment: Mapping[str, str],
    run_dir: Path,
    kv_level: str = "layer",
    tiles: TileOptions | None = None,
    *,
    nvtx: bool = False,
) -> dict[str, str]:
    """The command's environment: where to record, and leave for vLLM to load kvtrace if only some plugins may load.

    vLLM copies variables to its Ray actors whose names begin as it is told.
    """
    result = {
        **environment,
        layout.RUN_DIR_VARIABLE: str(run_dir.absolute()),
        layout.KV_LEVEL_VARIABLE: kv_level,
        **(tiles.to_environment() if tiles and kv_level != "host" else {}),
    }
    if nvtx:
        result[layout.NVTX_VARIABLE] = "1"
    result[_RAY_PREFIXES_VARIABLE] = _with(result.get(_RAY_PREFIXES_VARIABLE, ""), _PREFIX)
    if (plugins := result.get(_PLUGINS_VARIABLE)) is not None:
        result[_PLUGINS_VARIABLE] = _with(plugins, _PLUGIN)
    return result


def _with(listed: str, name: str) -> str:
    """A comma-separated list, with `name` in it."""
    if name in listed.split(","):
        return listed
    return f"{listed},{name}" if listed else name


def _watch(child: Child, run_dir: Path, started_ns: int, launch: Launch) -> int:
    if not launch.limits.keeps:
        return _wait(child, run_dir, started_ns, None, quiet=launch.quiet)
    flight = FlightRecorder(run_dir, launch.limits, _say)
    flight.start()
    try:
        return _wait(child, run_dir, started_ns, flight.freeze, quiet=launch.quiet)
    finally:
        flight.finish()


def _wait(child: Child, run_dir: Path, started_ns: int, freeze: Callable[[], None] | None, *, quiet: bool) -> int:
    if quiet or not is_usable(_STDERR, os.environ):
        return child.wait(_nothing, _nothing, None, freeze)
    line, meter = StatusLine(_STDERR), Meter(run_dir)

    def draw() -> None:
        now_ns = time.monotonic_ns()
        line.draw(status_text(meter.read(now_ns), now_ns - started_ns))

    try:
        return child.wait(_unless_failing(draw), line.clear, INTERVAL_S, freeze)
    finally:
        line.clear()


def _unless_failing(draw: Callable[[], None]) -> Callable[[], None]:
    """A status line is not worth the command: the first failure is the last."""
    failed = False

    def guarded() -> None:
        nonlocal failed
        if failed:
            return
        try:
            draw()
        except Exception as error:
            failed = True
            _say(f"the status line failed and was switched off: {error!r}")

    return guarded


def _nothing() -> None:
    pass


def _update(manifest: Manifest, run_dir: Path) -> Manifest:
    """Write the manifest again. Whatever happens to the run directory, the command has started and goes on."""
    try:
        manifest.write(run_dir)
    except KvtraceError as error:
        _say(str(error))
    return manifest


def _remove_unused(run_dir: Path, *, is_new: bool) -> None:
    with suppress(OSError):
        (run_dir / layout.NSYS_LOG).unlink(missing_ok=True)
        (run_dir / layout.MANIFEST).unlink()
        if is_new:
            run_dir.rmdir()


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"kvtrace: {line}\n")
        sys.stderr.flush()
