"""The engines that faults are tried on: each has hooks that the others do not reach."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.vllm.conftest import ENGINE, HERE

BLOCK_BYTES = 4 * 2 * 4 * 32 * 2 * 32
"""Of the tiny model: layers, K and V, heads, head size, bytes of a bfloat16, tokens a block."""


UNLIKE_COPIES = ("simple-cpu", "disk", "example", "processes", "tp2")
"""A forked copy of their engine would lack threads or processes, or share files with the others."""


class Variant(NamedTuple):
    """Arguments of the engine beside the usual ones, and environment variables."""

    engine: dict[str, Any]
    environment: dict[str, str]


def variants(folder: Path) -> dict[str, Variant]:
    """All variants by name. In `folder` connectors keep their files."""
    cpu_spec = {"spec_name": "CpuSpec", "spec_module_path": "cpu_spec", "cpu_bytes_to_use": 20 * BLOCK_BYTES}
    disk = {"kv_offload_backend": "disk", "disk_capacity_bytes": 30 * BLOCK_BYTES, "use_page_cache": True}
    disk["disk_path"] = str(folder / "disk")
    parts = [_connector("SimpleCpuWithoutGpu", "simple_cpu", **disk)]
    pin = {"threshold_s": 1.0, "ttl_s": 60.0, "tool_s": {"fast": 0.1, "slow": 5.0}}
    example = _connector("ExampleConnector", shared_storage_path=str(folder / "example"))
    simple = _connector("SimpleCpuWithoutGpu", "simple_cpu", cpu_bytes_to_use=30 * BLOCK_BYTES)
    processes = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return {
        "plain": Variant({}, {}),
        "uncached": Variant({"enable_prefix_caching": False}, {}),
        "async": Variant({"async_scheduling": True}, {}),
        "subclassed": Variant({"scheduler_cls": "subclass_scheduler.SubclassScheduler"}, {}),
        "offloading": Variant({"kv_transfer_config": _connector("OffloadingConnector", **cpu_spec)}, {}),
        "simple-cpu": Variant({"kv_transfer_config": simple}, {}),
        "disk": Variant({"kv_transfer_config": _connector("MultiConnector", connectors=parts)}, {}),
        "example": Variant({"kv_transfer_config": example, "max_num_batched_tokens": 1024}, {}),
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


def _connector(name: str, module: str | None = None, **extra: Any) -> dict[str, Any]:
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {**config, "kv_connector_module_path": module} if module else config
