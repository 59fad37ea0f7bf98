"""One engine, one fault: forked from a process that has imported vLLM and nothing of kvtrace's probes."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.capture import _native
from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tenants import Tenants
from kvtrace.events import EVENTS
from kvtrace.format import layout
from kvtrace.format.reader import open_recording
from kvtrace.launch.summary import Ending, summarize
from tests.vllm.faults import workload
from tests.vllm.faults.conditions import CONDITIONS, served_usually, usual
from tests.vllm.faults.raises import Place, Raises
from tests.vllm.faults.reads import Reads
from tests.vllm.faults.variants import SERVED, build, variants
from tests.vllm.faults.variants import prepare as prepare_variant
from tests.vllm.forks import forked, output_to

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


_DRAWN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""An id that vLLM draws, as of an engine with a connector."""


class Fault(NamedTuple):
    """Fault in an engine of a variant.

    Attributes:
        kind: `off`, not recorded at all; `none`, recorded and all is well; `missing`, an attribute of vLLM's is gone;
            `raise`, a hook raises at its `call`-th call, after its work if it `works`; `raise all`, every hook does;
            or one of `conditions`.
    """

    variant: str
    kind: str
    missing: str = ""
    place: Place | None = None
    call: int = 1
    works: bool = False

    def __str__(self) -> str:
        if self.place is None:
            return f"{self.variant}: {self.kind} {self.missing}".rstrip()
        when = f"call {self.call}{', after its work' if self.works else ''}"
        return f"{self.variant}: {self.place.part} of {self.place.target} ({self.place.lost}) raises, {when}"


class Result(NamedTuple):
    """Report of a cell's process: the workload's outcome, what was kept, calls of hooks, attributes read.

    `more` is what a condition has to say.
    """

    outcome: dict[str, Any]
    kept: dict[str, int]
    calls: list[tuple[Place, int]]
    seen: list[str]
    more: Any = None


def prepare() -> None:
    """Import vLLM, once; to be called first, in a process that runs no threads."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    import vllm.entrypoints.llm  # noqa: F401


def run(fault: Fault, folder: Path) -> Result:
    """Run the workload in a fresh engine that has the fault; it records in `folder`/run."""
    (folder / "run").mkdir(parents=True)
    return _result(forked(lambda: Engine(fault, folder).run(), folder / "log"))


def _result(raw: dict[str, Any]) -> Result:
    calls = [(Place(*place), count) for place, count in raw["calls"]]
    return Result(raw["outcome"], raw["kept"], calls, raw["seen"], raw.get("more"))


class Engine:
    """An engine in this process, recorded unless the fault is `off`."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self.variant, self.folder, self.kind = fault.variant, folder, fault.kind
        self.run_dir = folder / "run"
        self.reads: Reads | None = None
        self.raises: Raises | None = None
        if fault.kind != "off":
            os.environ.update({layout.RUN_DIR_VARIABLE: str(self.run_dir), **Tenants("names").to_environment()})
            self.reads, self.raises = Reads(), Raises()
            _native.watch_reads(self.reads.watch)
            self.break_(fault)
            from kvtrace.probes import plugin

            plugin.load()
            [self.recorder] = [thing for thing in gc.get_objects() if type(thing) is Recorder]
        self.build()

    def build(self) -> None:
        """Make the engine."""
        helpers = self.folder / "helpers"
        variant = variants(helpers)[self.variant]
        if self.variant == SERVED:
            prepare_variant(variant, helpers)
        else:
            self.llm = build(variant, helpers)

    def break_(self, fault: Fault) -> None:
        """Have the fault from now on."""
        self.kind = fault.kind
        assert self.reads is not None
        assert self.raises is not None
        self.reads.missing = fault.missing or None
        if fault.kind == "raise all":
            self.raises.arm_all()
        if fault.place is not None:
            self.raises.arm(fault.place, fault.call, works=fault.works)

    def record_to(self, run_dir: Path) -> None:
        """Record elsewhere, in a process that has just been forked."""
        self.run_dir = self.recorder.run_dir = self.recorder.directory = run_dir

    def strings(self) -> int:
        """Return how many strings the recorder remembers."""
        return len(self.recorder._strings)

    def run(self) -> dict[str, Any]:
        """Run the workload: the parts of a `Result`."""
        condition = served_usually if self.variant == SERVED else CONDITIONS.get(self.kind, usual)
        return {**condition(self), "kept": workload.kept(), **self.known()}

    def known(self) -> dict[str, Any]:
        """Return the parts of hooks that were called so far, how often, and which attributes were read."""
        calls = list(self.raises.calls.items()) if self.raises is not None else []
        return {"calls": calls, "seen": list(self.reads.seen) if self.reads is not None else []}


