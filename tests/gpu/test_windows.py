"""On a GPU with vLLM: what `--kv-level layer` records, by graph mode and model runner, against the engine's own word.

    python -m pytest tests/gpu

A model of the Llama-3.1-8B shape with dummy weights, prefix sharing, chunked prefill, eviction and preemption.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bench.derived_windows import compare
from kvtrace.format.reader import open_recording
from kvtrace.probes.device.model import SPACING
from tests.gpu import has_gpu
from tests.vllm.conftest import HERE, Recorded, free_port, ingested, kvtrace, rows, vllm_environment

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "tie_word_embeddings": False,
}
ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "block_size": 16,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 72,
    "gpu_memory_utilization": 0.15,  # several of these fit on one GPU
    "kv_cache_memory_bytes": 1 << 30,
    "disable_log_stats": False,
}
WORKLOAD = {"sessions": 8, "turns": 3, "shared_tokens": 400, "output_tokens": 64}
MLA = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "first_k_dense_replace": 32,
    "vocab_size": 102400,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "tie_word_embeddings": False,
}
"""DeepSeek-V2's attention, which keeps one latent vector a token; every layer dense."""

FA4 = {"attention_backend": "FLASH_ATTN", "attention_config": {"flash_attn_version": 4}}
FLASHINFER = {"attention_backend": "FLASHINFER", "attention_config": {"use_trtllm_attention": False}}
MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "full-all-layers": {},
    "piecewise": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "piecewise-all-layers": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "eager": {"enforce_eager": True},
    "triton": {"attention_backend": "TRITON_ATTN"},
    "triton-piecewise": {"attention_backend": "TRITON_ATTN", "compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "triton-eager": {"attention_backend": "TRITON_ATTN", "enforce_eager": True},
    "fa4": FA4,
    "fa4-all-layers": FA4,
    "fa4-piecewise": {**FA4, "compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "fa4-eager": {**FA4, "enforce_eager": True},
    "flex": {"attention_backend": "FLEX_ATTENTION"},
    "flashinfer": FLASHINFER,
    "flashinfer-piecewise": {**FLASHINFER, "compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "flashinfer-eager": {**FLASHINFER, "enforce_eager": True},
    "mla": {"attention_backend": "FLASH_ATTN_MLA"},
    "triton-mla": {"attention_backend": "TRITON_MLA"},
    "v1": {},
    "v1-piecewise": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "v1-mla": {"attention_backend": "FLASH_ATTN_MLA"},
    "v1-triton": {"attention_backend": "TRITON_ATTN"},
    "v1-fa4": FA4,
    "v1-flashinfer": FLASHINFER,
}
BY_KERNELS = {"triton": {"write", "attention"}, "fa4": {"attention"}, "flashinfer": {"attention"}}
"""Windows that the kernels themselves observe, by the kernels: in every step, of every layer."""
RUNNERS = {"v1": "vllm.v1.worker.gpu_model_runner", "v2": "vllm.v1.worker.gpu.model_runner"}
LAYERS = 32
IN_GRAPHS = {0, 16, LAYERS - 1}
LATENT = 512 + 64


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu("vllm"), reason="needs a CUDA device, vLLM and CuPy")]


