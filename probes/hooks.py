"""Patches of vLLM's functions: installed as modules are imported, guarded, and undone in one place.

A hook's code runs before and after the original; the original always runs exactly once with its own arguments, result
and exceptions. A hook that raises is cut off for good and reported; the engine never sees the exception.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from kvtrace.capture._native import Guard, argument, catch_up, forget_put_off
from kvtrace.probes.imports import ImportFinder, is_missing

__all__ = [
    "After",
    "Args",
    "Argument",
    "Hook",
    "Kwargs",
    "Need",
    "Patches",
    "Report",
    "argument",
    "catch_up",
    "what_failed",
    "wrap",
]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
After = Callable[[Any, Any, Args, Kwargs], Any]
"""Called with what `Hook.before` returned, the original's result and its `(args, kwargs)`; see `Hook.later`."""
Report = Callable[[str, str, str], None]
"""Called with a hook's target, its state (installed, fired, absent, disabled) and a detail."""


os.register_at_fork(after_in_child=forget_put_off)


class Need(NamedTuple):
    """Attributes of vLLM's that a hook reads: `tests/compatibility` looks them up in the sources of each version.

    Attributes:
        owner: `module:Class`, `module:` or `module:function`, whose attributes are its parameters; `a|b` where
            versions give it different names.
        names: The attributes, with spaces between; `a|b` where versions name the same thing differently.
        lost: What a trace lacks where one is missing. Empty: the hook cannot do without it and switches itself off.
    """

    owner: str
    names: str
    lost: str = ""


class Argument(NamedTuple):
    """An argument that a hook takes of what vLLM calls, by position or by name. The position counts `self`."""

    position: int
    name: str
    optional: bool = False


class Hook(NamedTuple):
    """A place in vLLM and what to do there.

    Attributes:
        target: `module:Class.function` or `module:function`.
        lost: What a trace lacks without this hook, for the summary.
        before: Called with the original's `(args, kwargs)`; what it returns goes to `after`.
        after: Called with that state, the original's result and its `(args, kwargs)`.
        arguments: Replaces `(args, kwargs)` before anything else, for one-shot iterators.
        later: Called with what `after` returned, if that is not None, when the next hook of this thread that
            `catches_up` is called: what nobody needs before the workers have their step.
        catches_up: First of all, what was put off is done, in turn. True of what comes when the workers are busy, and
            of all that changes what is yet to be recorded.
        needs: What the functions read, apart from the arguments they take with `argument`.
        takes: The arguments that compiled functions take. Those of Python's functions are found in their sources.
        since: The first vLLM that has what is hooked, where that is later than the oldest one kvtrace knows: an
            earlier one does not lose anything.
        off: Called when it is switched off or cannot be put in place: releases what only it would release, and
            what only it would keep up to date is unknown from now on.

    Arguments are handed over packed: unpacking and packing them again at every hand-over is most of a hook's cost.
    """

    target: str
    lost: str
    before: Callable[[Args, Kwargs], Any] | None = None
    after: After | None = None
    arguments: Callable[[Args, Kwargs], tuple[Args, Kwargs]] | None = None
    later: Callable[[Any], None] | None = None
    catches_up: bool = False
    needs: tuple[Need, ...] = ()
    takes: tuple[Argument, ...] = ()
    since: str = ""
    off: Callable[[], None] | None = None

    @property
    def module(self) -> str:
        """The module the target is in."""
        return self.target.partition(":")[0]

    @property
    def path(self) -> list[str]:
        """The attributes that lead from the module to the function."""
        return self.target.partition(":")[2].split(".")


