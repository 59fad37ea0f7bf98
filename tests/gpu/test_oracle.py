"""On a GPU with vLLM: the addresses that attention kernels access, against block tables and against recorded tiles.

    pip install nvidia-cuda-sanitizer-api
    python -m pytest tests/gpu/test_oracle.py -rP

NVIDIA's Sanitizer API notes each access to the KV cache (`tests/gpu/oracle`), and kvtrace records the same steps. Two
layers of Llama-3.1-8B's shape, without CUDA graphs: prefix caching, chunked prefill, mixed batches.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gpu import has_gpu, oracle
from tests.gpu.test_tiles import NEEDED
from tests.gpu.test_windows import ENGINE, FA4, LLAMA_8B, gpu_environment
from tests.vllm.conftest import Recorded, ingested, kvtrace, rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu("vllm"), reason="needs a CUDA device, vLLM and CuPy"),
    pytest.mark.skipif(oracle.why_not() is not None, reason=str(oracle.why_not())),
]

LAYERS, BLOCK, HEADS, PARTS = 2, ENGINE["block_size"], LLAMA_8B["num_key_value_heads"], 2
ROW_BYTES = LLAMA_8B["head_dim"] * 2
"""Of a token's K, or V, in a layer and head: each is accessed as a whole, so its first address stands for it."""

KEY, VALUE = 0, 1
WRITE = 2
WORKLOAD = {"sessions": 5, "turns": 2, "shared_tokens": 100, "output_tokens": 6, "granule_bytes": ROW_BYTES}


class Kernels(NamedTuple):
    """Attention kernels that are watched."""

    engine: dict[str, Any]
    names: str
    """Parts of the names of kernels that access the KV cache."""
    tile_tokens: int
    forward: float
    """Of the times that a program goes on to another tile: the share that is further on in the sequence, about."""
    records_tiles: bool = True
    needs: str | None = None


FA3 = {"attention_backend": "FLASH_ATTN", "attention_config": {"flash_attn_version": 3}}
KERNELS = {
    "fa3": Kernels(FA3, "flash", 128, 0.0, records_tiles=False),
    "fa4": Kernels(FA4, "FlashAttentionForward,flash", 128, 0.0, needs="cutlass"),
    "triton": Kernels({"attention_backend": "TRITON_ATTN"}, "kernel_unified_attention", 32, 1.0),
}


class Watched(NamedTuple):
    """A recorded run and what the oracle saw of it."""

    recorded: Recorded
    kernels: Kernels
    accesses: Any
    """Arrays by name: step, layer, block, token (in its block), head, part (K or V), write, launch, program, clock."""


