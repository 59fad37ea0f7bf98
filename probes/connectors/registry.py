"""The registry of adapters: every module of `adapters/` declares one as its `ADAPTER`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from kvtrace.probes.connectors import adapters, scheduler_side, worker_side
from kvtrace.probes.connectors.adapter import Adapter, Declaration
from kvtrace.probes.connectors.part import Part
from kvtrace.probes.hooks import Hook


def declarations() -> dict[str, Declaration]:
    """Import all adapters' declarations, by the names of their modules."""
    names = sorted(module.name for module in iter_modules(adapters.__path__))
    return {name: import_module(f"{adapters.__name__}.{name}").ADAPTER for name in names}


def adapter_of(part: Part) -> Adapter:
    """Make the adapter of a connector's class or base class, else the adapter for any connector."""
    kinds = {kind.__name__ for kind in type(part.connector).__mro__}
    for declared in declarations().values():
        names = {place.rpartition(":")[2] for place in declared.connectors}
        if names & kinds and declared.adapter.fits(part.connector):
            return declared.adapter(part)
    return Adapter(part)


def hooks_on_objects() -> list[Hook]:
    """List the hooks that are put on connectors when vLLM makes them. They have no functions yet."""
    of_adapters = [hook for declared in declarations().values() for hook in declared.hooks]
    return [*scheduler_side.HOOKS, *worker_side.HOOKS, *of_adapters]
