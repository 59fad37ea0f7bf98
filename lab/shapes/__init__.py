"""Model shapes: a folder with a `config.json` each, to run with dummy weights. The shape counts, not the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError

_HERE = Path(__file__).parent


def shapes() -> list[str]:
    """The names of the shapes there are."""
    return sorted(path.parent.name for path in _HERE.glob("*/config.json"))


def shape_path(name: str) -> Path:
    """The folder of a shape: one of the lab's by name, or any by its path.

    Raises:
        KvtraceError: There is none.
    """
    own = _HERE / name
    path = own if name in shapes() else Path(name)
    if not (path / "config.json").is_file():
        raise KvtraceError(f"no model shape {name!r}: name {', '.join(shapes())}, or a folder with a config.json")
    return path


def shape_config(name: str) -> dict[str, Any]:
    """The content of a shape's `config.json`."""
    config: dict[str, Any] = json.loads((shape_path(name) / "config.json").read_text())
    return config


def kv_bytes_per_token(name: str) -> int | None:
    """KV bytes of a token in all layers of a shape; None unless each layer keeps K and V of every token."""
    config = shape_config(name)
    config = config.get("text_config") or config
    kinds = set(config.get("layer_types") or ["full_attention"])
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if kinds != {"full_attention"} or windowed or config.get("kv_lora_rank") or config.get("attention_chunk_size"):
        return None
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    numbers = 2 * (config.get("num_key_value_heads") or heads) * head_size  # of K and V of a token in a layer
    return int(config["num_hidden_layers"] * numbers * (4 if config.get("torch_dtype") == "float32" else 2))
