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


def prefetch_policy(name: str, options: Mapping[str, Any]) -> Prefetch:
    """Make the policy of a name in `PREFETCH`, or of a class such as `my_package.module.MyPolicy`.

    Raises:
        KvtraceError: There is no such policy.
    """
    kind: Any = PREFETCH.get(name)
    if kind is None:
        module, _, attribute = name.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError):
            raise KvtraceError(f"prefetch={name}: expected {', '.join(PREFETCH)}, or a class", 2) from None
    made: Prefetch = kind(options)
    return made