def what_failed(error: Exception) -> str:
    """An exception and where it came from, in a line. An exception's own text may fail, too."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" (line {place.tb_lineno} of {place.tb_frame.f_code.co_name})" if place else ""
    try:
        text = str(error)
    except Exception:
        text = "(it cannot say what)"
    return f"{type(error).__name__}: {text}{where}"


def _switch_off(hook: Hook, report: Report, state: str, detail: str) -> None:
    """Say that a hook is not there. The engine must not see any of this fail."""
    with suppress(Exception):
        report(hook.target, state, detail)
    if hook.off is not None:
        with suppress(Exception):
            hook.off()


def wrap(original: Callable[..., Any], hook: Hook, report: Report) -> Callable[..., Any]:
    """The function that stands in for `original`: `native/guard.c`."""

    def fire() -> None:
        with suppress(Exception):  # the engine must not see this fail
            report(hook.target, "fired", "")

    def disable(error: Exception) -> None:
        _switch_off(hook, report, "disabled", f"{what_failed(error)}; lost: {hook.lost}")

    guard = Guard(original, hook.before, hook.after, hook.arguments, hook.later, fire, disable, hook.catches_up)
    return functools.wraps(original)(guard)


class Patches:
    """All hooks of this process, installed and undone together."""

    def __init__(self, report: Report) -> None:
        self.hooks: list[Hook] = []
        self._report = report
        self._undo: list[Callable[[], object]] = []
        self._objects: list[tuple[weakref.ref[object], str]] = []  # what they stand for may go away
        self._finder: ImportFinder | None = None

    def install(self, hooks: Iterable[Hook]) -> None:
        """Patch what is imported already, and the rest as soon as it is."""
        waiting: dict[str, list[Hook]] = {}
        self.hooks = list(hooks)
        for hook in self.hooks:
            waiting.setdefault(hook.module, []).append(hook)
        for name in [name for name in waiting if name in sys.modules]:
            self.patch_module(sys.modules[name], waiting.pop(name))
        for name in [name for name in waiting if is_missing(name)]:
            for hook in waiting.pop(name):
                self.absent(hook)
        if waiting:
            self._finder = ImportFinder(waiting, partial(self._imported, waiting))
            sys.meta_path.insert(0, self._finder)

    def _imported(self, waiting: dict[str, list[Hook]], module: ModuleType) -> None:
        self.patch_module(module, waiting[module.__name__])

    def patch_module(self, module: ModuleType, hooks: Iterable[Hook]) -> None:
        """Install hooks whose module is there."""
        for hook in hooks:
            try:
                owner: object = module
                *parents, name = hook.path
                for parent in parents:
                    owner = getattr(owner, parent, None)
                if owner is None or not hasattr(owner, name):
                    self.absent(hook)
                else:
                    self.patch(owner, name, hook)
                    self._report(hook.target, "installed", "")
            except Exception as error:  # kvtrace must not break an import of vLLM's
                _switch_off(hook, self._report, "disabled", f"{what_failed(error)}; lost: {hook.lost}")

    def absent(self, hook: Hook) -> None:
        """Say that this vLLM does not have what a hook is for."""
        _switch_off(hook, self._report, "absent", hook.lost)

    def patch(self, owner: object, name: str, hook: Hook) -> None:
        """Put a wrapper in place of `owner.name`, keeping static and class methods what they are."""
        declared = inspect.getattr_static(owner, name)
        own = name in vars(owner)
        wrapper: Any = wrap(
            declared.__func__ if isinstance(declared, staticmethod | classmethod) else declared, hook, self._report
        )
        if isinstance(declared, staticmethod | classmethod):
            wrapper = type(declared)(wrapper)
        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, declared) if own else delattr(owner, name))

    def patch_object(self, target: object, name: str, hook: Hook, declared: str = "") -> bool:
        """Put a wrapper before one object's method and leave other objects of its class alone.

        Hooks get the arguments without the object. `declared` is where vLLM declares the method, if not in the object's
        own class. False: it has no such method.
        """
        self._objects = [(done, which) for done, which in self._objects if done() is not None]
        if any(done() is target and which == name for done, which in self._objects):
            return True
        method = getattr(target, name, None)
        if method is None:
            self.absent(hook)
            return False
        own = name in vars(target)
        setattr(target, name, wrap(method, hook, self._report))
        found = weakref.ref(target)

        def undo() -> None:
            if (still := found()) is not None:
                wrapper = vars(still).pop(name)
                if own:
                    setattr(still, name, wrapper.__wrapped__)

        self._objects.append((found, name))
        self._undo.append(undo)
        self._report(hook.target, "installed", declared)
        return True

    def uninstall(self) -> None:
        """Put every original back. `install(patches.hooks)` patches them again."""
        if self._finder is not None:
            sys.meta_path.remove(self._finder)
            self._finder = None
        self._objects.clear()
        while self._undo:
            self._undo.pop()()
