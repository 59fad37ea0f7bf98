"""Engines with connectors: recorded by the tests here, and variants of the fault matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

BLOCK_BYTES = 4 * 2 * 4 * 32 * 2 * 32
"""Of the tiny model: layers, K and V, heads, head size, bytes of a bfloat16, tokens a block."""


class ConnectorEngine(NamedTuple):
    """An engine with a connector that has an adapter.

    Attributes:
        adapter: Its module in `probes/connectors/adapters`.
        engine: Arguments of the engine beside the usual ones.
        forkable: False: a forked copy would lack threads, or share files with the others.
    """

    adapter: str
    engine: dict[str, Any]
    forkable: bool = False


def connector(name: str, module: str | None = None, **extra: Any) -> dict[str, Any]:
    """A `kv_transfer_config`."""
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {**config, "kv_connector_module_path": module} if module else config


def connector_engines(folder: Path) -> dict[str, ConnectorEngine]:
    """Engines by name; each adapter has one or more. Connectors keep their files in `folder`."""
    # With a spec that needs no GPU; its tier holds less than all prompts.
    cpu_spec = {"spec_name": "CpuSpec", "spec_module_path": "cpu_spec", "cpu_bytes_to_use": 20 * BLOCK_BYTES}
    # With stand-ins for CUDA.
    simple = connector("SimpleCpuWithoutGpu", "simple_cpu", cpu_bytes_to_use=30 * BLOCK_BYTES)
    # The same with its disk backend, inside a MultiConnector.
    backend = {"kv_offload_backend": "disk", "disk_capacity_bytes": 30 * BLOCK_BYTES, "use_page_cache": True}
    parts = [connector("SimpleCpuWithoutGpu", "simple_cpu", **backend, disk_path=str(folder / "blocks"))]
    example = connector("ExampleConnector", shared_storage_path=str(folder / "example"))
    whole = {"max_num_batched_tokens": 1024}  # ExampleConnector cannot load prompts that were stored in chunks
    offloading = {"kv_transfer_config": connector("OffloadingConnector", **cpu_spec)}
    return {
        "offloading": ConnectorEngine("offloading", offloading, forkable=True),
        "simple-cpu": ConnectorEngine("simple_cpu", {"kv_transfer_config": simple}),
        "disk": ConnectorEngine("simple_cpu", {"kv_transfer_config": connector("MultiConnector", connectors=parts)}),
        "example": ConnectorEngine("by_slots", {"kv_transfer_config": example, **whole}),
    }
