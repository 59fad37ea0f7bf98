"""The engines that faults are tried on: each has hooks that the others do not reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.vllm.conftest import ENGINE, HERE
from tests.vllm.offload.engines import connector_engines

_CONNECTED = connector_engines(Path())
UNLIKE_COPIES = (*(name for name, connected in _CONNECTED.items() if not connected.forkable), "processes", "tp2")
"""A forked copy of their engine would lack threads or processes, or share files with the others."""


class Variant(NamedTuple):
    """Arguments of the engine beside the usual ones, and environment variables."""

    engine: dict[str, Any]
    environment: dict[str, str]


def variants(folder: Path) -> dict[str, Variant]:
    """All variants by name. In `folder` connectors keep their files."""
    pin = {"threshold_s": 1.0, "ttl_s": 60.0, "tool_s": {"fast": 0.1, "slow": 5.0}}
    processes = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return {
        "plain": Variant({}, {}),
        "uncached": Variant({"enable_prefix_caching": False}, {}),
        "async": Variant({"async_scheduling": True}, {}),
        "subclassed": Variant({"scheduler_cls": "subclass_scheduler.SubclassScheduler"}, {}),
        **{name: Variant(connected.engine, {}) for name, connected in connector_engines(folder).items()},
        "ttl": Variant(
            {"scheduler_cls": "logging_ttl.LoggingScheduler", "additional_config": {"kvtrace_ttl_pin": pin}}, {}
        ),
        "processes": Variant({}, processes),
        "tp2": Variant({"tensor_parallel_size": 2}, {**processes, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
    }


def build(variant: Variant, folder: Path) -> Any:
    """The variant's `LLM`, in this process; its helpers write to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(variant.environment, KVTRACE_TEST_SPEC_LOG=str(folder / "own.jsonl"), KVTRACE_TEST_WAIT="1")
    for helpers in (HERE, HERE / "offload"):
        if str(helpers) not in sys.path:
            sys.path.insert(0, str(helpers))
    from vllm import LLM

    return LLM(**{**ENGINE, **variant.engine})
