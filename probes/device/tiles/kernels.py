"""The kernels of a model's layers that can be rewritten, and the layer that launches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtrace.probes.device.model import Layers, backend_of
from kvtrace.probes.device.tiles.launch import Current, Installed

TRITON, FA4 = "TRITON_ATTN", 4
HOPPER = 9
MOST_LAYERS = 256
"""Kernels are told their layer in eight bits."""

WINDOWS = {"write": "write", "read": "attention"}
"""Names of what is observed of kernels that write or read, as they are noted."""

_CALLS = {
    "forward": "read",
    "forward_mha": "read",
    "forward_mqa": "read",
    "do_kv_cache_update": "write",
    "do_rope_and_kv_cache_update": "write",
}


def version_of(layers: Layers) -> int | None:
    """FlashAttention's version, where all layers use the same one of its versions."""
    versions = {getattr(layer.impl, "vllm_flash_attn_version", None) for _, layer in layers}
    return versions.pop() if len(versions) == 1 else None


def unfit(layers: Layers) -> str | None:
    """Say why the kernels of the model's layers cannot record tiles, if they cannot."""
    import torch

    backend, version = backend_of(layers), version_of(layers)
    if backend.startswith("Triton"):
        return None
    advice = f"start vLLM with --attention-backend {TRITON} (or attention_backend='{TRITON}')"
    hopper = torch.cuda.get_device_capability()[0] == HOPPER
    if version == FA4 and hopper:
        return None
    if version == FA4:
        return f"FlashAttention 4's kernel can be rewritten for Hopper only: {advice}"
    if version is not None and hopper:
        advice += f" or --attention-config '{{\"flash_attn_version\": {FA4}}}'"
    kernels = f"{backend} (FlashAttention {version})" if version is not None else backend
    return f"the attention backend is {kernels}, whose kernels cannot be rewritten: {advice}"


def keep_windows(layers: Layers) -> bool:
    """Tell if the layers' kernels may be rewritten to keep their windows."""
    if not 0 < len(layers) <= MOST_LAYERS or len({type(layer.impl) for _, layer in layers}) != 1:
        return False
    return unfit(layers) is None and backend_of(layers) in ("TritonAttentionImpl", "FlashAttentionImpl")


def install(layers: Layers, current: Current, kinds: frozenset[str], failed: Callable[[str], None]) -> Installed:
    """Put the rewritten kernels of the wanted kinds in place."""
    from kvtrace.probes.device.tiles import fa4, launch

    return (fa4.install if version_of(layers) == FA4 else launch.install)(current, kinds, failed)


def follow(
    implementation: object,
    what: int,
    current: Current,
    kinds: frozenset[str],
    unseen: Callable[[str], None] | None = None,
) -> Callable[[], None]:
    """Note the layer of the kernels that an attention implementation launches. Returns what undoes it.

    Args:
        implementation: A layer's.
        what: The layer, as rewritten kernels take it.
        current: Is told.
        kinds: Of the kernels that are rewritten.
        unseen: Is told of a kind that is being captured into a CUDA graph although no rewritten kernel of it has been
            launched so far. vLLM warms up before it captures, so this layer launches others.
    """
    import torch

    capturing = torch.cuda.is_current_stream_capturing
    put: list[str] = []
    for name, kind in _CALLS.items():
        original = getattr(implementation, name, None)
        if kind not in kinds or not callable(original):
            continue

        def call(*args: Any, original: Any = original, name: str = name, kind: str = kind, **kwargs: Any) -> Any:
            if kind not in current.launched and unseen is not None and capturing():
                unseen(kind)
                return getattr(implementation, name)(*args, **kwargs)
            current.what = what
            try:
                return original(*args, **kwargs)
            finally:
                current.what = None

        setattr(implementation, name, call)
        put.append(name)

    def undo() -> None:
        while put:
            vars(implementation).pop(put.pop(), None)

    return undo
