"""The entry point of group `vllm.general_plugins`: vLLM calls `load` in each of its processes.

Without a run directory in the environment it returns at once. Nothing here may raise: vLLM calls it unguarded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import KvtraceError
from kvtrace.format.layout import RUN_DIR_VARIABLE

if TYPE_CHECKING:
    from kvtrace.capture.recorder import Recorder
    from kvtrace.probes.hooks import Hook, Patches

_patches = None


def load() -> None:
    """Start to record if `kvtrace record` launched this process."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    if not run_dir or _patches is not None:
        return
    try:
        _install(Path(run_dir))
    except KvtraceError as error:
        _say(str(error))
    except Exception as error:
        _say(f"{type(error).__name__}: {error}")


def _say(why: str) -> None:
    with suppress(Exception):
        sys.stderr.write(f"kvtrace: not recording in process {os.getpid()}: {why}\n")


def unload() -> None:
    """Put vLLM's own functions back. What was recorded stays."""
    global _patches
    if _patches is not None:
        _patches.uninstall()
        _patches = None


def _install(run_dir: Path) -> None:
    global _patches
    from kvtrace.capture import limits
    from kvtrace.capture.recorder import Recorder
    from kvtrace.probes.hooks import Patches

    counting = os.environ.get("KVTRACE_COUNT_WRITES") == "1"
    recorder = Recorder(run_dir, limits.from_environment(os.environ), count_writes=counting)
    recorder.note("vllm", inherited=True, version=_vllm_version())

    def report(hook: str, state: str, detail: str) -> None:
        if state == "fired":
            recorder.note("fired", hook=hook)
        else:
            failed = state == "disabled"  # a process that has nothing else to say must say this
            recorder.note("hook", inherited=True, opens=failed, hook=hook, state=state, detail=detail)

    patches = Patches(report)
    patches.install(hooks(recorder, patches, os.environ))
    _patches = patches


def hooks(recorder: Recorder, patches: Patches, environment: Mapping[str, str]) -> list[Hook]:
    """List all hooks on vLLM's functions. Those on objects, such as connectors, follow when the objects are made."""
    from kvtrace.capture.tenants import from_environment
    from kvtrace.probes import (
        blocks,
        connectors,
        drafts,
        engines,
        frontend,
        lookups,
        nvtx,
        nvtx_hooks,
        pin_hooks,
        requests,
        step_results,
        steps,
        tenants,
        worker,
    )
    from kvtrace.probes.device import levels

    followed = engines.Engines(recorder)
    pending = lookups.Lookups(followed)
    ranges = nvtx.Ranges(recorder) if nvtx.is_wanted(environment) else None
    scheduling = [
        *steps.hooks(followed, pending, ranges),
        *step_results.hooks(followed),
        *drafts.hooks(followed),
        *requests.hooks(followed, ranges),
        *pin_hooks.hooks(followed),
    ]
    return [
        *engines.hooks(followed, patches, lambda: scheduling, ranges.start if ranges is not None else lambda: None),
        *scheduling,
        *lookups.hooks(followed, pending),
        *blocks.hooks(followed),
        *worker.hooks(recorder, ranges, levels.level(environment)),
        *frontend.hooks(recorder),
        *tenants.hooks(recorder, from_environment(environment)),
        *(nvtx_hooks.hooks(followed, ranges) if ranges is not None else []),
        *connectors.hooks(followed, patches),
    ]


def _vllm_version() -> str:
    module = sys.modules.get("vllm")
    return str(getattr(module, "__version__", "unknown"))
