"""The capture log's reading side: what a run directory holds, while it is recorded and afterwards.

    recording = open_recording(Path("run"))
    for process in recording.processes:
        for event, segments in process.segments().items():
            ...

Only the standard library is needed; `kvtrace record` uses this for its status line and summary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtrace.errors import DamageError, KvtraceError, Tell, name_below, refuse
from kvtrace.format import layout
from kvtrace.format.discarded import Discarded, Discards, read_discards
from kvtrace.format.jsonlines import parse_json, read_json_lines
from kvtrace.format.segment import Clock, Segment, check_format_version, clock_of, read_segment

__all__ = ["Clock", "ProcessRecording", "Recording", "Segment", "open_recording"]

_SEGMENT_NAME = re.compile(r"(?P<event>\w+)\.(?P<sequence>\d{5,})\.seg")
_STRINGS_NAME = re.compile(r"strings(?:\.(?P<sequence>\d{5,}))?\.jsonl")
_TILES_NAME = re.compile(r"tiles\.(?P<sequence>\d{5,})\.kvt")
_MOST_STRINGS = 1 << 31
_LARGEST_PID = (1 << 31) - 1
_LARGEST_COUNT = (1 << 63) - 1


@dataclass
class ProcessRecording:
    """Recording of one process. Journal facts are read on opening; segments, strings and counters when asked for.

    `warnings` is the recording's list: what is read later adds to it. `recording` counts a trace's run directories.
    `tell` is told what is left out as damaged; without it, damage is an error.
    """

    directory: Path
    facts: dict[str, Any]
    roles: list[str] = field(default_factory=list)
    vllm_version: str | None = None
    hooks: dict[str, tuple[str, str]] = field(default_factory=dict)
    fired: set[str] = field(default_factory=set)
    engine: dict[str, Any] = field(default_factory=dict)
    rank: dict[str, Any] = field(default_factory=dict)
    clocks: list[Clock] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)
    tiles: dict[str, Any] = field(default_factory=dict)
    nvtx: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)
    connectors: list[dict[str, Any]] = field(default_factory=list)
    gpu_clocks: list[dict[str, Any]] = field(default_factory=list)
    gpu_memory: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    discards: Discards = field(default_factory=Discards)
    warnings: list[str] = field(default_factory=list)
    recording: int = 1
    tell: Tell | None = None
    _read: dict[str, Segment] = field(default_factory=dict, repr=False)

    @property
    def pid(self) -> int:
        """Process id on its host."""
        return int(self.facts["pid"])

    @property
    def gpu(self) -> str | None:
        """The name of a worker's GPU. Earlier recordings have it at levels `layer` and `tile` only."""
        name = self.rank.get("gpu") or self.device.get("name")
        return str(name) if name else None

    def segments(self) -> dict[str, list[Segment]]:
        """The segments there are now, in order, by event; headers are read once. A compacted one comes first.

        Raises:
            KvtraceError: A segment is damaged, truncated, foreign or of a newer kvtrace.
        """
        found: dict[str, list[Segment]] = {}
        cached, self._read = self._read, {}
        for event, on_disk in segment_names(self.directory).items():
            first = self.discarded(event).first
            sequences = [sequence for sequence in on_disk if sequence >= first - 1]
            for sequence in sequences:
                name, followed, carried = (
                    layout.segment_name(event, sequence),
                    sequence < sequences[-1],
                    sequence < first,
                )
                segment = (None if carried else cached.get(name)) or self._segment(name)
                if segment is not None:
                    self._read[name] = segment
                    found.setdefault(event, []).append(dataclasses.replace(segment, followed=followed, carried=carried))
                elif followed and self.tell is None:
                    raise DamageError(f"{self.directory / name} is damaged: it is empty, but later segments exist")
        return found

    def _segment(self, name: str) -> Segment | None:
        path = self.directory / name
        try:
            found = read_segment(path, self.tell)
        except KvtraceError as error:
            if self.tell is None:
                raise
            self.tell(str(error))
            return None
        if found is None and self.tell and path.stat().st_size == 0:
            self.tell(f"{path} is empty")
        return found

    def missing_segments(self) -> list[str]:
        """Names of segment files that must have existed, for later ones do."""
        return [
            layout.segment_name(event, sequence)
            for event, sequences in segment_names(self.directory).items()
            for sequence in sorted(set(range(self.discarded(event).first, sequences[-1])) - set(sequences))
        ]

    def discarded(self, stream: str) -> Discarded:
        """Return the discarded part of a stream."""
        return self.discards.streams.get(stream, Discarded())

    def dropped(self) -> dict[str, int]:
        """Records lost because recording had stopped, by event; events without losses included."""
        return {name: dropped for name, (dropped, _) in self._counters().items()}

    def written(self) -> dict[str, int]:
        """Records written, by event: all 0 unless KVTRACE_COUNT_WRITES was set."""
        return {name: written for name, (_, written) in self._counters().items()}

    def strings(self) -> dict[int, str]:
        """The interned strings by id, from 1; there are gaps where a flight recorder discarded old ones.

        Raises:
            KvtraceError: A file is damaged.
        """
        return read_strings(self.directory, self.discards.first_strings, self.warnings, self.tell)

    def _counters(self) -> dict[str, tuple[int, int]]:
        streams = self.facts["streams"]
        data = _read_counters(self.directory / layout.COUNTERS, self.tell)
        if data is None:
            return dict.fromkeys(streams, (0, 0))
        return dict(zip(streams, _counts(data), strict=False))


