"""A LoRA adapter of the tiny Llama, which changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.vllm.conftest import MODEL

RANK = 8


def make_adapter(folder: Path) -> Path:
    """Write an adapter of the query projections."""
    import torch
    from safetensors.torch import save_file

    model = json.loads((MODEL / "config.json").read_text())
    query = model["num_attention_heads"] * model["head_dim"]
    shapes = {"lora_A": (RANK, model["hidden_size"]), "lora_B": (query, RANK)}
    folder.mkdir()
    save_file(
        {
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.{part}.weight": torch.zeros(shape)
            for layer in range(model["num_hidden_layers"])
            for part, shape in shapes.items()
        },
        folder / "adapter_model.safetensors",
    )
    facts = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder
