"""The kernels of a model's layers that can be rewritten, and the layer that launches them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from kvtrace.format.layout import UNTRIED_KERNELS_VARIABLE
from kvtrace.probes.device.model import Layers, backend_of, cache_facts
from kvtrace.probes.device.tiles.launch import Current, Installed

TRITON, FA4 = "TRITON_ATTN", 4
FLASHINFER = "FlashInferImpl"
TRIED: Mapping[str | int, tuple[int, ...]] = {FA4: (9,), FLASHINFER: (9,)}
"""The GPUs on which rewritten kernels have run and been found right, by their compute capability's major number."""
COMPILED: Mapping[str | int, tuple[int, ...]] = {FA4: (10,), FLASHINFER: (8, 10)}
"""Those for which they have only been compiled."""
MOST_LAYERS = 256
"""Kernels are told their layer in eight bits."""
LISTS_SHIFT = 16
"""Above: one more than the head whose programs list blocks, in the first layer of a KV cache group."""

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
    backend, version = backend_of(layers), version_of(layers)
    if backend.startswith("Triton"):
        return None
    major = _gpu()
    advice = f"start vLLM with --attention-backend {TRITON} (or attention_backend='{TRITON}')"
    if backend == FLASHINFER:
        why = _not_on(FLASHINFER, "FlashInfer's kernels", major) or _unfit_flashinfer(layers, major)
        return why and f"{why}: {advice}{_OR_NO_CUBINS if why == _CUBINS else ''}"
    if version == FA4:
        why = _not_on(FA4, "FlashAttention 4's kernel", major)
        return why and f"{why}: {advice}"
    if version is not None and major in TRIED[FA4]:
        advice += f" or --attention-config '{{\"flash_attn_version\": {FA4}}}'"
    kernels = f"{backend} (FlashAttention {version})" if version is not None else backend
    return f"the attention backend is {kernels}, whose kernels cannot be rewritten: {advice}"


def _gpu() -> int:
    import torch

    major, _ = torch.cuda.get_device_capability()
    return int(major)


def _not_on(kernels: str | int, name: str, major: int) -> str | None:
    """Say why rewritten kernels are not to run on a GPU."""
    if major in TRIED[kernels]:
        return None
    if major not in COMPILED[kernels]:
        return f"{name} cannot be rewritten for this GPU"
    if os.environ.get(UNTRIED_KERNELS_VARIABLE) == "1":
        return None
    return f"{name}, once rewritten, never ran on such a GPU, and {UNTRIED_KERNELS_VARIABLE}=1 tries that"


def untried(layers: Layers) -> str:
    """Say what is not known of the layers' rewritten kernels on this GPU; nothing where they have run on one."""
    kernels = FLASHINFER if backend_of(layers) == FLASHINFER else version_of(layers)
    if kernels is None or _gpu() not in COMPILED.get(kernels, ()):
        return ""
    return (
        f"rewritten kernels that had never run on such a GPU before ({UNTRIED_KERNELS_VARIABLE}=1): check what they say"
    )


_HOPPER = 9
_CUBINS = "FlashInfer reads with XQA or trtllm-gen, whose kernels cannot be rewritten"
_OR_NO_CUBINS = " or --attention-config '{\"use_trtllm_attention\": false}'"


def _unfit_flashinfer(layers: Layers, major: int) -> str | None:
    """Say which of FlashInfer's kernels the layers run that cannot be rewritten.

    Others serve FP8 caches and attention sinks. `fa2`, which decodes, begins anywhere in a sliding window. On Hopper
    `fa3` reads prompts, whose tiles have 96 tokens, or 32 with large heads.
    """
    fitting = (16, 32) if major == _HOPPER else (16, 32, 64)
    for _, layer in layers:
        implementation: Any = layer.impl
        if getattr(implementation, "supports_xqa_or_trtllm_gen_decode", False):
            return _CUBINS
        if not str(getattr(implementation, "kv_cache_dtype", "auto")).startswith(("auto", "float16", "bfloat16")):
            return "FlashInfer's kernels can be rewritten for caches of 16 bits only"
        if getattr(implementation, "sinks", None) is not None:
            return "FlashInfer's kernels with attention sinks cannot be rewritten"
        if getattr(implementation, "window_left", -1) >= 0:
            return "FlashInfer's kernels with a sliding window cannot be rewritten"
        if getattr(implementation, "dcp_world_size", 1) > 1:
            return "FlashInfer's kernels cannot be rewritten where GPUs share a sequence (DCP)"
        if (tokens := _block_tokens(layer)) not in (None, *fitting):
            others = ", ".join(map(str, fitting))
            return f"blocks of {tokens} tokens do not fit the tiles of FlashInfer's kernels, those of {others} do"
    return None


def _block_tokens(layer: Any) -> int | None:
    """Count the tokens of a block of K and V in one tensor, as the kernels know it. None: it is not known."""
    implementation, cache = layer.impl, getattr(layer, "kv_cache", None)
    token = 2 * getattr(implementation, "num_kv_heads", 0) * getattr(implementation, "head_size", 0)
    block = math.prod(cache_facts(layer)["shape"][1:]) if cache is not None else 0
    return block // token if token and block and block % token == 0 else None


def keep_windows(layers: Layers) -> bool:
    """Tell if the layers' kernels may be rewritten to keep their windows."""
    if not 0 < len(layers) <= MOST_LAYERS or len({type(layer.impl) for _, layer in layers}) != 1:
        return False
    return unfit(layers) is None and backend_of(layers) in ("TritonAttentionImpl", "FlashAttentionImpl", FLASHINFER)


def install(
    layers: Layers, told: Mapping[int, int], current: Current, kinds: frozenset[str], failed: Callable[[str], None]
) -> Installed:
    """Put the rewritten kernels of the wanted kinds in place.

    Args:
        layers: The model's.
        told: What the kernels of a layer are told (`rewrite.PARAMETERS`), by its index.
        current: Says what launches are to record.
        kinds: Of kernels.
        failed: Is told why a launch is not recorded.
    """
    from kvtrace.probes.device.tiles import fa4, flashinfer, launch

    if backend_of(layers) != FLASHINFER:
        return (fa4.install if version_of(layers) == FA4 else launch.install)(current, kinds, failed)
    by_address = {cache_facts(layers[index][1])["address"]: what for index, what in told.items()}
    if why := _not_by_address(told, by_address):
        refused = Installed()
        refused.problems.append(why)
        return refused
    return flashinfer.install(current, kinds, failed, by_address)


def _not_by_address(told: Mapping[int, int], by_address: Mapping[int, int]) -> str | None:
    """Say why the addresses of caches do not tell FlashInfer's kernels enough."""
    if not told:
        return "there is no layer to record"
    if len(by_address) < len(told):
        return "FlashInfer's kernels know a layer by the address of its cache, and layers share one"
    if sum(what >> LISTS_SHIFT != 0 for what in told.values()) > 1:
        return "FlashInfer's kernels know the rows of one KV cache group, and the model has several"
    return None


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
