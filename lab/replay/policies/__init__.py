"""Prefetch policies of replays, by name. One interface: `base.Prefetch`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.policies.average import Average
from kvtrace.lab.replay.policies.base import Prefetch
from kvtrace.lab.replay.policies.by_tool import ByTool
from kvtrace.lab.replay.policies.fixed import Fixed
from kvtrace.lab.replay.policies.none import NoPrefetch
from kvtrace.lab.replay.policies.oracle import Oracle

PREFETCH: dict[str, type[Prefetch]] = {
    "none": NoPrefetch,
    "oracle": Oracle,
    "fixed": Fixed,
    "average": Average,
    "by-tool": ByTool,
}


def prefetch_class(name: str) -> type[Prefetch]:
    """Return the class of a name in `PREFETCH`, or one such as `my_package.module.MyPolicy`.

    Raises:
        KvtraceError: There is no such policy.
    """
    if name in PREFETCH:
        return PREFETCH[name]
    module, _, attribute = name.rpartition(".")
    known = f"expected {', '.join(PREFETCH)}, or a class such as my_package.module.MyPolicy"
    if not module:
        raise KvtraceError(f"prefetch={name}: {known}", 2)
    try:
        found: type[Prefetch] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise KvtraceError(f"prefetch={name}: {error}; {known}, in a folder of PYTHONPATH", 2) from None
    return found


def prefetch_policy(name: str, options: Mapping[str, Any]) -> Prefetch:
    """Make the policy of that name, see `prefetch_class`."""
    return prefetch_class(name)(options)
