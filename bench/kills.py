"""Random `kill -9` of recording engines, over the variants of engine there are: is what was written there?

    python -m bench.kills [KILLS [WRITERS [COPIES]]]     # 1,000, 1,000 and 4; needs vLLM unless KILLS is 0

One process has imported vLLM and forks engines. Each is killed at a random moment: while it starts, or while it
generates, from without; of engines with several processes one at random or all at once. An engine in one process also
forks COPIES of itself while it is alive, which record on their own and are killed likewise: these are counted apart.
So are WRITERS: processes without an engine that do nothing but write records of all events to the capture log.

Recorders count what they write (KVTRACE_COUNT_WRITES), the compiled part too; after a kill each stream of each process
is compared with that. One record may be in the log whose count the process did not live to raise. Every 25th run is
ingested as well.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvtrace.capture.recorder import Recorder
from kvtrace.events import EVENTS
from kvtrace.format import layout
from kvtrace.format.reader import ProcessRecording, open_recording
from kvtrace.format.segment_file import clock_pair
from tests.vllm.faults.variants import UNLIKE_COPIES, Variant, build, variants

STARTING = 0.25
"""The share of engines that are killed while they start."""
RARE = {"processes": 3, "tp2": 10}
"""Slow ones take part in every so manieth round only."""
START_S, RUN_S, WRITE_S = 3.5, 0.8, 0.15
INGEST_EVERY = 25


def main(kills: int = 1000, writers: int = 1000, copies: int = 4) -> None:
    os.environ.update(
        KVTRACE_COUNT_WRITES="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_PLUGINS="kvtrace", VLLM_LOGGING_LEVEL="ERROR"
    )
    if kills:
        import vllm.entrypoints.llm  # noqa: F401 - once, before the forks

    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kills") as folder:
        if writers:
            Campaign(Path(folder), chance, writers, copies).run_writers()
        if kills:
            Campaign(Path(folder), chance, kills, copies).run()


class Campaign:
    """Kills, counted by how they were made."""

    def __init__(self, folder: Path, chance: random.Random, kills: int, copies: int) -> None:
        self.folder, self.chance, self.kills, self.copies = folder, chance, kills, copies
        self.done: Counter[tuple[str, str]] = Counter()
        self.records = self.torn = self.processes = self.ingested = 0
        self.started = time.monotonic()

    def run(self) -> None:
        names = [name for name in variants(self.folder) if name != "example"]  # its files do not survive preemptions
        for number in itertools.count():
            if self.done.total() >= self.kills:
                break
            turn, name = number // len(names), names[number % len(names)]
            if (turn + 1) % RARE.get(name, 1):
                continue
            run = self.folder / f"run{number}"
            run.mkdir()
            self._engine(name, variants(run)[name], run)
            self._check(run)
            if number % INGEST_EVERY == 0:
                self._ingest(run)
            shutil.rmtree(run)
            if number % 5 == 0:
                self._tell()
        self._tell()

    def run_writers(self) -> None:
        """Kill processes that write without an engine."""
        for number in range(self.kills):
            run = self.folder / f"writer{number}"
            run.mkdir()
            child = os.fork()
            if child == 0:
                try:
                    _write(run, random.Random(number))
                finally:
                    os._exit(1)
            time.sleep(self.chance.uniform(0, WRITE_S))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert status == signal.SIGKILL, "the writer failed"
            self.done["no engine", "while it writes"] += 1
            self._check(run)
            shutil.rmtree(run)
        self._tell()

    def _tell(self) -> None:
        how = ", ".join(f"{count} {name} {when}" for (name, when), count in sorted(self.done.items()))
        print(
            f"{time.monotonic() - self.started:6.0f} s  {self.done.total()} kills ({how}); {self.processes} recorded "
            f"processes, {self.records:,} records whole, {self.torn} torn, none lost; {self.ingested} runs ingested",
            flush=True,
        )

    def _engine(self, name: str, variant: Variant, run: Path) -> None:
        """Start an engine, kill copies of it, then itself."""
        ours, theirs = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                _victim(variant, run, ours[1], theirs[0])
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(ours[1])
        os.close(theirs[0])
        reader, writer = ours[0], theirs[1]
        try:
            if self.chance.random() < STARTING:
                time.sleep(self.chance.uniform(0, START_S))  # the random moment is the point
                self._kill(child, name, "while it starts", run)
                return
            self._wait(reader, b"up\n", run)
            if name not in UNLIKE_COPIES:
                for _ in range(self.copies):
                    os.write(writer, b"copy\n")
                    pid = int(self._wait(reader, b"\n", run))
                    time.sleep(self.chance.uniform(0, RUN_S))
                    os.kill(pid, signal.SIGKILL)
                    self._wait(reader, b"gone\n", run)
                    self.done[name, "copies"] += 1
            os.write(writer, b"run\n")
            time.sleep(self.chance.uniform(0, RUN_S))
            self._kill(child, name, "while it generates", run)
        finally:
            os.close(reader)
            os.close(writer)

    def _kill(self, child: int, name: str, when: str, run: Path) -> None:
        """Kill all of an engine's processes at once, or a random one of those that record and then the others."""
        pids = [int(path.name.rsplit("-", 2)[1]) for path in (run / layout.PROCESSES).glob("*")]
        how = ""
        if len(pids) > 1 and self.chance.random() < 0.7:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(pids), signal.SIGKILL)
            time.sleep(self.chance.uniform(0, 0.2))
            how = ", one process"
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.done[name, when + how] += 1

    def _wait(self, reader: int, ending: bytes, run: Path) -> bytes:
        text = b""
        while not text.endswith(ending):
            ready = select.select([reader], [], [], 300)[0]
            part = os.read(reader, 1) if ready else b""
            if not part:
                why = "ended" if ready else "has said nothing for 5 minutes"
                raise SystemExit(f"an engine {why} ({run.name}, after {text!r}): {(run / 'log').read_text()[-3000:]}")
            text += part
        return text

    def _check(self, run: Path) -> None:
        if not (run / layout.PROCESSES).exists():
            return  # killed before it had anything to record
        for process in open_recording(run).processes:
            self.processes += 1
            self._check_process(process)

    def _check_process(self, process: ProcessRecording) -> None:
        written, segments = process.written(), process.segments()
        assert not process.missing_segments()
        assert not process.stopped, process.stopped
        assert not any(process.dropped().values())
        for event, count in written.items():
            scans = [segment.scan() for segment in segments.get(event, [])]
            found, torn = sum(scan.records for scan in scans), sum(scan.torn for scan in scans)
            assert count <= found <= count + 1, f"{process.directory}: {event}: {count} written, {found} found"
            assert torn <= 1, f"{process.directory}: {event}: {torn} torn"
            self.records += found
            self.torn += torn

    def _ingest(self, run: Path) -> None:
        if not (run / layout.PROCESSES).exists():
            return
        command = [sys.executable, "-m", "kvtrace", "ingest", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (run / "trace.duckdb").exists():
            raise SystemExit(f"{run} cannot be ingested: {done.stderr}")
        self.ingested += 1


def _victim(variant: Variant, run: Path, writer: int, reader: int) -> None:
    """An engine that says `up`, then forks copies of itself as it is told to, then generates until it is killed."""
    log = os.open(run / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["KVTRACE_RUN_DIR"] = str(run)
    generate = _generator(variant, run)
    generate()
    os.write(writer, b"up\n")
    with os.fdopen(reader) as told:
        while told.readline() == "copy\n":
            copy = os.fork()
            if copy == 0:
                os.write(writer, f"{os.getpid()}\n".encode())
                break
            os.waitpid(copy, 0)
            os.write(writer, b"gone\n")
        while True:
            generate()


def _write(run: Path, chance: random.Random) -> None:
    """Write records of all events in every way there is, until killed."""
    recorder = Recorder(run, largest_segment_bytes=1 << 18, count_writes=True)
    events = list(EVENTS.values())
    values = {event.name: [1] * len(event.fields) for event in events}
    single = {event.name: recorder.stream(event) for event in events}
    many = {event.name: recorder.columns(event) for event in events}
    for number in itertools.count():
        name = chance.choice(events).name
        if number % 100 == 0:
            recorder.intern(f"request{number}")
            recorder.note("clock", **clock_pair())
        rows = chance.choice((1, 1, 1, 7, 40))
        if rows == 1:
            single[name](*values[name])
        else:
            many[name](rows, *values[name])


def _generator(variant: Variant, run: Path) -> Any:
    from kvtrace.probes import plugin

    plugin.load()
    llm = build(variant, run / "helpers")
    from vllm import SamplingParams

    numbers = iter(range(1 << 62))

    def generate() -> None:
        number = next(numbers)
        prompts = [{"prompt_token_ids": [7] * 40 + [(number + i) % 500] * 60} for i in range(8)]
        tags = {"kvtrace_session": f"session{number}", "kvtrace_turn": number, "kvtrace_tool": "fast"}
        parameters = SamplingParams(max_tokens=40, ignore_eos=True, detokenize=False, temperature=0, extra_args=tags)
        llm.generate(prompts, parameters, use_tqdm=False)

    return generate


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
