"""Small models whose KV cache has several groups."""

from __future__ import annotations

import json
from pathlib import Path

MODEL = Path(__file__).parent.parent.parent / "examples" / "tiny-llama"
WINDOWS = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 64}
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "torch_dtype": "float32",
    "vocab_size": 4096,
    "num_hidden_layers": 2,
    "layer_types": ["conv", "full_attention"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "hidden_size": 128,
    "block_dim": 128,
    "conv_dim": 128,
    "conv_dim_out": 128,
    "norm_eps": 1e-5,
    "intermediate_size": 256,
    "block_ff_dim": 256,
    "block_auto_adjust_ff_dim": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
"""A hybrid of short convolutions, whose state vLLM keeps as it does Mamba's, and full attention."""


def draft_model(folder: Path, kv_heads: int) -> str:
    """A draft model of one layer; with fewer KV heads its blocks hold more tokens."""
    config = json.loads((MODEL / "config.json").read_text())
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({**config, "num_hidden_layers": 1, "intermediate_size": 256, "num_key_value_heads": kv_heads})
    )
    return str(folder)


def state_model(folder: Path) -> str:
    """A small model that keeps states."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LFM2))
    return str(folder)
