"""Shapes of models: what vLLM makes of them, and whether a replay makes the same of what a recording tells."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvtrace.lab.shapes import kv_bytes_per_token, shape_config, shapes
from tests.vllm.conftest import vllm_environment

GROUPS: dict[str, list[list[Any]]] = {
    # kind, tokens a block on the CPU, layers
    "llama-3.1-8b": [["FullAttentionSpec", 128, 32]],
    "gemma-3-12b": [["SlidingWindowSpec", 128, 8]] * 5 + [["FullAttentionSpec", 128, 8]],
    "gpt-oss-20b": [["SlidingWindowSpec", 128, 12], ["FullAttentionSpec", 128, 12]],
    "qwen3-next-80b-a3b": [["MambaSpec", 1152, 12]] * 3 + [["FullAttentionSpec", 1152, 12]],
    "granite-4.0-h-tiny": [["MambaSpec", 896, 4]] * 9 + [["FullAttentionSpec", 896, 4]],
    "deepseek-v2-lite": [["MLAAttentionSpec", 128, 27]],
    "llama-4-scout": [["ChunkedLocalAttentionSpec", 128, 12]] * 3 + [["FullAttentionSpec", 128, 12]],
    "mixtral-8x7b": [["FullAttentionSpec", 128, 32]],
    "opt-13b": [["FullAttentionSpec", 128, 40]],
    "qwen2.5-0.5b": [["FullAttentionSpec", 128, 24]],
}
WITHOUT_AMX: dict[str, list[list[Any]]] = {"deepseek-v2-lite": [["MLAAttentionSpec", 16, 27]]}
"""vLLM has two MLA backends for CPUs. The one for those without AMX tiles takes 16 tokens a block only."""
WHOLE = {"FullAttentionSpec"}
REFUSED = {"deepseek-v3.2": "Sparse Attention is not supported on CPU."}


@pytest.mark.parametrize("shape", shapes())
def test_each_layer_of_a_shape_has_its_type(shape: str) -> None:
    config = shape_config(shape)
    for name in ("layer_types", "no_rope_layers"):
        assert len(config.get(name) or range(config["num_hidden_layers"])) == config["num_hidden_layers"]


@pytest.fixture(scope="module")
def made(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("shapes") / "groups.json"
    command = [*warm_python, str(Path(__file__).with_name("shape_groups.py")), str(output), *GROUPS, *REFUSED]
    environment = vllm_environment(VLLM_PLUGINS="")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.vllm
@pytest.mark.parametrize("shape", GROUPS)
def test_vllm_makes_the_groups_that_a_replay_builds_from_a_recording(made: dict[str, Any], shape: str) -> None:
    found = made[shape]
    assert found["groups"] == (GROUPS if found["amx"] else GROUPS | WITHOUT_AMX)[shape]
    assert sum(layers for _, _, layers in found["groups"]) == shape_config(shape)["num_hidden_layers"]
    assert not any(found["differing"])
    known = kv_bytes_per_token(shape)
    assert known == found["token_bytes"] if {kind for kind, _, _ in found["groups"]} == WHOLE else known is None


@pytest.mark.vllm
@pytest.mark.parametrize("shape", REFUSED)
def test_vllm_says_why_it_does_not_run_a_shape_on_the_cpu(made: dict[str, Any], shape: str) -> None:
    assert made[shape] == {"refused": REFUSED[shape]}