@pytest.fixture(scope="module", params=MODES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    if "flashinfer" in request.param and importlib.util.find_spec("flashinfer") is None:
        pytest.skip("needs FlashInfer")
    if "fa4" in request.param and importlib.util.find_spec("cutlass") is None:
        pytest.skip("FlashAttention 4 needs nvidia-cutlass-dsl")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MLA if "mla" in request.param else LLAMA_8B))
    engine = {**ENGINE, "model": str(folder / "model"), **MODES[request.param]}
    config = {**WORKLOAD, "engine": engine, "kv_events_ports": [free_port(), free_port()]}
    script = [sys.executable, str(HERE / "offline.py"), json.dumps(config), str(folder / "truth.json")]
    runner = "v1" if "v1" in request.param else "v2"
    options = ["--layers", "all"] if "all-layers" in request.param else []
    done = kvtrace("record", *options, "-o", folder / "run", "--", *script, env=gpu_environment(runner), timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    recorded = ingested(folder / "run", json.loads((folder / "truth.json").read_text()), done.stderr)
    mode = "piecewise" if "piecewise" in request.param else "full"
    recorded.truth.update(latent="mla" in request.param, all_layers="all-layers" in request.param, mode=mode)
    kernels = "" if "mla" in request.param else next((name for name in BY_KERNELS if name in request.param), "")
    recorded.truth.update(runner=runner, kernels=kernels)
    yield recorded


def gpu_environment(runner: str) -> dict[str, str]:
    """Of a launch with one of vLLM's two model runners."""
    return vllm_environment(VLLM_LOGGING_LEVEL="ERROR", VLLM_USE_V2_MODEL_RUNNER=str(int(runner == "v2")))


def runners_of(recorded: Recorded) -> set[str]:
    """The model runners that ran."""
    fired = {hook for process in open_recording(recorded.run).processes for hook in process.fired}
    return {name for name, module in RUNNERS.items() if f"{module}:GPUModelRunner.execute_model" in fired}


def test_the_model_runner_that_was_asked_for_ran(recorded: Recorded) -> None:
    assert runners_of(recorded) == {recorded.truth["runner"]}


def test_every_step_has_both_windows_of_every_layer(recorded: Recorded) -> None:
    [(steps,)] = rows(recorded, "SELECT count(*) FROM step WHERE scheduled_tokens > 0")
    per_step = rows(recorded, "SELECT step, count(DISTINCT (layer, kind)), count(*) FROM kv_window GROUP BY step")
    assert len(per_step) == steps > 100
    assert {(distinct, count) for _, distinct, count in per_step} == {(2 * LAYERS, 2 * LAYERS)}


def test_in_graphs_some_layers_are_observed_and_all_elsewhere_and_all_by_kernels(recorded: Recorded) -> None:
    everywhere, in_graphs = set(range(LAYERS)), set(range(LAYERS)) if recorded.truth["all_layers"] else IN_GRAPHS
    by_kernels = BY_KERNELS.get(recorded.truth["kernels"], set())
    found = rows(
        recorded,
        """
        SELECT f.graph_mode IN ('full', 'piecewise'), w.step, w.kind::VARCHAR, list(w.layer) FILTER (w.observed)
        FROM kv_window w JOIN forward f USING (process_id, engine_id, step) GROUP BY ALL
        """,
    )
    assert {kind for *_, kind, _ in found} == {"write", "attention"}
    for graph, step, kind, layers in found:
        wanted = in_graphs if graph and kind not in by_kernels else everywhere
        assert sorted(layers) == sorted(wanted), (graph, step, kind)
    told = {None if kinds is None else frozenset(kinds.split(", ")) for (kinds,) in rows(
        recorded, "SELECT DISTINCT in_kernel FROM kv_layer")}  # fmt: skip
    assert told == {frozenset(by_kernels) or None}


def test_derived_windows_are_close_to_observed_ones(recorded: Recorded) -> None:
    """On a GPU that serves no other process meanwhile: it would take turns, within a step's layers."""
    if not recorded.truth["all_layers"]:
        pytest.skip("needs windows that were all observed")
    found = compare(recorded.run / "trace.duckdb", SPACING)
    print(*found, sep="\n")
    assert {row[1] for row in found} == {"attention", "write"} - BY_KERNELS.get(recorded.truth["kernels"], set())
    # Python launches piecewise graphs one by one, not as evenly as the GPU goes through a full one: in the median a
    # window is to be well within its own layer there.
    [(layer_ns,)] = rows(
        recorded,
        """
        SELECT coalesce(quantile_cont(layer_ns, 0.5), 0) FROM (
            SELECT (max(w.start_ns) - min(w.start_ns)) / max(w.layer) AS layer_ns
            FROM kv_window w JOIN forward f USING (process_id, engine_id, step)
            WHERE w.kind = 'attention' AND f.graph_mode = 'piecewise' GROUP BY w.step
        )
        """,
    )
    print("from layer to layer", layer_ns)
    within_ns = {"full": 2000, "piecewise": layer_ns / 4}
    for mode, _, count, _, *far in found:
        assert count > 1000 or mode != recorded.truth["mode"]
        assert all(p50 < within_ns[mode] for p50, _ in far)


def assert_windows_in_order(recorded: Recorded) -> None:
    overlapping = rows(
        recorded,
        """
        SELECT step, layer, kind FROM (
            SELECT step, layer, kind, start_ns, end_ns,
                lead(start_ns) OVER (PARTITION BY step ORDER BY layer, kind) AS next
            FROM kv_window
        ) WHERE end_ns < start_ns OR end_ns > next
        """,
    )
    assert overlapping == []
    outside = rows(
        recorded,
        "SELECT w.step FROM kv_window w JOIN step s USING (engine_id, step) "
        "WHERE w.start_ns < s.start_ns OR w.end_ns > s.update_ns",
    )
    assert outside == []


def test_windows_follow_each_other_and_lie_between_scheduling_and_results(recorded: Recorded) -> None:
    assert_windows_in_order(recorded)


def test_accesses_cover_every_token_of_every_request(recorded: Recorded) -> None:
    wrong = rows(
        recorded,
        """
        WITH have AS (
            SELECT step, request, count(*) AS blocks, count_if(written) AS written FROM step_block GROUP BY ALL
        )
        SELECT r.step, r.request FROM step_request r LEFT JOIN have h USING (step, request), engine e
        WHERE coalesce(h.blocks, 0) <> ceil((r.computed_tokens + r.scheduled_tokens) / e.block_size_tokens)
           OR h.written <> h.blocks - r.computed_tokens // e.block_size_tokens
        """,
    )
    assert wrong == []


def test_blocks_and_preemptions_equal_vllms_own(recorded: Recorded) -> None:
    for op, event in (("cache", "stored"), ("evict", "removed")):
        found = rows(recorded, f"SELECT block_hash, count(*) FROM block_event WHERE op = '{op}' GROUP BY 1")
        assert Counter(dict(found)) == Counter(dict(recorded.truth["events"][event])), op
    [(preemptions,)] = rows(recorded, "SELECT count(*) FROM request_event WHERE op = 'preempt'")
    assert preemptions == recorded.truth["counters"]["vllm:num_preemptions"] > 0


def test_the_gpus_clock_is_known_to_a_few_microseconds(recorded: Recorded) -> None:
    [(host, event)] = rows(recorded, "SELECT max(uncertainty_ns), max(event_uncertainty_ns) FROM gpu_clock")
    print("the GPU's timer is known to", host, "ns, the time of events to", event, "ns")
    assert 0 < host < 5000
    assert 0 < event < 5000


def test_the_gpus_memory_is_told(recorded: Recorded) -> None:
    found = recorded.trace.sql("SELECT * EXCLUDE process_id FROM gpu_memory", format="arrow").to_pylist()
    print(found)
    assert found
    for memory in found:
        assert memory["free_bytes"] < memory["total_bytes"]
        assert memory["allocated_bytes"] <= memory["reserved_bytes"]
        assert memory["reserved_bytes"] <= memory["total_bytes"] - memory["free_bytes"]
        assert memory["allocated_bytes"] > 1 << 30


def test_nothing_failed(recorded: Recorded) -> None:
    assert rows(recorded, "SELECT * FROM hook WHERE state = 'disabled'") == []
    assert rows(recorded, "SELECT * FROM stream WHERE dropped > 0 OR torn > 0") == []
    kernels, said = recorded.truth["kernels"], recorded.record_stderr
    assert f"KV windows of {LAYERS} layers" in said
    assert ("observed in the kernels" in said) is (kernels == "triton")
    assert ("attention observed in its kernels, writes by stamps" in said) is (kernels in ("fa4", "flashinfer"))
    stamps_in_graphs = not recorded.truth["all_layers"] and kernels != "triton"
    assert (f"with CUDA graphs of {len(IN_GRAPHS)}" in said) is stamps_in_graphs


def test_a_tokens_bytes_follow_from_the_kv_tensors(recorded: Recorded) -> None:
    """kv-bandwidth: a layer keeps 2 x 8 heads x 128 numbers of 2 bytes a token, or one latent vector."""
    token_bytes = 2 * (LATENT if recorded.truth["latent"] else 2 * LLAMA_8B["num_key_value_heads"] * 128)
    tokens = dict(
        rows(
            recorded,
            """
            SELECT layer, sum(computed_tokens + scheduled_tokens)
            FROM kv_window JOIN step_request USING (engine_id, step) WHERE observed AND kind = 'attention'
            GROUP BY layer
            """,
        )
    )
    found = recorded.trace.query("kv-bandwidth", format="arrow").to_pylist()
    read = {layer: sum(row["bytes"] for row in found if (row["layer"], row["kind"]) == (layer, "read"))
            for layer in range(LAYERS)}  # fmt: skip
    assert read == {layer: tokens[layer] * token_bytes for layer in range(LAYERS)}
    assert all(0 < row["gb_per_s"] < 20_000 for row in found if row["batch"] == "decode")


def test_blocks_idle_while_other_layers_compute(recorded: Recorded) -> None:
    found = recorded.trace.query("block-idle", format="arrow").to_pylist()
    assert [row["layer"] for row in found] == [None, *range(LAYERS)]
    assert {row["basis"] for row in found} == {"window"}
    whole = found[0]["touched_block_seconds"]
    assert abs(sum(row["touched_block_seconds"] for row in found[1:]) - whole) < 1e-6 * whole
    assert all(0 < row["idle_within_share"] < 1 and 0 <= row["idle_between_share"] < 1 for row in found)
