"""Engines of shapes on the CPU, cut to one period of layers and few experts; three prompts each. Run by hand.

    kvtrace record -o RUN -- python tests/lab/shape_engines.py OUTPUT [SHAPE ...]

OUTPUT gets what vLLM says of hits, or how it failed. With VLLM_ENABLE_V1_MULTIPROCESSING=0 each engine is one process.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))

import gates
from forks import forked

WINDOWS, FULL, LINEAR = ["sliding_attention"], ["full_attention"], ["linear_attention"]
SMALL = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 512}
FEW_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
FEW_EXPERTS = {"n_routed_experts": 16, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
CUTS: dict[str, dict[str, Any]] = {
    "gemma-3-12b": {**SMALL, **FEW_HEADS, "num_hidden_layers": 6, "layer_types": WINDOWS * 5 + FULL},
    "gpt-oss-20b": {
        **SMALL, **FEW_HEADS, "num_hidden_layers": 2, "layer_types": WINDOWS + FULL, "num_local_experts": 8,
    },
    "qwen3-next-80b-a3b": {
        **SMALL, "num_hidden_layers": 4, "layer_types": LINEAR * 3 + FULL, "num_experts": 8, "num_experts_per_tok": 2,
    },
    "granite-4.0-h-tiny": {
        "vocab_size": 4096, "num_hidden_layers": 2, "layer_types": LINEAR + FULL, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "deepseek-v2-lite": {**SMALL, **FEW_EXPERTS, "num_hidden_layers": 2, "moe_intermediate_size": 512},
    "deepseek-v3.2": {**SMALL, **FEW_EXPERTS, "num_hidden_layers": 4, "moe_intermediate_size": 512},
    "llama-4-scout": {
        **SMALL, **FEW_HEADS, "hidden_size": 640, "intermediate_size_mlp": 1024, "num_hidden_layers": 4,
        "layer_types": ["chunked_attention"] * 3 + FULL, "no_rope_layers": [1, 1, 1, 0], "num_local_experts": 4,
        "attention_chunk_size": 512,
    },
    "mixtral-8x7b": {**SMALL, **FEW_HEADS, "head_dim": 64, "num_hidden_layers": 2},
}  # fmt: skip
CASES = {"first": [[11, 3000]], "again": [[11, 3000]], "branch": [[11, 1500], [12, 1000]]}


def main(output: Path, names: list[str]) -> None:
    import vllm.entrypoints.llm  # noqa: F401 - imported once, for all forks

    from kvtrace.lab.shapes import shape_path

    told: dict[str, Any] = {}
    for name in names or CUTS:
        options = {
            "model": str(shape_path(name)),
            "hf_overrides": CUTS[name],
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 4096,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 2048,
            "gpu_memory_utilization": 0.1,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
        }
        try:
            told[name] = forked(partial(gates.run, options, CASES), output.with_suffix(f".{name}.log"))
        except RuntimeError as error:
            told[name] = {"failed": str(error).strip().splitlines()[-1]}
        print(name, told[name].get("cached") or told[name], flush=True)
    output.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
