"""Import hooks: a call right after a module has been imported, and a check for modules that a package lacks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Container, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

Imported = Callable[[ModuleType], None]


def is_missing(name: str) -> bool:
    """Tell if an imported package has no such module, without importing anything."""
    package, *inside = name.split(".")
    roots = getattr(sys.modules.get(package), "__path__", None)
    if roots is None or not inside:
        return False
    *folders, module = inside
    return PathFinder.find_spec(module, [str(Path(root, *folders)) for root in roots]) is None


class ImportFinder(MetaPathFinder):
    """Lets the ordinary finders find a module, and calls `imported` right after its code has run."""

    def __init__(self, names: Container[str], imported: Imported) -> None:
        self._names = names
        self._imported = imported
        self._finding: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The ordinary finders' answer, with a loader that tells."""
        if fullname not in self._names or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _TellingLoader(spec.loader, self._imported)
        return spec


class _TellingLoader(Loader):
    def __init__(self, loader: Loader, imported: Imported) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:  # resources, source inspection: as the loader it stands for
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._imported(module)
