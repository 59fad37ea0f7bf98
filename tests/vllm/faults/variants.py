"""The engines that faults are tried on: each has hooks that the others do not reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.vllm.conftest import ENGINE, HERE
from tests.vllm.hybrids import WINDOWS, draft_model, state_model
from tests.vllm.offload.engines import connector, connector_engines

SERVED = "served"
"""The variant whose requests come by HTTP: `served.py`."""

_CONNECTED = connector_engines(Path())
UNLIKE_COPIES = (
    *(name for name, connected in _CONNECTED.items() if not connected.forkable),
    "processes",
    "tp2",
    SERVED,
)
"""A forked copy of their engine would lack threads or processes, or share files with the others."""


class Variant(NamedTuple):
    """Arguments of the engine beside the usual ones, and environment variables."""

    engine: dict[str, Any]
    environment: dict[str, str]


def variants(folder: Path) -> dict[str, Variant]:
    """All variants by name. In `folder` connectors keep their files, and models are."""
    eagle = {"method": "eagle", "model": str(folder / "draft"), "num_speculative_tokens": 2}
    states = {
        "model": str(folder / "states"),
        "mamba_cache_mode": "align",
        "enable_prefix_caching": True,
        "num_gpu_blocks_override": 48,
        "kv_transfer_config": connector("StateConnector", "state_connector"),
    }
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
        # Groups with blocks of two sizes, and drafts.
        "groups": Variant({"hf_overrides": WINDOWS, "speculative_config": eagle, "num_gpu_blocks_override": 80}, {}),
        # A connector that supplies what the group with states lacks.
        "states": Variant(states, {}),
        SERVED: Variant({}, processes),
        "processes": Variant({}, processes),
        "tp2": Variant({"tensor_parallel_size": 2}, {**processes, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
    }


def build(variant: Variant, folder: Path) -> Any:
    """The variant's `LLM`, in this process; its helpers write to `folder`."""
    prepare(variant, folder)
    from vllm import LLM

    return LLM(**{**ENGINE, **variant.engine})


def prepare(variant: Variant, folder: Path) -> None:
    """Set the environment, and write models."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(variant.environment, KVTRACE_TEST_SPEC_LOG=str(folder / "own.jsonl"), KVTRACE_TEST_WAIT="1")
    for helpers in (HERE, HERE / "offload"):
        if str(helpers) not in sys.path:
            sys.path.insert(0, str(helpers))
    draft_model(folder / "draft", kv_heads=2)
    state_model(folder / "states")
