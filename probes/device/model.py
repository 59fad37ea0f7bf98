"""A model runner's KV layers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

from kvtrace.probes.vllm_types import AttentionLayer, ModelRunner

if TYPE_CHECKING:
    from torch.nn import Module


Layers = list[tuple[str, AttentionLayer]]
"""Names and layers, in the order of the model."""


def kv_layers(runner: ModelRunner) -> Layers:
    """List the layers that own a KV cache, in the order of the model."""
    context = runner.compilation_config.static_forward_context
    return [(name, layer) for name, layer in context.items() if getattr(layer, "impl", None) is not None]


def backend_of(layers: Layers) -> str:
    """Name the class of the first layer's attention implementation."""
    return type(layers[0][1].impl).__name__ if layers else ""


SPACING = 16
"""With CUDA graphs a step takes a few milliseconds, and the stamps of 32 layers close to one percent of it; between
piecewise ones Python launches them, in steps that may take as long as Python does."""


def timing(count: int, wanted: tuple[int, ...], *, alike: bool, spacing: int = SPACING) -> list[str]:
    """Choose when each of `count` layers has stamps: `always`, `outside_graphs` or `never`.

    Named layers always have them, and no others do. If none is named, all layers have them in passes without CUDA
    graphs. With CUDA graphs, layers that are alike have them only on one of `spacing` and on the last; ingest derives
    the others' windows.
    """
    if wanted:
        return ["always" if index in wanted else "never" for index in range(count)]
    always = {*range(0, count, spacing if alike else 1), count - 1}
    return ["always" if index in always else "outside_graphs" for index in range(count)]


def in_microbatches(runner: ModelRunner) -> bool:
    """Tell if vLLM may run a step's batch in two or more parts that take turns, layer by layer."""
    config = getattr(getattr(runner, "vllm_config", None), "parallel_config", None)
    return bool(getattr(config, "enable_dbo", False) or getattr(config, "use_ubatching", False))


def alike(runner: ModelRunner, layers: Layers) -> bool:
    """Tell if all layers of the model own a KV cache, do the same with it and have the same weights besides.

    Then each takes as long as the next.
    """
    if len(layers) != runner.model_config.get_num_layers(runner.parallel_config):
        return False  # some have other state, or some are a draft model's
    try:
        return len({_kind(runner, name, layer) for name, layer in layers}) == 1
    except AttributeError:
        return False


def _kind(runner: ModelRunner, name: str, layer: AttentionLayer) -> tuple[object, ...]:
    facts = cache_facts(layer)
    return (
        type(layer),
        type(layer.impl),
        getattr(layer, "sliding_window", None),
        getattr(layer, "kv_sharing_target_layer_name", None),
        str(facts["shape"]),
        facts["dtype"],
        _weights(runner.get_model(), name),
    )


def _weights(model: Module, attention: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """List names and shapes of the weights of the model's layer that has an attention of this name, MLP included.

    Raises:
        AttributeError: The model has no layer of that name.
    """
    layer = re.match(r".*?\.\d+(?=\.)", attention)
    if layer is None:
        raise AttributeError(attention)
    return tuple((name, tuple(weight.shape)) for name, weight in model.get_submodule(layer[0]).named_parameters())


class CacheFacts(TypedDict):
    """The place and format of a layer's KV: with these, block and head give an address."""

    address: int
    shape: list[int]
    stride: list[int]
    dtype: str


def cache_facts(layer: AttentionLayer) -> CacheFacts:
    """Read the place and format of a layer's KV."""
    cache = layer.kv_cache
    tensor = cache[0] if isinstance(cache, list | tuple) else cache
    return {
        "address": tensor.data_ptr(),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


def first_of_groups(runner: ModelRunner, layers: Layers, wanted: tuple[int, ...]) -> set[int]:
    """Find the first wanted layer of each KV cache group: layers of a group share their block tables.

    All layers, where the model runner does not tell its groups.
    """
    indices = wanted or range(len(layers))
    config = getattr(runner, "kv_cache_config", None)
    groups = {
        name: group for group, spec in enumerate(getattr(config, "kv_cache_groups", ())) for name in spec.layer_names
    }
    first: dict[int, int] = {}
    for index in indices:
        if index < len(layers):
            first.setdefault(groups.get(layers[index][0], index), index)
    return set(first.values())
