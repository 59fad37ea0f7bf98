"""Attributes of vLLM's that kvtrace's probes read: which there are, and what happens when one is gone.

The probes' sources are rewritten as they are imported, so that each read of an attribute goes through this module; the
compiled part tells it of each of its own (`watch_reads`). What is read from an object of vLLM's (or from its modules
and classes) is noted, and refused where it is meant to be missing.
"""

from __future__ import annotations

import ast
import builtins
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

PROBES = "kvtrace.probes"
_READ = "__read_attribute__"
_NO_DEFAULT, _ABSENT = object(), object()


class Reads(MetaPathFinder):
    """Imports the probes so that it sees what they read. To be made before they are imported.

    Attributes:
        seen: What was read, as `module.Class.attribute` of the object's class, in order.
        missing: What is not to be found from now on.
    """

    def __init__(self) -> None:
        assert PROBES not in sys.modules
        self.seen: dict[str, None] = {}
        self.missing: str | None = None
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.split(".")[:2] != PROBES.split("."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self)
        return spec

    def watch(self, target: Any, name: str) -> None:
        """Note that `target.name` is about to be read.

        Raises:
            AttributeError: It is not to be found.
        """
        owner = _owner(target)
        if owner is not None:
            key = f"{owner}.{name}"
            self.seen.setdefault(key)
            if key == self.missing:
                raise AttributeError(f"{type(target).__name__!r} object has no attribute {name!r}")

    def getattr(self, target: Any, name: str, default: Any = _NO_DEFAULT) -> Any:
        """Return `target.name` as the probes see it."""
        try:
            self.watch(target, name)
        except AttributeError:
            if default is _NO_DEFAULT:
                raise
            return default
        return getattr(target, name) if default is _NO_DEFAULT else getattr(target, name, default)

    def hasattr(self, target: Any, name: str) -> bool:
        """Return whether `target.name` is there for the probes."""
        return self.getattr(target, name, _ABSENT) is not _ABSENT


def _owner(target: Any) -> str | None:
    """The class, or the module or class itself, if it is vLLM's or derived from one of vLLM's."""
    if isinstance(target, ModuleType):
        return target.__name__ if _is_vllms(target.__name__) else None
    kind = target if isinstance(target, type) else target.__class__  # a weak proxy's is its object's
    if not any(_is_vllms(ancestor.__module__) for ancestor in kind.__mro__):
        return None
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_vllms(module: str) -> bool:
    return module == "vllm" or module.startswith("vllm.")


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, reads: Reads) -> None:
        super().__init__(fullname, path)
        self._reads = reads

    def get_code(self, fullname: str) -> Any:  # no cache of bytecode: it would be that of the unchanged source
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.fix_missing_locations(_Rewriter().visit(ast.parse(data)))
        return builtins.compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({_READ: self._reads.getattr, "getattr": self._reads.getattr})
        vars(module)["hasattr"] = self._reads.hasattr
        super().exec_module(module)


class _Rewriter(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        call = ast.Call(ast.Name(_READ, ast.Load()), [node.value, ast.Constant(node.attr)], [])
        return ast.copy_location(call, node)

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        return node