@dataclass
class Recording:
    """A run directory. `processes` are in order of start; `warnings` say what could not be relied on."""

    run_dir: Path
    manifest: dict[str, Any]
    processes: list[ProcessRecording]
    warnings: list[str]
    tell: Tell | None = None


def open_recording(run_dir: Path, *, skip_damaged: bool = False) -> Recording:
    """Read what a run directory says about its processes. A recording that is still going on may be opened too.

    Args:
        run_dir: The run directory.
        skip_damaged: Leave out what is damaged, now and in what is read later, and say so in the warnings.

    Raises:
        KvtraceError: `run_dir` is missing or no run directory, or a file in it is damaged or of a newer kvtrace.
    """
    warnings: list[str] = []
    tell = _teller(warnings) if skip_damaged else None
    processes_dir = run_dir / layout.PROCESSES
    if not run_dir.exists():
        raise KvtraceError(f"{run_dir} does not exist; name the directory given to `kvtrace record -o`")
    if not run_dir.is_dir():
        raise KvtraceError(f"{run_dir} is a file; expected a run directory made by `kvtrace record -o`")
    if not (run_dir / layout.MANIFEST).exists() and not processes_dir.is_dir():
        raise KvtraceError(
            f"{run_dir} is not a run directory: it has neither {layout.MANIFEST} nor {layout.PROCESSES}/"
            f"{name_below(run_dir, layout.MANIFEST)}"
        )
    manifest = _read_manifest(run_dir / layout.MANIFEST, warnings, tell)
    directories = sorted(path for path in processes_dir.iterdir() if path.is_dir()) if processes_dir.is_dir() else []
    processes = [process for path in directories if (process := _open_process(path, warnings, tell))]
    processes.sort(key=lambda process: (process.clocks[0].realtime_ns, process.pid))
    return Recording(run_dir, manifest, processes, warnings, tell)


def _teller(warnings: list[str]) -> Tell:
    def tell(text: str) -> None:
        if (warning := f"left out: {text}") not in warnings:  # files may be read more than once
            warnings.append(warning)

    return tell


def _read_manifest(path: Path, warnings: list[str], tell: Tell | None) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    if not data.strip():
        warnings.append(f"{path} is missing or empty: how the run was launched and how it ended is not known")
        return {}
    try:
        manifest = parse_json(data)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        refuse(f"{path} is damaged: it is not a JSON object: {data[:40]!r}", tell)
        return {}
    try:
        check_format_version(path, manifest.get("format_version"))
    except DamageError as error:
        refuse(str(error), tell)
        return {}
    return manifest


