"""Writes the summary of `kvtrace record`: what was recorded, what was not and why, what to do next."""

from __future__ import annotations

import shlex
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.format.discarded import TILES
from kvtrace.format.processes import still_running
from kvtrace.format.reader import ProcessRecording, Recording, open_recording
from kvtrace.launch.nsys_report import Report
from kvtrace.launch.status import size
from kvtrace.launch.versions import remark

_PATIENCE_S = 5.0
"""How long processes may outlive the command before the summary says so: on a busy machine a worker ends late."""
_COUNT_EXACTLY_BYTES = 1 << 28
"""Larger recordings are counted by a few reads a segment: exact but for torn records, without reading it all."""


@dataclass(frozen=True)
class Ending:
    """End of a run. `asked` says that the command's Python was seen to have vLLM and kvtrace.

    `exit_code` is None if it is not known. `report` is what became of Nsight Systems' report, if the command ran under
    that.
    """

    run_dir: Path
    exit_code: int | None
    elapsed_ns: int
    asked: bool
    report: Report | None = None


@dataclass
class _Counts:
    records: Counter[str] = field(default_factory=Counter)
    torn: int = 0
    problems: list[str] = field(default_factory=list)


def summarize(ending: Ending, *, quiet: bool) -> list[str]:
    """The summary's lines; with `quiet` only what went wrong. It does not raise, whatever is in the run directory."""
    try:
        recording = open_recording(ending.run_dir)
        lines, problems = _summarize(ending, recording)
    except KvtraceError as error:
        lines, problems = [], [f"the recording is damaged: {error}"]
    except Exception as error:
        lines, problems = [], [f"cannot tell what was recorded in {ending.run_dir}: {error!r}"]
    if ending.report is not None and ending.report.problem is not None:
        problems = [*problems, ending.report.problem]
    return problems if quiet else [*lines, *problems, *_next(ending, lines)]


def _summarize(ending: Ending, recording: Recording) -> tuple[list[str], list[str]]:
    processes, problems = recording.processes, list(recording.warnings)
    if not processes:
        return [], [*problems, *_why_nothing(ending)]
    disk_bytes = _disk_bytes(ending.run_dir)
    counts = _count(processes, exactly=disk_bytes <= _COUNT_EXACTLY_BYTES)
    versions = sorted({process.vllm_version for process in processes if process.vllm_version})
    how_many, version = _in_words(len(processes)), ", ".join(versions) or "(version unknown)"
    lines = [
        f"recorded {how_many} of vLLM {version} in {ending.elapsed_ns / 1e9:,.1f} s; "
        f"the command {_how_it_ended(ending.exit_code)}",
        *(f"  {_describe(process)}" for process in processes),
        *(f"  {said}" for version in versions if (said := remark(version))),
        *_hooks(processes),
        *_connectors(processes),
        *_devices(processes),
        *_nvtx(processes),
        f"  records: {_by_stream(counts.records)}",
        *(
            [f"  left out: {counts.torn:,} torn records, unfinished when their process died or overwritten"]
            if counts.torn
            else []
        ),
        *_discarded(processes),
        *_profile(ending.report),
        f"  on disk: {size(disk_bytes)} in {ending.run_dir}",
    ]
    problems += [*counts.problems, *_disabled_hooks(processes), *_losses(processes), *_leftovers(processes)]
    if not counts.records.total():
        problems.append("vLLM loaded kvtrace but recorded no event: did it schedule any request?")
    return lines, problems


def _next(ending: Ending, lines: list[str]) -> list[str]:
    return [f"  next: kvtrace ingest {shlex.quote(str(ending.run_dir))}"] if lines else []


def _count(processes: Iterable[ProcessRecording], *, exactly: bool) -> _Counts:
    counts = _Counts()
    for process in processes:
        try:
            for event, segments in process.segments().items():
                for segment in segments:
                    records, torn = segment.count() if exactly else (segment.committed_estimate(), 0)
                    counts.records[event] += records
                    counts.torn += torn
        except (KvtraceError, OSError, ValueError) as error:
            counts.problems.append(f"records of process {process.pid} cannot be counted: {error}")
    return counts


def _discarded(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    gone = [(process, stream, told) for process in processes for stream, told in process.discards.streams.items()]
    if not gone:
        return
    records = sum(told.records for _, stream, told in gone if stream != TILES)
    steps = sum(told.records for _, stream, told in gone if stream == TILES)
    tiles = f" and {steps:,} steps of tiles" if steps else ""
    files, allocated = sum(told.files for _, _, told in gone), sum(told.bytes for _, _, told in gone)
    clock = {process.directory: process.clocks[0] for process, _, _ in gone}
    begins_ns = max(
        told.begins_ns + clock[process.directory].realtime_ns - clock[process.directory].monotonic_ns
        for process, _, told in gone
    )
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begins_ns / 1e9))
    yield f"  discarded: {records:,} records{tiles} in {files:,} files ({size(allocated)}); complete from {since} on"


def _describe(process: ProcessRecording) -> str:
    ranks = (f"{name.removesuffix('_rank')} {process.rank[name]}" for name in ("dp_rank", "tp_rank", "pp_rank")
             if process.rank.get(name) is not None)  # fmt: skip
    return "  ".join([f"{_roles(process):<24}", f"pid {process.pid}", *ranks])


def _roles(process: ProcessRecording) -> str:
    return ", ".join(process.roles) or "unknown role"


def _by_stream(records: Counter[str]) -> str:
    streams = ", ".join(f"{event} {count:,}" for event, count in records.most_common())
    return f"{records.total():,} ({streams})" if records else "none"