class Copies:
    """A recorded engine, built and idle, of which copies are forked that get a fault each: cheaper than fresh engines.

    Attributes:
        calls: How often each part of each hook was called while it was built.
        seen: The attributes read meanwhile.
    """

    def __init__(self, variant: str, folder: Path) -> None:
        (folder / "run").mkdir(parents=True)
        self.log = folder / "log"
        orders, self._orders = os.pipe()
        answers, theirs = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._orders)
            try:
                _serve(variant, folder, orders, theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(orders)
        os.close(theirs)
        self._answers = os.fdopen(answers)
        known = self._answer()
        self.calls = {Place(*place): count for place, count in known["calls"]}
        self.seen = set(known["seen"])

    def run(self, fault: Fault, folder: Path) -> Result:
        """As `run` of this module. The fault comes when the engine is there."""
        (folder / "run").mkdir(parents=True)
        os.write(self._orders, json.dumps([fault, str(folder)]).encode() + b"\n")
        return _result(self._answer())

    def close(self) -> None:
        """End the engine."""
        os.close(self._orders)
        os.waitpid(self._child, 0)
        self._answers.close()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line or "error" in (answer := json.loads(line)):
            raise RuntimeError(answer["error"] if line else f"the engine ended: {self.log.read_text()[-3000:]}")
        result: dict[str, Any] = answer
        return result


def _serve(variant: str, folder: Path, orders: int, answers: int) -> None:
    output_to(folder / "log")
    engine = Engine(Fault(variant, "none"), folder)
    with os.fdopen(answers, "w", buffering=1) as told_to, os.fdopen(orders) as told_by:
        print(json.dumps(engine.known()), file=told_to)
        for line in told_by:
            (name, kind, missing, place, call, works), where = json.loads(line)
            fault = Fault(name, kind, missing, Place(*place) if place else None, call, works)

            def work(fault: Fault = fault, where: Path = Path(where)) -> Any:
                engine.record_to(where / "run")
                engine.break_(fault)
                return engine.run()

            try:
                answer = forked(work, Path(where) / "log")
            except RuntimeError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=told_to)
    os._exit(0)


def told(folder: Path) -> list[str]:
    """The lines of the summary that `kvtrace record` would end with."""
    return summarize(Ending(folder / "run", 0, 1, asked=True), quiet=False)


def ingest(folder: Path) -> list[str]:
    """Ingest the recording; the warnings."""

    def work() -> list[str]:
        from kvtrace.ingest.run import ingest

        return ingest(folder / "run").warnings

    warnings: list[str] = forked(work, folder / "log")
    return warnings


def ask(folder: Path, sql: str) -> list[list[Any]]:
    """Rows of the ingested trace."""

    def work() -> list[tuple[Any, ...]]:
        import duckdb

        with duckdb.connect(str(folder / "run" / "trace.duckdb"), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    rows: list[list[Any]] = forked(work, folder / "log")
    return rows


def contents(folder: Path) -> dict[str, Any]:
    """Return how often each record comes, by event, and the journals' facts.

    Times, pids, the folder's name and ids that vLLM draws are left out.
    """
    found: dict[str, Any] = {}
    if not (folder / "run" / layout.PROCESSES).exists():
        return found
    recording = open_recording(folder / "run")
    for process in recording.processes:
        for event, segments in process.segments().items():
            drop = {
                f.name for f in EVENTS[event].fields if f.type.name in ("time", "process") or f.name.endswith("_ns")
            }
            rows, start = found.setdefault(event, Counter()), layout.SEGMENT_HEADER_BYTES
            for segment in segments:
                kept = [index for index, field in enumerate(segment.fields) if field.name not in drop]
                data = segment.path.read_bytes()[start : start + segment.slots * segment.record_bytes]
                for row in EVENTS[event].struct.iter_unpack(data):
                    if row[-1] == 1:
                        rows[tuple(row[index] for index in kept)] += 1
        facts = {name: value for name, value in process.engine.items() if name != "pid"}
        told = json.dumps(facts).replace(str(folder), "")  # helpers' files are in it
        found["engine"] = json.loads(_DRAWN.sub("", told))
        found["connectors"] = process.connectors
        found["roles"] = sorted(process.roles)
    return found
