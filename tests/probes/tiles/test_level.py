"""Steps that a device opens: those that the filters keep, each until it ends."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from kvtrace.capture.tile_options import TileOptions
from kvtrace.probes.device.tiles.drain import RateLimit, TileDrain
from kvtrace.probes.device.tiles.kernels import install, keep_windows, unfit, untried
from kvtrace.probes.device.tiles.launch import Current
from kvtrace.probes.device.tiles.level import TileRecorder, _told


class Drain(TileDrain):
    """Without a device."""

    def __init__(self) -> None:
        self.filtered = 0

    rate_bytes = 0


class Ring:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def open(self, stream: int, *, enabled: bool) -> None:
        self.told.append("open" if enabled else "forget")

    def close(self, step: int, stream: int, *, filtered: int) -> None:
        self.told.append((step, filtered))


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in TileOptions(every=3).to_environment().items():
        monkeypatch.setenv(name, value)
    made: Any = TileRecorder(None)  # type: ignore[arg-type]
    made._ring, made._current, made._limit = Ring(), Current(None, -1), RateLimit(None)
    made._drain = Drain()
    made._stream, made._device, made._alive = (lambda device: 7), 0, True
    return made


def run(level: Any, step: int, *, ends: bool = True) -> bool:
    """A pass of a step; whether its kernels may be vLLM's own."""
    level.begin(step, 1)
    left_out = bool(level._current.left_out)
    if ends:
        level.end()
    return left_out


def test_only_wanted_steps_get_to_the_device(level: Any) -> None:
    assert [run(level, step) for step in range(1, 8)] == [True, True, False, True, True, False, True]
    assert level._ring.told == ["open", (3, 2), "open", (6, 4)]
    assert level._drain.filtered == 5


def test_a_dummy_run_is_no_step_and_compiles_what_steps_need(level: Any) -> None:
    run(level, 3)
    assert not run(level, 0)
    assert level._ring.told == ["open", (3, 0)]
    assert level._drain.filtered == 0


@pytest.mark.parametrize("following", [0, 4])
def test_a_step_that_did_not_end_is_forgotten(level: Any, following: int) -> None:
    run(level, 3, ends=False)
    run(level, following)
    run(level, 6)
    assert level._ring.told == ["open", "forget", "open", (6, int(following == 4))]


def layers_of(name: str, version: int | None) -> list[Any]:
    implementation = type(name, (), {} if version is None else {"vllm_flash_attn_version": version})()
    return [("0", type("Layer", (), {"impl": implementation})())]