def _hooks(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    states = _hook_states(processes)
    installed = {hook for hook, state, _ in states if state == "installed"}
    absent = {(hook, detail): pids for (hook, state, detail), pids in states.items() if state == "absent"}
    if states:
        yield f"  hooks: {len(installed)} installed" + (f", {len(absent)} not in this vLLM:" if absent else "")
    for hook, detail in sorted(absent):
        yield f"    {hook}" + (f" (lost: {detail})" if detail else "")


def _connectors(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    facts = [fact for process in processes for fact in process.connectors if fact.get("recorded") == "generically"]
    for name in sorted({str(fact.get("connector")) for fact in facts}):
        yield f"  connector {name}: no adapter, so only lookups, calls and references are recorded, but no transfers"


def _devices(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    for process in processes:
        device = process.device
        if why := device.get("fallback"):
            yield f"  GPU: {why}"
        if untried := device.get("untried"):
            yield f"  GPU: {untried}"
        match device.get("state"):
            case "recording" if device.get("level") == "tile":
                yield f"  GPU: {device.get('name')}, {_tiles(process)} of {len(process.layers)} layers"
                if unseen := device.get("unseen"):
                    yield f"  GPU: {unseen}"
            case "recording":
                yield f"  GPU: {device.get('name')}, KV windows of {_layers(process)} ({device.get('backend')})"
            case "overrun":
                yield f"  GPU: the KV windows of {device.get('dropped_steps')} steps came too fast to be copied"
            case "absent" | "stopped" as state:
                yield f"  GPU: recording {state}: {device.get('detail')}"


def _layers(process: ProcessRecording) -> str:
    """Return the layers that have windows, and how those are observed; all of them where the recording does not say."""
    when = Counter(layer.get("timed") or "always" for layer in process.layers)
    in_kernel = {layer.get("in_kernel") for layer in process.layers} - {None}
    layers = f"{when['always']} of {len(process.layers)} layers" if when["never"] else f"{len(process.layers)} layers"
    in_graphs = f", with CUDA graphs of {when['always']}" if when["outside_graphs"] else ""
    if in_kernel == {"attention"}:
        return f"{layers}: attention observed in its kernels, writes by stamps around them{in_graphs}"
    return f"{layers}, observed in the kernels" if in_kernel else f"{layers}{in_graphs}, by stamps around the kernels"


def _tiles(process: ProcessRecording) -> str:
    """Return a process's own count of its tiles, which it gives in pauses and at its end."""
    tiles = process.tiles
    if not tiles:
        return "tiles"
    text = f"{tiles.get('tiles', 0):,} tiles in {tiles.get('steps', 0):,} steps, {tiles.get('bytes', 0) / 1e6:,.0f} MB"
    if lost := tiles.get("lost_steps"):
        text += f" ({lost:,} more steps did not fit in the ring and were dropped)"
    if unwritten := tiles.get("unwritten_steps"):
        text += f" ({unwritten:,} more steps could not be written)"
    return text


def _nvtx(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    states = [process.nvtx for process in processes if process.nvtx]
    heard = sum(1 for state in states if state.get("state") == "on")
    if heard:
        yield f"  NVTX: ranges in domain kvtrace from {_in_words(heard)}"
    elif states:
        yield f"  NVTX: no ranges: {states[0].get('detail') or 'no profiler listens'}"


def _profile(report: Report | None) -> Iterator[str]:
    if report is not None and report.sqlite is not None:
        yield f"  Nsight Systems: {report.sqlite} ({size(report.sqlite.stat().st_size)})"


def _disabled_hooks(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    for (hook, state, detail), pids in sorted(_hook_states(processes).items()):
        if state == "disabled":
            where = _in_words(len(pids))
            yield f"the hook {hook} failed in {where} ({', '.join(map(str, pids))}) and was switched off: {detail}"


def _hook_states(processes: Iterable[ProcessRecording]) -> dict[tuple[str, str, str], list[int]]:
    states: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for process in processes:
        for hook, (state, detail) in process.hooks.items():
            states[hook, state, detail if state != "installed" else ""].append(process.pid)
    return states


def _losses(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    for process in processes:
        dropped: Counter[str] = Counter({event: count for event, count in process.dropped().items() if count})
        lost = f"{_by_stream(dropped)} records were dropped" if dropped else "nothing was dropped"
        where = f"in process {process.pid} ({_roles(process)})"
        if process.stopped:
            yield f"recording stopped early {where}: {process.stopped}; {lost}"
        elif dropped:
            yield f"{lost} {where}"


def _leftovers(processes: Iterable[ProcessRecording]) -> Iterator[str]:
    for process in still_running(processes, _PATIENCE_S):
        yield (
            f"process {process.pid} ({_roles(process)}) outlived the command and may still be recording; "
            "ingest when it has ended"
        )


def _why_nothing(ending: Ending) -> Iterator[str]:
    yield f"no vLLM process recorded anything; the command {_how_it_ended(ending.exit_code)}. Possible reasons:"
    if ending.exit_code:
        yield "  - the command failed before vLLM started: see its messages above"
    yield "  - the command did not start vLLM, or no request reached the engine"
    if not ending.asked:
        yield "  - vLLM runs on a Python without kvtrace: install kvtrace with the pip of that environment"
    yield "  - vLLM starts in a container, over ssh or sudo: forward KVTRACE_RUN_DIR and share the run directory"
    yield "  - the command sets VLLM_PLUGINS itself: add kvtrace to it"


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "ended after nsys, so its exit code is not known"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _in_words(processes: int) -> str:
    return f"{processes} process{'' if processes == 1 else 'es'}"


def _disk_bytes(run_dir: Path) -> int:
    """Bytes allocated on disk; segments are allocated ahead of their records."""
    return sum(path.lstat().st_blocks * 512 for path in run_dir.rglob("*"))
