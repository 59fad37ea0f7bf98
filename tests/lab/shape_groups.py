"""KV cache groups that vLLM makes of shapes, without weights: models are built on the device `meta`.

    python shape_groups.py OUTPUT SHAPE ...

What is written of each shape: groups with kinds, tokens a block and layers; whether the CPU has AMX tiles, on which
vLLM's choice depends; and whether a replay builds the same groups from what a recording tells of them. Or the reason
why vLLM does not build the model here.
"""

from __future__ import annotations

import json
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

from forks import forked


def main(output: Path, shapes: list[str]) -> None:
    import vllm.entrypoints.llm  # noqa: F401 - imported once, for all forks

    told = {shape: forked(partial(describe, shape), output.with_suffix(f".{shape}.log")) for shape in shapes}
    output.write_text(json.dumps(told))


def describe(shape: str) -> dict[str, Any]:
    import torch

    from kvtrace.lab.replay.engine import told_group, vllm_grouping
    from kvtrace.probes.engine_facts import group_facts

    try:
        config, specs = _layers(shape)
    except NotImplementedError as error:
        return {"refused": str(error)}
    groups = vllm_grouping()(config, specs)
    facts = json.loads(json.dumps(group_facts(groups)))
    size = config.cache_config.block_size
    engine, settings = _Engine(size), _Settings(size)
    again = [told_group(number, told, engine, settings).kv_cache_spec for number, told in enumerate(facts)]
    return {
        "amx": torch.cpu._is_amx_tile_supported(),
        "block_size": size,
        "token_bytes": sum(g.kv_cache_spec.page_size_bytes * len(g.layer_names) // size for g in groups),
        "groups": [[told["kind"], told["spec"]["block_size"], told["layers"]] for told in facts],
        "differing": [_differing(spec, group.kv_cache_spec) for spec, group in zip(again, groups, strict=True)],
        "layers": sum(told["layers"] for told in facts),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
    }


class _Engine:
    """Facts of an engine that a replay needs to build a group."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


class _Settings(_Engine):
    """Settings of an engine, likewise."""

    num_speculative_tokens = 0


def _differing(again: Any, recorded: Any) -> list[str]:
    """Name what differs; of a state, sizes are told and not shapes."""
    assert type(again) is type(recorded)
    names = sorted(set(vars(recorded)) - {"shapes", "dtypes"})
    return [
        f"{name} {getattr(again, name)} for {getattr(recorded, name)}"
        for name in names
        if getattr(again, name) != getattr(recorded, name)
    ]


def _layers(shape: str) -> tuple[Any, dict[str, Any]]:
    """Configure vLLM, and what each layer keeps."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform

    from kvtrace.lab.shapes import shape_path

    config = EngineArgs(
        model=str(shape_path(shape)),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=True,
    ).create_engine_config()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        initialize_model_parallel(1, 1)
        torch.set_default_dtype(config.model_config.dtype)
        with torch.device("meta"):
            initialize_model(config)
        current_platform.update_block_size_for_backend(config)  # as a worker does when it has its model
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        _resolve_layout(config, layers)
        return config, {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(config))}


def _resolve_layout(config: Any, layers: dict[str, Any]) -> None:
    """Settle how tensors lie in memory, as the engine does with its workers: since 0.32."""
    from vllm.v1.attention.backends import utils

    if not hasattr(utils, "resolve_kv_cache_layout"):
        return
    backends = {layer.get_attn_backend() for layer in layers.values()}
    layouts = [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]
    utils.resolve_kv_cache_layout(config, [layouts])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
