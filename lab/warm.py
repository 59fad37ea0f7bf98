"""Fresh processes without their imports: a process that has vLLM loaded, and no engine, forks one for each program.

    python -m kvtrace.lab.warm serve SOCKET                   # waits
    python -m kvtrace.lab.warm run SOCKET PROGRAM ARGUMENTS   # runs there, with this process's environment and streams
    python -m kvtrace.lab.warm run SOCKET -m MODULE ARGUMENTS

The forked process is what `python PROGRAM ARGUMENTS` would be after its imports: it has loaded no plugin of vLLM's and
made no engine. On a GPU vLLM decides for itself, as ever. On a CPU it starts its own processes by fork, too, which is
safe as long as nothing has run a thread before. And these wait for each other in naps, not in loops of `sched_yield`:
on two cores, with Linux 6.18, such loops kept others from running for up to seconds.

An engine's start collects garbage a few times, each time among all that the imports made, and in the end Python takes
all of that apart. What a fork finds is left out of both: they took half of a small cell's time on a CPU.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kvtrace.errors import KvtraceError
from kvtrace.lab.lifetime import dies_with_us

_LOOK_S = 0.05
_PATIENCE_S = 10.0
_NAP_S = 20e-6
_MODULES = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.model_loader",
    "vllm.v1.core.sched.async_scheduler",
    "kvtrace.lab.client",
    "kvtrace.lab.engines",
    "kvtrace.lab.workloads",
)
_CPU_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn", "compressed_tensors")
"""Modules that an engine on a CPU imports as it starts."""


class _Program:
    """A program that was forked, and the connection of who asked for it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self.connection = pid, connection
        self._gone_s: float | None = None

    def has_ended(self) -> bool:
        """Tell who asked if it has; end it if who asked has gone away."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if done:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(OSError):
                self.connection.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            self.connection.close()
        elif self._gone_s is None and select.select([self.connection], [], [], 0)[0]:  # it says nothing more: it closed
            self._gone_s = time.monotonic()
            _signal(self.pid, signal.SIGTERM)
        elif self._gone_s is not None and time.monotonic() - self._gone_s > _PATIENCE_S:
            self.end()
        return bool(done)

    def end(self) -> None:
        """End it, and what its engine would leave behind."""
        _signal(self.pid, signal.SIGKILL)


def serve(path: Path) -> None:
    """Import, then run what is asked for; what it runs ends with it."""
    _preload()
    # It is looked for, not handled: what a handler raises is ignored where Python calls back, as after a fork.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    programs: list[_Program] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        try:
            while True:
                if _comes(listener):
                    _start(listener, programs)
                programs[:] = [program for program in programs if not program.has_ended()]
        finally:
            for program in programs:
                program.end()


def _comes(source: socket.socket) -> bool:
    if signal.SIGTERM in signal.sigpending():
        sys.exit(128 + signal.SIGTERM)
    return bool(select.select([source], [], [], _LOOK_S)[0])


def _preload() -> None:
    from importlib import import_module

    modules: tuple[str, ...] = _MODULES
    if import_module("vllm.platforms").current_platform.is_cpu():
        # There vLLM asks for spawn, which would import everything again: the modules below take this function by name.
        utilities: Any = import_module("vllm.utils.system_utils")
        utilities.get_mp_context = partial(multiprocessing.get_context, "fork")
        queues: Any = import_module("vllm.distributed.device_communicators.shm_broadcast")
        queues.sched_yield = partial(time.sleep, _NAP_S)
        modules += _CPU_MODULES
    for name in modules:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries that look for what is left in the end would tell of all of it


def _start(listener: socket.socket, programs: list[_Program]) -> None:
    connection, _ = listener.accept()
    while not _comes(connection):
        pass
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while data and not data.endswith(b"\n"):
        data += connection.recv(1 << 16)
    if not data:  # it went away before it asked
        connection.close()
        return
    asked: dict[str, Any] = json.loads(data)
    die_with_server = dies_with_us()
    with warnings.catch_warnings():  # Python 3.12 warns of threads; on a GPU there are some by now, and engines start
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        die_with_server()
        for each in (connection, listener, *(program.connection for program in programs)):
            each.close()
        programs.clear()  # they are not its own to end
        code = None
        try:
            _become(asked, descriptors)
        except SystemExit as ended:
            if not isinstance(ended.code, int | None):
                raise
            code = ended.code
        _end(code or 0)
    for descriptor in descriptors:
        os.close(descriptor)
    programs.append(_Program(pid, connection))


def _become(asked: dict[str, Any], descriptors: array.array[int] | list[int]) -> None:
    """Run a program in the forked process, with the caller's streams, environment and directory."""
    os.setsid()
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    program, *arguments = asked["arguments"]
    if program == "-m":
        sys.argv, sys.path[:0] = arguments, ["", *paths]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [program, *arguments], [str(Path(program).parent), *paths]
        runpy.run_path(program, run_name="__main__")


def _end(code: int) -> NoReturn:
    """End this process as Python does, but for taking apart all that was imported, which takes over a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    # Its own handlers run, as those of a profiler. Threads of Python's do not: they wait for its lock.
    ctypes.PyDLL(None).exit(code)
    raise AssertionError


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a program that was not waited for, with its group, which it does not lead before it first runs."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)


def run(path: Path, arguments: list[str]) -> int:
    """Have a program run by the process behind a socket; returns its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        asked = {"environment": dict(os.environ), "directory": str(Path.cwd()), "arguments": arguments}
        text = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(connection, [text], [0, 1, 2])
        connection.sendall(text[sent:])
        answer = connection.recv(64)
    return int(json.loads(answer)) if answer else 1


@contextmanager
def started(keep: Sequence[int] = (), environment: dict[str, str] | None = None) -> Iterator[list[str]]:
    """Start the process and end it afterwards; yields the command that takes the place of an interpreter's.

    Args:
        keep: Descriptors that its programs inherit.
        environment: Of the imports; the programs have their callers'.
    """
    with tempfile.TemporaryDirectory(prefix="kvtrace-lab-") as folder:
        path = Path(folder) / "socket"
        own = [sys.executable, "-m", "kvtrace.lab.warm"]
        command = [*own, "serve", str(path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=keep,
            env=environment,
            preexec_fn=dies_with_us(),  # noqa: PLW1509 - it only makes system calls
        )
        try:
            while not path.exists():
                if process.poll() is not None:
                    raise KvtraceError(f"the process that is to import vLLM ended with {process.returncode}")
                time.sleep(0.05)
            yield [*own, "run", str(path)]
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    """Run the server or hand it a program, by the first argument."""
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
        return 0
    return run(Path(sys.argv[2]), sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
