"""Every hook that the probes declare, with what it reads of vLLM: attributes it says, arguments its functions take."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from kvtrace.capture.recorder import Recorder
from kvtrace.capture.tenants import Tenants
from kvtrace.format.layout import KV_LEVEL_VARIABLE, NVTX_VARIABLE
from kvtrace.probes import plugin
from kvtrace.probes.connectors import registry
from kvtrace.probes.device.tiles.launch import TARGETS
from kvtrace.probes.hooks import Argument, Hook, Need, Patches


class Declared(NamedTuple):
    """A place in vLLM that is hooked. Arguments are counted with `self`."""

    target: str
    lost: tuple[str, ...]
    needs: tuple[Need, ...]
    arguments: tuple[Argument, ...]
    since: str
    rewrite: Callable[[str], str] | None = None


@cache
def all_declared() -> list[Declared]:
    """One entry a place; several hooks on one place are one entry. Kernels to be rewritten come last."""
    found: dict[str, Declared] = {}
    for hook in [*_on_functions(), *registry.hooks_on_objects()]:
        on_object = hook.before is None and hook.after is None
        arguments = _of_call_sites(hook) if on_object else _of_functions(hook)
        before = found.get(hook.target)
        found[hook.target] = Declared(
            hook.target,
            tuple(dict.fromkeys([*(before.lost if before else ()), hook.lost])),
            tuple(dict.fromkeys([*(before.needs if before else ()), *hook.needs])),
            tuple(sorted({*(before.arguments if before else ()), *arguments})),
            hook.since or (before.since if before else ""),
        )
    lost = {"read": "the tiles attention reads (--kv-level tile)", "write": "the slots written (--kv-level tile)"}
    for kernel in TARGETS:
        target = f"{kernel.module}:{kernel.kernel}"
        found[target] = Declared(target, (lost[kernel.kind],), (), (), "", kernel.rewrite)
    return list(found.values())


def _on_functions() -> list[Hook]:
    """All of them: those that only NVTX or the tile level need included. Nothing is recorded."""
    wanted = {NVTX_VARIABLE: "1", KV_LEVEL_VARIABLE: "tile", **Tenants().to_environment()}
    return plugin.hooks(Recorder(Path("/nonexistent")), Patches(lambda *_: None), wanted)


def _of_functions(hook: Hook) -> Iterator[Argument]:
    yield from hook.takes
    for function in (hook.before, hook.after, hook.arguments):
        if isinstance(function, FunctionType | MethodType):
            module = importlib.import_module(function.__module__)
            yield from _taken(module, function.__name__)


def _of_call_sites(hook: Hook) -> Iterator[Argument]:
    """Return the hooks of a connector's adapter: `part.hook(target, NAME, before, after)`, be NAME a loop's."""
    for room in _rooms():
        names = {name for name, value in vars(room).items() if hook == value or _holds(value, hook)}
        if not names:
            continue
        places: list[tuple[ast.AST, set[str]]] = [(_tree(room), names)]
        for loop in ast.walk(_tree(room)):
            if isinstance(loop, ast.For) and names & _names(loop.iter):
                places.append((loop, _names(loop.target)))
        for place, called in places:
            for call in ast.walk(place):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) > 1):
                    continue
                if call.func.attr.startswith("hook") and called & {_name(argument) for argument in call.args[:2]}:
                    functions = [*call.args, *(keyword.value for keyword in call.keywords)]
                    for function in set().union(*map(_names, functions)):
                        for position, name, optional in _taken(room, function):
                            yield Argument(position + 1, name, optional)


def _holds(value: Any, hook: Hook) -> bool:
    return isinstance(value, tuple) and not isinstance(value, Hook) and hook in value


def _rooms() -> list[ModuleType]:
    package = registry.__name__.rpartition(".")[0]
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(package)]


def _names(node: ast.AST) -> set[str]:
    return {_name(inner) for inner in ast.walk(node) if isinstance(inner, ast.expr)} - {""}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _taken(module: ModuleType, function: str, seen: frozenset[str] = frozenset()) -> Iterator[Argument]:
    """The calls of `argument` in a module's function and in those of the module that it calls."""
    for definition in ast.walk(_tree(module)):
        if not isinstance(definition, ast.FunctionDef) or definition.name != function or function in seen:
            continue
        for call in ast.walk(definition):
            if not isinstance(call, ast.Call):
                continue
            match call:
                case ast.Call(
                    func=ast.Name("argument"), args=[_, _, ast.Constant(int(at)), ast.Constant(str(name)), *_]
                ):
                    yield Argument(at, name, len(call.args) > 4)
                case ast.Call(func=ast.Name(other), args=[ast.Name("args"), *_]):
                    yield from _taken(module, other, seen | {function})