def _open_process(directory: Path, warnings: list[str], tell: Tell | None) -> ProcessRecording | None:
    path = directory / layout.JOURNAL
    lines = list(read_json_lines(path, warnings, tell)) if path.exists() else []
    if not lines and not any(directory.glob("*.seg")):
        warnings.append(f"{directory} holds nothing: its process ended while it began to record")
        return None
    facts = _process_facts_or_what_segments_say(path, lines, tell)
    if facts is None:
        return None
    process = ProcessRecording(directory, facts, warnings=warnings, tell=tell)
    process.clocks += [clock for clock in [clock_of(facts)] if clock]
    try:
        process.discards = read_discards(directory)
    except DamageError as error:
        refuse(str(error), tell)
    for line in lines:
        if not isinstance(line, dict):
            refuse(f"{path} is damaged: {line!r:.60} is not a JSON object", tell)
        elif line is not facts:
            _apply(process, line)
    if (engines := sum(isinstance(line, dict) and line.get("kind") == "engine" for line in lines)) > 1:
        warnings.append(
            f"{directory}: its process made {engines} engines, one after the other or together; their rows are under "
            "one engine_id and their blocks cannot be told apart: run each engine in a process of its own"
        )
    counters = _read_counters(directory / layout.COUNTERS, tell)
    if process.stopped is None and counters is not None and layout.COUNTERS_HEADER.unpack_from(counters)[2]:
        process.stopped = "recording stopped early; the reason could not be written"
    return process


def _process_facts_or_what_segments_say(path: Path, lines: list[Any], tell: Tell | None) -> dict[str, Any] | None:
    """The `process` line; where that is damaged and `tell` is there, a pid and a clock of the first whole segment."""
    try:
        if not lines:
            raise DamageError(f"{path} is missing or damaged: it has no `process` line, so its segments cannot be read")
        return _process_facts(path, lines[0])
    except DamageError as error:
        if tell is None:
            raise
        host = path.parent.name.rsplit("-", 2)[0]
        for segment_path in sorted(path.parent.glob("*.seg")):
            with contextlib.suppress(KvtraceError):
                segment = read_segment(segment_path, tell)
                if segment and segment.clock and 0 < segment.pid <= _LARGEST_PID:
                    tell(f"{error}; pid and clock are those of {segment_path.name}, losses are not known")
                    return {"pid": segment.pid, "host": host, "streams": [], **segment.clock._asdict()}
        tell(f"{path.parent}, all of its process: {error}")
        return None


