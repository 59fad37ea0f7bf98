"""Runs a command as if kvtrace were not there: its streams, signals, job control and end are its own."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kvtrace.errors import KvtraceError
from kvtrace.launch.group_signals import Witness

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
_BLOCKED = FORWARDED | {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
_JOB_CONTROL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_LOOK_S = 0.5  # how often to look for the end of a process that is not a child
_FROM_KERNEL = 0x80  # si_code of a signal that the terminal sent


@dataclass(frozen=True)
class Between:
    """A program that runs the command for us, such as a profiler.

    It gets a session of its own, so that the terminal's signals reach the command by way of this process alone, and
    `log` for what it says. The command's streams are its descriptors 7, 8 and 9. `command_pid` tells who the command
    is, None before it has started.
    """

    log: Path
    command_pid: Callable[[], int | None]


class Child:
    """The running command. It is in this process's group and session, and has its standard streams.

    With `between`, `pid` and what `wait` returns are those of the program that runs it; `was_left` says that it ended
    first, so that the command's own exit code is not known.

    From here on this process blocks the signals it forwards; `wait` takes them.
    """

    def __init__(
        self, program: Path, command: Sequence[str], environment: Mapping[str, str], between: Between | None = None
    ) -> None:
        self._between = between
        self.was_left = False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            self.pid = _spawn(program, command, environment, self._mask, between)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise KvtraceError(
                f"Cannot start {command[0]} ({program}): {error.strerror}.", 127 if error.errno == errno.ENOENT else 126
            ) from error
        self._witness = Witness()

    def wait(
        self,
        on_tick: Callable[[], None],
        on_pause: Callable[[], None],
        tick_s: float | None,
        on_user_signal: Callable[[], None] | None = None,
    ) -> int:
        """Wait for the command's end, passing on the signals that are meant for it.

        Args:
            on_tick: Called every `tick_s` seconds.
            on_pause: Called before this process stops because the command was stopped from the terminal.
            tick_s: None for no ticks.
            on_user_signal: Called at SIGUSR2 instead of passing it on.

        Returns:
            The exit code; negative, the signal that killed it.
        """
        try:
            while (code := self._reap(on_pause)) is None:
                self._attend(on_tick, tick_s, on_user_signal)
            while self._between is not None and self._between.command_pid() is not None:
                self.was_left = True
                self._attend(on_tick, tick_s or _LOOK_S, on_user_signal)
            return code
        finally:
            self._witness.close()

    def _attend(
        self, on_tick: Callable[[], None], tick_s: float | None, on_user_signal: Callable[[], None] | None
    ) -> None:
        info = signal.sigtimedwait(_BLOCKED, tick_s) if tick_s else signal.sigwaitinfo(_BLOCKED)
        if info is None:
            on_tick()
        elif info.si_signo == signal.SIGUSR2 and on_user_signal is not None:
            on_user_signal()
        elif info.si_signo in FORWARDED:
            self._pass_on(info)

    def _pass_on(self, info: signal.struct_siginfo) -> None:
        by_group = self._witness.saw(info.si_signo)
        if by_group:
            signal.sigtimedwait({info.si_signo}, 0)  # `timeout` signals its child, then the group: both may be here
        if self._between is not None:
            self._tell_command(info.si_signo, self._between)
        elif not by_group and info.si_code != _FROM_KERNEL and info.si_pid != self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, info.si_signo)

    def _tell_command(self, number: int, between: Between) -> None:
        """Signal the command itself; where it has not started yet, or has gone, the program that runs it."""
        for pid in (between.command_pid(), None if self.was_left else self.pid):
            with suppress(ProcessLookupError, PermissionError):
                if pid is not None:
                    os.kill(pid, number)
                    return

    def _reap(self, on_pause: Callable[[], None]) -> int | None:
        """Look at what the command did; its exit code if it ended."""
        while True:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG)
            if result is None:
                return None
            if result.si_code == os.CLD_EXITED:
                return result.si_status
            if result.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                return -result.si_status
            if result.si_status in _JOB_CONTROL_STOPS:
                on_pause()
                _stop_as_well()


def _spawn(
    program: Path, command: Sequence[str], environment: Mapping[str, str], mask: set[int], between: Between | None
) -> int:
    apart: dict[str, Any] = {} if between is None else {"setsid": True, "file_actions": _streams(between.log)}

    def spawn(path: str, arguments: list[str]) -> int:
        return os.posix_spawn(path, arguments, environment, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON, **apart)

    try:
        return spawn(str(program), list(command))
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return spawn("/bin/sh", ["/bin/sh", str(program), *command[1:]])  # a script without `#!`, as every shell does


def _streams(log: Path) -> list[tuple[Any, ...]]:
    """Nothing to read, `log` to write to, and this process's own streams as 7, 8 and 9."""
    null, append = (os.devnull, os.O_RDONLY, 0), (str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    return [
        *((os.POSIX_SPAWN_DUP2, stream, 7 + stream) for stream in range(3) if _is_open(stream)),
        (os.POSIX_SPAWN_OPEN, 0, *null),
        (os.POSIX_SPAWN_OPEN, 1, *append),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _stop_as_well() -> None:
    """Stop as the terminal's Ctrl-Z would have, so that the shell sees its job stopped. SIGCONT comes back here."""
    default = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
    signal.signal(signal.SIGTSTP, default)


def die_by(number: int) -> NoReturn:
    """End this process by a signal, as the command did, without a core file of our own."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        least = 0 if hard == 0 else 1  # of 1 byte: with 0 the kernel would still feed a core collector's pipe
        resource.setrlimit(resource.RLIMIT_CORE, (least, hard))
    with suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(128 + number)  # process 1 of a container does not die by signals
