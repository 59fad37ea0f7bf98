"""Conditions around an engine while it is recorded, each in the middle of the workload or with one of its own."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.capture import stream
from tests.vllm.conftest import ENGINE
from tests.vllm.faults import served, workload

if TYPE_CHECKING:
    from tests.vllm.faults.cells import Engine

CLOCK_STEP_S = 3600
SMALL_SEGMENT_BYTES = 8192
"""So that every stream needs new files all the time."""


def directory_removed(run: Path) -> None:
    """Somebody deletes the run directory."""
    shutil.rmtree(run)


def permissions_lost(run: Path) -> None:
    """The run directory can be neither read nor written any more; not by root, either."""
    _drop_capabilities()
    for folder in sorted((run, *(path for path in run.rglob("*") if path.is_dir())), reverse=True):
        folder.chmod(0)


def disk_full(run: Path) -> None:
    """There is no room for another segment. A real small disk is in test_full_disk.py."""

    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.posix_fallocate = refuse


def clock_stepped(run: Path) -> None:
    """The realtime clock is set to an hour later."""
    read, read_ns = time.time, time.time_ns
    time.time = lambda: read() + CLOCK_STEP_S
    time.time_ns = lambda: read_ns() + CLOCK_STEP_S * 1_000_000_000


def _drop_capabilities() -> None:
    """Have permissions apply to root as well: no CAP_DAC_OVERRIDE, no CAP_DAC_READ_SEARCH."""
    version, override, search = 0x20080522, 1, 2
    header = (ctypes.c_uint32 * 2)(version, 0)
    data = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    data[0] &= ~(1 << override | 1 << search)
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def _in_the_middle(what: Callable[[Path], None]) -> Callable[[Engine], dict[str, Any]]:
    def run(engine: Engine) -> dict[str, Any]:
        stream.FIRST_SEGMENT_BYTES = SMALL_SEGMENT_BYTES
        return {"outcome": workload.run(engine.llm, midway=lambda: what(engine.run_dir))}

    return run


def forked(engine: Engine) -> dict[str, Any]:
    """The engine's process forks, and both go on."""
    child, answers, theirs = -1, *os.pipe()

    def fork() -> None:
        nonlocal child
        child = os.fork()

    outcome = workload.run(engine.llm, midway=fork)
    if child == 0:
        with os.fdopen(theirs, "w") as answer:
            json.dump(outcome, answer)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(answers) as answer:
        of_child = json.load(answer)
    os.waitpid(child, 0)
    return {"outcome": outcome, "more": of_child}


def aborted(engine: Engine, requests: int = 10_000) -> dict[str, Any]:
    """Many requests are aborted: some while they wait, some while they run; then the usual workload."""
    llm = engine.llm.llm_engine
    for first in range(0, requests, 100):
        names = [f"a{number}" for number in range(first, first + 100)]
        for name in names:
            llm.add_request(name, {"prompt_token_ids": [3] * 40}, workload.parameters("a", 0))
        llm.step()
        llm.abort_request(names)
    while llm.has_unfinished_requests():
        llm.step()
    llm.reset_prefix_cache()
    kept, strings = workload.kept(), engine.strings()
    return {"outcome": workload.run(engine.llm), "more": {"kept": kept, "strings": strings, "requests": requests}}


def restarted(engine: Engine) -> dict[str, Any]:
    """The engine is deleted and another is made in the same process."""
    outcome = workload.run(engine.llm)
    core = engine.llm.llm_engine.engine_core.engine_core
    alive = [weakref.ref(core), weakref.ref(core.scheduler), weakref.ref(core.scheduler.kv_cache_manager.block_pool)]
    del core, engine.llm
    for _ in range(2):  # what the first round deletes may be a cycle of its own
        gc.collect()
    left = [type(found).__name__ for one in alive if (found := one()) is not None]
    engine.build()
    return {"outcome": outcome, "more": {"later": workload.run(engine.llm), "left": left}}


def usual(engine: Engine) -> dict[str, Any]:
    """Nothing in particular."""
    return {"outcome": workload.run(engine.llm)}


def served_usually(engine: Engine) -> dict[str, Any]:
    """The same of requests by HTTP."""
    return {"outcome": served.run(ENGINE)}


CONDITIONS: dict[str, Callable[[Engine], dict[str, Any]]] = {
    "directory removed": _in_the_middle(directory_removed),
    "permissions lost": _in_the_middle(permissions_lost),
    "disk full": _in_the_middle(disk_full),
    "clock stepped": _in_the_middle(clock_stepped),
    "forked": forked,
    "aborted": aborted,
    "restarted": restarted,
}