@pytest.fixture(scope="module", params=KERNELS)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    kernels = KERNELS[request.param]
    if kernels.needs and importlib.util.find_spec(kernels.needs) is None:
        pytest.skip(f"needs {kernels.needs}")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": LAYERS}))
    engine = {**ENGINE, "model": str(folder / "model"), "enforce_eager": True, **kernels.engine}
    engine["max_num_batched_tokens"] = 256
    config = json.dumps({**WORKLOAD, "engine": engine})
    script = [sys.executable, str(Path(oracle.__file__).with_name("engine.py")), config, str(folder / "accesses.npz")]
    environment = {**gpu_environment("v2"), **oracle.build(folder), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environment["ORACLE_KERNELS"] = f"{kernels.names},reshape_and_cache"
    level = "tile" if kernels.records_tiles else "layer"
    done = kvtrace("record", "-o", folder / "run", "--kv-level", level, "--", *script, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    recorded = ingested(folder / "run", {}, done.stderr, *(["--all-tiles"] if kernels.records_tiles else []))
    yield Watched(recorded, kernels, _accesses(folder / "accesses.npz", recorded))


def _accesses(path: Path, recorded: Recorded) -> dict[str, Any]:
    """Name the places in the cache, and number launches by the step in which they ran."""
    import numpy as np

    found = np.load(path)
    accesses, shapes = found["accesses"], json.loads(str(found["shapes"]))
    assert shapes == [shapes[0]] * LAYERS
    columns = {name: accesses[name].astype(np.int64) for name in ("layer", "launch", "program", "clock")}
    columns["write"] = accesses["how"] >> 16 == WRITE
    columns |= _places(accesses["offset"].astype(np.int64), *shapes[0])
    columns["lane"] = _lane(columns["layer"], columns["head"], columns["part"])
    order = np.argsort(columns["launch"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    passes = np.cumsum(np.diff(columns["layer"], prepend=0) < 0)
    steps = np.array(
        [step for (step,) in rows(recorded, "SELECT step FROM step WHERE scheduled_tokens > 0 ORDER BY step")]
    )
    assert passes[-1] == len(steps) - 1 > 10
    return {**columns, "step": steps[passes]}


def _places(offsets: Any, shape: list[int], strides: list[int]) -> dict[str, Any]:
    """Name the place at an offset of a layer's cache, by the sizes of its dimensions."""
    names = {BLOCK: "token", HEADS: "head", PARTS: "part"}
    places, rest, least = {}, offsets, min(strides)
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda each: -each[1]):
        places["element" if stride == least else names.get(size, "block")] = rest // stride
        rest = rest % stride
    if "part" not in places:  # K and V of a head beside each other
        places["part"] = places["element"] * least // ROW_BYTES
    assert set(places) == {"block", "token", "head", "part", "element"}, (shape, strides)
    return places


def _coded(step: Any, lane: Any, block: Any, token: Any = 0) -> Any:
    """One number for each row."""
    return ((step * 4096 + lane) * 4096 + block) * 4096 + token


def _lane(layer: Any, head: Any, part: Any) -> Any:
    return (layer * HEADS + head) * PARTS + part


LANES = [_lane(layer, head, part) for layer in range(LAYERS) for head in range(HEADS) for part in range(PARTS)]


def _needed(recorded: Recorded) -> Any:
    """Step, position, block, first token after it, by request, as the scheduler knows it."""
    import numpy as np

    return np.array(rows(recorded, f"SELECT step, position, block_id, tokens, scheduled_tokens FROM ({NEEDED})"))


def _tokens(recorded: Recorded, *, new: bool) -> Any:
    """Code every token that a step's requests have, or only those that it computes, in all lanes."""
    import numpy as np

    step, position, block, tokens, scheduled = np.repeat(_needed(recorded), BLOCK, axis=0).T
    token = np.tile(np.arange(BLOCK), len(step) // BLOCK)
    place = position * BLOCK + token
    there = (place < tokens) & (place >= (tokens - scheduled if new else 0))
    return np.concatenate([_coded(step[there], lane, block[there], token[there]) for lane in LANES])


def _found(watched: Watched, wanted: Any, *columns: str) -> Any:
    return _coded(*(watched.accesses[name][wanted] for name in ("step", "lane", "block", *columns)))


def test_a_kernel_reads_the_tokens_of_its_requests_and_no_others(watched: Watched) -> None:
    """K and V of every token of a step's requests, in every layer and head."""
    import numpy as np

    found = np.unique(_found(watched, ~watched.accesses["write"], "token"))
    expected = np.unique(_tokens(watched.recorded, new=False))
    assert len(expected) > 100_000
    missing, beyond = np.setdiff1d(expected, found), np.setdiff1d(found, expected)
    assert (len(missing), len(beyond)) == (0, 0), (len(expected), missing[:3], beyond[:3])


def test_the_new_tokens_are_written_once(watched: Watched) -> None:
    import numpy as np

    found = np.sort(_found(watched, watched.accesses["write"], "token"))
    assert np.array_equal(found, np.sort(_tokens(watched.recorded, new=True)))


def test_recorded_tiles_are_what_was_read(watched: Watched) -> None:
    """The recorded blocks are those whose addresses were read, in every step, layer and head."""
    import numpy as np

    if not watched.kernels.records_tiles:
        pytest.skip("these kernels' tiles are not recorded")
    for kind, part in (("k_read", KEY), ("v_read", VALUE)):
        accesses = f"SELECT DISTINCT step, layer, head, block_id FROM kv_access WHERE kind = '{kind}'"
        step, layer, head, block = np.array(rows(watched.recorded, accesses)).T
        read = ~watched.accesses["write"] & (watched.accesses["part"] == part)
        assert np.array_equal(
            np.unique(_coded(step, _lane(layer, head, part), block)), np.unique(_found(watched, read))
        )


def test_programs_go_through_their_tiles_in_one_order(watched: Watched) -> None:
    """But for warps that are still copying a tile when others have begun the next."""
    import numpy as np

    at = watched.accesses
    positions = {(step, block): position for step, position, block, _, _ in _needed(watched.recorded).tolist()}
    keys = ("clock", "lane", "program", "launch")
    order = np.lexsort([at[name] for name in keys])
    order = order[~at["write"][order]]
    lane, program, launch = (at[name][order] for name in keys[1:])
    blocks = zip(at["step"][order].tolist(), at["block"][order].tolist(), strict=True)
    token = np.array([positions[block] for block in blocks]) * BLOCK + at["token"][order]
    moved = np.diff(token // watched.kernels.tile_tokens)
    moved[(np.diff(lane) != 0) | (np.diff(program) != 0) | (np.diff(launch) != 0)] = 0
    times, forward = (moved != 0).sum(), (moved > 0).sum() / (moved != 0).sum()
    print(f"{len(order)} reads of {ROW_BYTES} bytes; {times} times on to another tile, {forward:.2%} further on")
    assert times > 1000
    assert forward == pytest.approx(watched.kernels.forward, abs=0.05)
