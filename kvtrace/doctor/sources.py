"""Facts about the hooks from the sources of one vLLM, by their syntax trees: nothing of vLLM is imported.

`kvtrace doctor` asks the installed vLLM, `make compatibility` those of docs/compatibility.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from kvtrace.doctor.declared import Declared, all_declared
from kvtrace.launch.versions import parts
from kvtrace.probes.device.tiles.source import MismatchError
from kvtrace.probes.hooks import Argument

Missing = dict[str, str]
"""Missing attributes, and what a trace lacks for each; an empty text: the hook is switched off."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """The folder that holds `vllm/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: dict[str, dict[str, ast.AST | tuple[str, str]]] = {}
        self._members_of: dict[ast.ClassDef, dict[str, tuple[str, ast.AST]]] = {}
        self._attributes_of: dict[str, set[str]] = {}

    @cached_property
    def version(self) -> str:
        """As `vllm/_version.py` says.

        Raises:
            ValueError: It does not.
        """
        found = re.search(r"\bversion = '([^'+]+)", (self.folder / "vllm" / "_version.py").read_text())
        if found is None:
            raise ValueError("vllm/_version.py does not tell a version")
        return found[1]

    @property
    def complete(self) -> bool:
        """Return whether more than the kernels is there."""
        return (self.folder / "vllm/v1/core/sched/scheduler.py").exists()

    def facts(self) -> dict[str, Missing | None]:
        """Return what is missing of each hook; None where there is not even its target."""
        return {declared.target: self._missing(declared) for declared in all_declared()}

    def _missing(self, declared: Declared) -> Missing | None:
        found = self.find(declared.target)
        if found is None:
            return None
        if declared.rewrite is not None:
            return self._rewritten(declared, found)
        missing: Missing = {}
        for argument in declared.arguments:
            if isinstance(found, Definition) and not _takes(found, argument):
                missing[f"argument {argument.position} {argument.name}"] = ""
        for need in declared.needs:
            there = self._attributes(need.owner)
            for name in need.names.split():
                if not there.intersection(name.split("|")):
                    missing[f"{_short(need.owner)}.{name}"] = need.lost
        return missing

    def _rewritten(self, declared: Declared, kernel: ast.AST) -> Missing:
        text = self._path(declared.target.partition(":")[0]).read_text()
        lines = text.splitlines()[kernel.decorator_list[0].lineno - 1 : kernel.end_lineno]  # type: ignore[attr-defined]
        try:
            declared.rewrite("\n".join(lines) + "\n")  # type: ignore[misc]
        except MismatchError as error:
            return {f"the expected form: {error}": ""}
        return {}

    def find(self, place: str) -> ast.AST | None:
        """The definition that `module:Class.function` names, be it inherited or imported from elsewhere in vLLM."""
        module, _, path = place.partition(":")
        names = path.split(".")
        node = self._in_module(module, names[0])
        for name in names[1:]:
            node = self._members(*node).get(name) if node else None
        return node[1] if node else None

    def _path(self, module: str) -> Path:
        path = self.folder / module.replace(".", "/")
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def _names(self, module: str) -> dict[str, ast.AST | tuple[str, str]]:
        """A module's names: definitions, or where in vLLM they are imported from. Read once."""
        if module not in self._modules:
            path = self._path(module)
            names: dict[str, ast.AST | tuple[str, str]] = {}
            for node in ast.walk(ast.parse(path.read_text())) if path.exists() else ():
                match node:
                    case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        names.setdefault(name, node)
                    case ast.Assign(targets=[ast.Name(id=name)]):
                        names.setdefault(name, node)
                    case ast.ImportFrom(module=str(origin), level=0):
                        for alias in node.names:
                            names.setdefault(alias.asname or alias.name, (origin, alias.name))
            self._modules[module] = names
        return self._modules[module]

    def _in_module(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """The module and the definition of what a module knows by a name."""
        match self._names(module).get(name):
            case None:
                return None
            case (str(origin), str(original)):
                elsewhere = self._in_module(origin, original) if origin.startswith("vllm") else None
                return elsewhere or (module, ast.Pass())
            case node:
                return module, node

    def _members(self, module: str, node: ast.AST) -> dict[str, tuple[str, ast.AST]]:
        """A class's attributes with their modules and definitions: inherited ones, those set on `self`, its own."""
        if not isinstance(node, ast.ClassDef):
            return {}
        if node not in self._members_of:
            self._members_of[node] = {name: (where, found) for name, where, found in self._declared_in(module, node)}
        return self._members_of[node]

    def _declared_in(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, str, ast.AST]]:
        """A class's attributes, the nearest definition of a name last."""
        for base in reversed(node.bases):
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name) and (parent := self._in_module(module, plain.id)):
                yield from ((name, *found) for name, found in self._members(*parent).items())
        for statement in node.body:
            for inner in ast.walk(statement) if isinstance(statement, Definition) else ():
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
                    yield inner.attr, module, inner
        for statement in node.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield statement.name, module, statement
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    yield name, module, statement

    def _attributes(self, owner: str) -> set[str]:
        """The attributes of a `Need`'s owner; none if there is no such owner."""
        if "|" in owner:
            return set().union(*map(self._attributes, owner.split("|")))
        if owner not in self._attributes_of:
            module, _, path = owner.partition(":")
            found = self.find(owner) if path else None
            if not path:
                names = set(self._names(module))
            elif isinstance(found, Definition):
                names = {parameter.arg for parameter in _parameters(found.args)}
            else:
                where = self._in_module(module, path)
                names = set(self._members(*where)) if where else set()
            self._attributes_of[owner] = names
        return self._attributes_of[owner]


def how_it_fits(declared: Declared, version: str, missing: Missing | None) -> str:
    """Say how a hook fits a version: `none`, `absent`, `absent: ...`, `degraded: ...` or `fits`.

    Args:
        declared: The hook.
        version: vLLM's.
        missing: Facts of `Sources.facts`.

    Returns:
        The state, with what is needed and missing or what a trace lacks. `none`: the version did not have the feature
        yet, so that nothing is lost.
    """
    if missing is None:
        return "none" if declared.since and parts(version) < parts(declared.since) else "absent"
    if needed := [name for name, lost in missing.items() if not lost]:
        return f"absent: needs {', '.join(f'`{name}`' for name in needed)}"
    if missing:
        return "degraded: lacks " + "; ".join(dict.fromkeys(missing.values()))
    return "fits"


def _short(owner: str) -> str:
    return "|".join(place.partition(":")[2] or place.rstrip(":") for place in owner.split("|"))


def _is_self(node: Any) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _parameters(args: ast.arguments) -> list[ast.arg]:
    return [*args.posonlyargs, *args.args, *args.kwonlyargs]


def _takes(function: Definition, argument: Argument) -> bool:
    """Return whether an argument is where a hook's function takes it from, or can only be given by that name."""
    args = function.args
    positional = [parameter.arg for parameter in [*args.posonlyargs, *args.args]]
    if argument.position < len(positional):
        return positional[argument.position] == argument.name
    named = argument.name in {parameter.arg for parameter in args.kwonlyargs}
    return named or argument.optional or args.vararg is not None or args.kwarg is not None