@pytest.mark.parametrize(
    ("name", "version", "capability", "advice"),
    [
        ("TritonAttentionImpl", None, 9, None),
        ("FlashAttentionImpl", 4, 9, None),
        (
            "FlashAttentionImpl",
            4,
            10,
            "never ran on such a GPU, and KVTRACE_UNTRIED_KERNELS=1 tries that: start.*TRITON_ATTN",
        ),
        (
            "FlashAttentionImpl",
            4,
            12,
            "cannot be rewritten for this GPU: start vLLM with --attention-backend TRITON_ATTN",
        ),
        ("FlashAttentionImpl", 3, 9, "FlashAttention 3.*--attention-config '{\"flash_attn_version\": 4}'"),
        ("FlashAttentionImpl", 2, 8, "FlashAttention 2.*attention_backend='TRITON_ATTN'\\)$"),
        ("FlashInferImpl", None, 9, None),
        ("FlashInferImpl", None, 10, "FlashInfer's kernels, once rewritten, never ran on such a GPU.*TRITON_ATTN"),
        ("FlashInferImpl", None, 8, "KVTRACE_UNTRIED_KERNELS=1"),
        ("FlashInferImpl", None, 12, "FlashInfer's kernels cannot be rewritten for this GPU: start.*TRITON_ATTN"),
        ("CutlassMLAImpl", None, 10, "CutlassMLAImpl, whose kernels cannot be rewritten.*TRITON_ATTN"),
    ],
)
def test_kernels_that_cannot_record_are_told_with_those_that_can(
    monkeypatch: pytest.MonkeyPatch, name: str, version: int | None, capability: int, advice: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
    why = unfit(layers_of(name, version))
    assert (why is None) if advice is None else re.search(advice, why or "")


@pytest.mark.parametrize(
    ("name", "version", "capability", "asked", "runs", "told"),
    [
        ("FlashAttentionImpl", 4, 10, "1", True, True),
        ("FlashAttentionImpl", 4, 10, "0", False, True),
        ("FlashAttentionImpl", 4, 10, None, False, True),
        ("FlashAttentionImpl", 4, 9, "1", True, False),
        ("FlashAttentionImpl", 4, 12, "1", False, False),
        ("FlashAttentionImpl", 2, 8, "1", False, False),
        ("TritonAttentionImpl", None, 10, None, True, False),
        ("FlashInferImpl", None, 10, "1", True, True),
        ("FlashInferImpl", None, 8, "1", True, True),
        ("FlashInferImpl", None, 10, None, False, True),
        ("FlashInferImpl", None, 9, None, True, False),
    ],
)
def test_kernels_that_never_ran_on_a_gpu_run_where_somebody_asks_and_are_told(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: int | None,
    capability: int,
    asked: str | None,
    runs: bool,
    told: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
    monkeypatch.delenv("KVTRACE_UNTRIED_KERNELS", raising=False)
    if asked is not None:
        monkeypatch.setenv("KVTRACE_UNTRIED_KERNELS", asked)
    layers = layers_of(name, version)
    assert (unfit(layers) is None, keep_windows(layers)) == (runs, runs)
    assert bool(untried(layers)) == told


@pytest.mark.parametrize(
    ("major", "facts", "why"),
    [
        (9, {"window_left": -1, "kv_cache_dtype": "auto", "sinks": None, "dcp_world_size": 1}, None),
        (9, {"supports_xqa_or_trtllm_gen_decode": True}, "reads with XQA.* or --attention-config '{\"use_trtllm_atten"),
        (9, {"kv_cache_dtype": "fp8_e4m3"}, "16 bits only: start vLLM with --attention-backend TRITON_ATTN"),
        (9, {"sinks": [1.0]}, "with attention sinks"),
        (9, {"window_left": 4095}, "with a sliding window"),
        (9, {"dcp_world_size": 2}, "where GPUs share a sequence"),
        (9, {"num_kv_heads": 8, "head_size": 64}, None),
        (9, {"num_kv_heads": 4, "head_size": 64}, "blocks of 64 tokens do not fit"),
        (10, {"num_kv_heads": 4, "head_size": 64}, None),
        (8, {"num_kv_heads": 2, "head_size": 64}, "blocks of 128 tokens do not fit.*16, 32, 64 do"),
        (10, {"supports_xqa_or_trtllm_gen_decode": True}, 'or trtllm-gen.*{"use_trtllm_attention": false}'),
    ],
)
def test_what_flashinfer_runs_decides_if_its_kernels_record(
    monkeypatch: pytest.MonkeyPatch, major: int, facts: dict[str, object], why: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (major, 0))
    monkeypatch.setenv("KVTRACE_UNTRIED_KERNELS", "1")
    layers = layers_of("FlashInferImpl", None)
    vars(layers[0][1].impl).update(facts)
    layers[0][1].kv_cache = torch.zeros(3, 8, 32, 2 * 64)
    said = unfit(layers)
    assert (said is None) if why is None else re.search(why, said or "")


@pytest.mark.parametrize(
    ("told", "addresses", "why"),
    [
        ({0: 1 << 8 | 1 << 16, 1: 1 | 1 << 8}, [64, 64], "layers share one"),
        ({0: 1 << 8 | 1 << 16, 1: 1 | 1 << 8 | 1 << 16}, [64, 128], "the model has several"),
        ({}, [64, 128], "no layer"),
    ],
)
def test_caches_that_do_not_tell_layers_apart_are_refused(told: dict[int, int], addresses: list[int], why: str) -> None:
    implementation = type("FlashInferImpl", (), {})()
    layers: Any = []
    for address in addresses:
        cache = type("Cache", (), {"data_ptr": lambda self, a=address: a, "stride": lambda self: (1,)})()
        cache.shape, cache.dtype = (1,), torch.bfloat16
        layers.append((str(address), type("Layer", (), {"impl": implementation, "kv_cache": cache})()))
    installed = install(layers, told, Current(None), frozenset({"read"}), pytest.fail)
    assert not installed.kinds
    assert len(installed.problems) == 1
    assert why in installed.problems[0]


def test_layers_to_record_are_told_by_their_head_and_group() -> None:
    options = TileOptions(layers=(1, 3), heads=(2, 5))
    told = _told(layers_of("A", None) * 4, options, {1})
    assert told == {1: 1 | 3 << 8 | 3 << 16, 3: 3 | 3 << 8}