def _process_facts(path: Path, line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or line.get("kind") != "process":
        raise DamageError(f"{path} is damaged: its first line is {line!r:.60}, expected one of kind `process`")
    check_format_version(path, line.get("format_version"))
    pid, streams = line.get("pid"), line.get("streams")
    if not isinstance(pid, int) or not 0 < pid <= _LARGEST_PID:
        raise DamageError(f"{path} is damaged: its `process` line has pid {pid!r}, expected a process id")
    most = (layout.COUNTERS_BYTES - layout.COUNTERS_HEADER_BYTES) // layout.COUNTERS_ENTRY.size
    if not isinstance(streams, list) or len(streams) > most or not all(isinstance(name, str) for name in streams):
        raise DamageError(
            f"{path} is damaged: its `process` line has streams {streams!r:.60}, expected a list of names"
        )
    if clock_of(line) is None:
        raise DamageError(f"{path} is damaged: its `process` line has no clock reading (realtime_ns, monotonic_ns)")
    return line


def _apply(process: ProcessRecording, line: dict[str, Any]) -> None:
    """Take up one journal line; kinds, keys and values that mean nothing here are passed over."""
    facts = {key: value for key, value in line.items() if key not in ("kind", "monotonic_ns")}
    match line:
        case {"kind": "vllm", "version": str(version)}:
            process.vllm_version = version
        case {"kind": "role", "role": str(role)} if role not in process.roles:
            process.roles.append(role)
        case {"kind": "hook", "hook": str(hook), "state": str(state)}:
            _apply_hook(process.hooks, hook, state, str(line.get("detail") or ""))
        case {"kind": "fired", "hook": str(hook)}:
            process.fired.add(hook)
        case {"kind": "device", "state": "fallback"}:
            reasons = [process.device.get("fallback"), facts.get("detail")]
            process.device["fallback"] = "; ".join(reason for reason in reasons if isinstance(reason, str))
            process.layers.clear()  # they are told anew
        case {"kind": "rank" | "engine" | "device" | "tiles" | "nvtx" as kind}:
            getattr(process, kind).update(facts)
        case {"kind": "layer"}:
            process.layers.append(facts)
        case {"kind": "connector"}:
            process.connectors.append(facts)
        case {"kind": "gpu_clock", "monotonic_ns": int()}:
            process.gpu_clocks.append(line)
        case {"kind": "gpu_memory", "monotonic_ns": int()}:
            process.gpu_memory.append(line)
        case {"kind": "stopped"}:
            process.stopped = str(line.get("reason"))
    if line.get("kind") in ("process", "clock", "stopped") and (clock := clock_of(line)):
        process.clocks.append(clock)


def _apply_hook(hooks: dict[str, tuple[str, str]], hook: str, state: str, detail: str) -> None:
    """Several hooks may share a place, or be put on several objects: what failed of them is kept, and each detail."""
    before, details = hooks.get(hook, ("", ""))
    if before != "disabled":
        hooks[hook] = (state, detail)
    elif state == "disabled" and detail not in details:
        hooks[hook] = (state, f"{details}; {detail}")


def segment_names(directory: Path) -> dict[str, list[int]]:
    """Sequence numbers of the segment files in a process directory, sorted, by the event in their names."""
    names: dict[str, list[int]] = {}
    for path in directory.iterdir():
        if match := _SEGMENT_NAME.fullmatch(path.name):
            names.setdefault(match["event"], []).append(int(match["sequence"]))
    return {event: sorted(sequences) for event, sequences in sorted(names.items())}


def string_files(directory: Path) -> list[tuple[int, Path]]:
    """A process's files of strings with their numbers, in order."""
    return _numbered(directory, _STRINGS_NAME)


def tile_files(directory: Path) -> list[tuple[int, Path]]:
    """A process's files of tiles with their numbers, in order."""
    return _numbered(directory, _TILES_NAME)


def _numbered(directory: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    matches = ((name.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match["sequence"] or 0), path) for match, path in matches if match)


def read_strings(directory: Path, first: int, warnings: list[str], tell: Tell | None = None) -> dict[int, str]:
    """A process's interned strings by number, from file `first` on and those retained from the ones before.

    Raises:
        KvtraceError: A file is damaged, and there is no `tell`, with which such lines are left out.
    """
    texts: dict[int, str] = {}
    for sequence, path in string_files(directory):
        if sequence < first - 1:
            continue
        if tell and not (sequence or first):
            texts |= _strings_in_place(path, warnings, tell)
            continue
        for index, line in enumerate(read_json_lines(path, warnings, tell), 1):
            match line:
                case [int(number), str(text)] if (sequence or first or number == index) and 0 < number < _MOST_STRINGS:
                    texts[number] = text
                case {"monotonic_ns": int()} if sequence and index == 1:
                    pass
                case _:
                    expected = "a number and its text" if sequence or first else f"[{index}, text]"
                    refuse(f"{path} is damaged: line {index} is {line!r:.60}, expected {expected}", tell)
    return texts


def _strings_in_place(path: Path, warnings: list[str], tell: Tell) -> dict[int, str]:
    """The strings of a damaged file whose numbers follow the one before, or precede the one after."""
    lines = list(read_json_lines(path, warnings, tell))
    numbers = [0, *(_string_number(line) for line in lines), 0]
    kept = {}
    for before, number, after, line in zip(numbers, numbers[1:], numbers[2:], lines, strict=False):
        if 0 < number < _MOST_STRINGS and (number == before + 1 or number == after - 1):
            kept[number] = line[1]
    if len(kept) < len(lines):
        tell(f"{path} is damaged: {len(lines) - len(kept)} strings are out of their place")
    return kept


def _string_number(line: Any) -> int:
    match line:
        case [int(number), str()]:
            return number
    return -1


def _read_counters(path: Path, tell: Tell | None) -> bytes | None:
    """The counters file's bytes; None if the process died before it was made, or if they are damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if not data.rstrip(b"\0"):
        return None
    if len(data) < layout.COUNTERS_BYTES or not data.startswith(layout.COUNTERS_MAGIC):
        refuse(f"{path} is damaged or truncated: {len(data)} bytes that start with {data[:8]!r}", tell)
        return None
    try:
        check_format_version(path, layout.COUNTERS_HEADER.unpack_from(data)[1])
    except DamageError as error:
        refuse(str(error), tell)
        return None
    if (most := max(map(max, _counts(data)))) > _LARGEST_COUNT:
        refuse(f"{path} is damaged: it counts {most} records of one event", tell)
        return None
    return data


def _counts(data: bytes) -> Iterator[tuple[int, int]]:
    """Dropped and written records of each event in a counters file's bytes."""
    start, step = layout.COUNTERS_HEADER_BYTES, layout.COUNTERS_ENTRY.size
    return layout.COUNTERS_ENTRY.iter_unpack(data[start : start + (layout.COUNTERS_BYTES - start) // step * step])
