"""Rewritten attention and cache-write kernels, in Triton's interpreter: what they record against plain Python.

vLLM's kernels come from the installed version, and from those in KVTRACE_VLLM_SOURCES (folders that hold `vllm/`,
separated by colons), which `make` downloads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtrace.ingest.derive.tile_columns import StepTiles, block_ids, block_tokens, from_sections, tile_tokens, times
from kvtrace.probes.device.tiles import layout
from tests.probes.tiles.versions import KERNELS, distinct, version_folders

SCRIPT = Path(__file__).with_name("interpreted.py")
TICK_NS = 1 << layout.TICK_SHIFT
LAYER, LISTS, SUMS = 3, 1 << 16, 1 << 8

CASES: dict[str, dict[str, Any]] = {
    "mixed batch, 2D": {
        "lengths": [5, 40, 33, 70], "queries": [5, 1, 9, 40], "heads": 2, "block_size": 16, "tile_size": 32,
        "is_3d": False,
    },
    "decode, 3D": {
        "lengths": [5, 40, 133], "queries": [1, 1, 1], "heads": 2, "block_size": 16, "tile_size": 16, "is_3d": True,
    },
    "blocks of two tiles": {
        "lengths": [5, 40, 33], "queries": [1, 7, 33], "heads": 2, "block_size": 32, "tile_size": 16, "is_3d": False,
    },
    "sliding window": {
        "lengths": [60, 130], "queries": [4, 1], "heads": 1, "block_size": 16, "tile_size": 16, "is_3d": False,
        "sliding_window": 24,
    },
    "one head": {
        "lengths": [40, 20], "queries": [1, 1], "heads": 4, "block_size": 16, "tile_size": 16, "is_3d": False,
        "head_bits": 0b0100, "first_head": 2,
    },
}  # fmt: skip
WRITES: dict[str, dict[str, Any]] = {
    "padded": {"slots": [3, 17, -1, 40], "heads": 2, "block_size": 16, "blocks": 5, "parts": 1},
    "in two parts": {"slots": [79, 0], "heads": 2, "block_size": 16, "blocks": 5, "parts": 2},
}
QUERIES_A_PROGRAM = 8
LEFT_OUT = {f"{name}: left out": name for name in ("mixed batch, 2D", "decode, 3D", "padded")}
"""Cases in a step that is not to be recorded: it has no room at all."""
OBSERVED = [*CASES, *WRITES]
OUTPUTS = {"windows": ["windows"], "both": ["tiles", "windows"]}


def tables(case: dict[str, Any]) -> list[list[int]]:
    """Block tables that share no block but the first, in no order; unused entries are 0."""
    generator = np.random.default_rng(7)
    needed = [-(-length // case["block_size"]) for length in case["lengths"]]
    ids = iter(generator.permutation(np.arange(1, 200)).tolist())
    # the interpreter loads a whole tile's entries, those beyond the sequence too
    return [[next(ids) for _ in range(n)] + [0] * (max(needed) + 4 - n) for n in needed]


def run(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(folder / "vllm/v1/attention/ops")],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def step_of(facts: dict[str, Any]) -> StepTiles:
    return from_sections([bytes.fromhex(section) for section in facts["sections"]], facts["tile_origin"])


@pytest.fixture(
    scope="module",
    params=distinct(version_folders(), *KERNELS) or ["none"],
    ids=lambda folder: getattr(folder, "name", folder),
)
def outcomes(request: pytest.FixtureRequest) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    if request.param == "none" or importlib.util.find_spec("triton") is None:
        pytest.skip("needs vLLM's sources and Triton")
    cases = {
        name: case
        | {"tables": tables(case), "blocks": 200, "what": LAYER | (LISTS | SUMS) * (case.get("first_head", 0) + 1)}
        for name, case in CASES.items()
    }
    cases["no room"] = cases["mixed batch, 2D"] | {"room": 10}
    cases["another layer"] = cases["mixed batch, 2D"] | {"what": 4 | SUMS}
    cases |= {name: case | {"what": LAYER} for name, case in WRITES.items()}
    cases |= {name: cases[like] | {"room": 0} for name, like in LEFT_OUT.items()}
    cases |= {f"{name}: {form}": cases[name] | {"outputs": OUTPUTS[form]} for name in OBSERVED for form in OUTPUTS}
    return {
        name: (case, facts)
        for (name, case), facts in zip(cases.items(), run(request.param, list(cases.values())), strict=True)
    }


def touched(case: dict[str, Any]) -> dict[tuple[int, int, int], set[int]]:
    """By row, query block and head: the tiles attention must look at."""
    tile, window, found = case["tile_size"], case.get("sliding_window", 0), {}
    for row, (length, queries) in enumerate(zip(case["lengths"], case["queries"], strict=True)):
        context = length - queries
        for query_block in range(-(-queries // QUERIES_A_PROGRAM)):
            first = query_block * QUERIES_A_PROGRAM
            last = min(first + QUERIES_A_PROGRAM, queries) - 1
            lowest = max(0, context + first - window + 1) if window else 0
            tiles = {token // tile for token in range(lowest, context + last + 1)}
            for head in range(case["heads"]):
                if case.get("head_bits", -1) >> head & 1:
                    found[row, query_block, head] = tiles
    return found


ALL = [*OBSERVED, *LEFT_OUT, "no room", "another layer", *(f"{name}: {form}" for name in OBSERVED for form in OUTPUTS)]


@pytest.mark.parametrize("name", ALL)
def test_recording_changes_no_result(outcomes, name: str) -> None:
    assert outcomes[name][1]["same"]


IN_STATEMENTS = """
        m_j = tl.maximum(M, tl.max(S, axis=1))
        safe = tl.where(m_j > float("-inf"), m_j, 0.0)
        P = tl.exp(S - safe[:, None])
        alpha = tl.exp(M - safe)
        L = L * alpha + tl.sum(P, axis=1)
        M = m_j
"""


def test_a_loop_with_the_softmax_in_statements_is_recorded_as_well(outcomes, tmp_path: Path) -> None:
    """As vLLM's kernel had it before it called a function."""
    ops = tmp_path / "vllm/v1/attention/ops"
    ops.mkdir(parents=True)
    for path in KERNELS:
        text = (version_folders()[0] / path).read_text()
        (tmp_path / path).write_text(text.replace("\n        M, L, P, alpha = softmax_step(S, M, L)\n", IN_STATEMENTS))
    assert IN_STATEMENTS in (ops / "triton_unified_attention.py").read_text()
    case, facts = outcomes["mixed batch, 2D"]
    (found,) = run(tmp_path, [case])
    assert found["same"]
    ours, theirs = step_of(found), step_of(facts)
    assert np.array_equal(ours.ticks, theirs.ticks)
    for name in ("row", "query_block", "head", "first_tile", "tiles"):
        assert np.array_equal(ours.programs[name], theirs.programs[name]), name


@pytest.mark.parametrize("name", CASES)
def test_every_tile_that_attention_needs_is_recorded_once(outcomes, name: str) -> None:
    case, facts = outcomes[name]
    step = step_of(facts)
    found: dict[tuple[int, int, int], list[int]] = {}
    for program in step.programs:
        key = int(program["row"]), int(program["query_block"]), int(program["head"])
        first = int(program["first_tile"])
        found.setdefault(key, []).extend(range(first, first + int(program["tiles"])))
        assert program["layer"] == LAYER
    assert set(tile_tokens(step.programs)) == {case["tile_size"]}
    assert set(block_tokens(step.programs)) == {case["block_size"]}
    assert {key: sorted(tiles) for key, tiles in found.items()} == {k: sorted(v) for k, v in touched(case).items()}


@pytest.mark.parametrize("name", CASES)
def test_the_blocks_are_those_of_the_block_table(outcomes, name: str) -> None:
    case, facts = outcomes[name]
    step = step_of(facts)
    a_tile = max(1, case["tile_size"] // case["block_size"])
    unit = min(case["tile_size"], case["block_size"])
    listed = block_ids(step)
    for row, index, block in zip(
        step.programs["row"][listed.program], listed.block_index, listed.block_id, strict=True
    ):
        assert block == case["tables"][row][index * unit // case["block_size"]]
    first_head = case.get("first_head", 0)
    for program in step.programs:
        has_sum = program["head"] == first_head
        assert program["flags"] & 3 == (3 if has_sum else 0)
        tiles = range(int(program["first_tile"]) * a_tile, int(program["first_tile"] + program["tiles"]) * a_tile)
        last_token = (
            case["lengths"][program["row"]]
            - case["queries"][program["row"]]
            + min((int(program["query_block"]) + 1) * QUERIES_A_PROGRAM, case["queries"][program["row"]])
        )
        expected = sum(
            case["tables"][program["row"]][index * unit // case["block_size"]] * (2 * index + 1)
            for index in tiles
            if index * unit < last_token
        )
        assert program["sum"] == (expected % 2**32 if has_sum else 0)


@pytest.mark.parametrize("name", CASES)
def test_times_follow_the_clock(outcomes, name: str) -> None:
    _, facts = outcomes[name]
    found = times(step_of(facts))
    # Programs run one after the other, and each reads the clock once at its start, once a K, once a V.
    order = np.lexsort((found.tile, found.k_start_ns))
    assert (found.v_ns[order] > found.k_ns[order]).all()
    assert (found.k_ns[order] > found.k_start_ns[order]).all()
    assert (found.k_start_ns[order][1:] >= found.v_ns[order][:-1]).all()
    assert found.v_ns.max() <= facts["ended"]
    assert found.k_start_ns.min() > facts["begun"]


def test_a_program_without_room_writes_nothing_and_is_counted(outcomes) -> None:
    _, facts = outcomes["no room"]
    _, whole = outcomes["mixed batch, 2D"]
    assert facts["counts"] == whole["counts"]
    programs = step_of(facts).programs
    assert 0 < np.count_nonzero(programs["tiles"]) < len(programs)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_step_that_is_left_out_is_not_even_counted(outcomes, name: str) -> None:
    assert not any(outcomes[name][1]["counts"])


def test_only_the_first_layer_lists_blocks(outcomes) -> None:
    _, facts = outcomes["another layer"]
    step = step_of(facts)
    assert set(step.programs["flags"] & 3) == {0, 1}
    assert set(step.programs["layer"]) == {4}
    assert len(block_ids(step).block_id) == 0


@pytest.mark.parametrize("name", WRITES)
def test_written_slots_are_the_slot_mapping(outcomes, name: str) -> None:
    case, facts = outcomes[name]
    writes = step_of(facts).writes
    expected = [(t, p, s) for t, s in enumerate(case["slots"]) for p in range(case["parts"]) if s >= 0]
    assert sorted(zip(writes["token"], writes["part"], writes["slot"], strict=True)) == expected
    assert set(writes["layer"]) == {LAYER}
    assert (writes["k_ticks"] > 0).all()
    assert (writes["v_ticks"] > 0).all()


def window(facts: dict[str, Any], place: int) -> tuple[int, int]:
    """A window's first and last time, of the one layer that ran; no other word has been written."""
    words = facts["windows"]
    at = LAYER * layout.WINDOW_WORDS + place
    assert {index for index, word in enumerate(words) if word} == {at, at + 1}
    return ~words[at], words[at + 1]


@pytest.mark.parametrize("name", OBSERVED)
def test_a_window_runs_from_the_first_program_to_the_last_and_no_tile_is_recorded(outcomes, name: str) -> None:
    """The clock is read twice a program, and by nobody else: programs run one after the other."""
    case, facts = outcomes[f"{name}: windows"]
    first, last = window(facts, layout.WRITE_WINDOW if name in WRITES else layout.ATTENTION_WINDOW)
    assert facts["begun"] < first < last == facts["ended"]
    assert first == facts["begun"] + TICK_NS
    if name in WRITES:
        assert (last - facts["begun"]) // TICK_NS == 2 * case["parts"] * sum(slot >= 0 for slot in case["slots"])
    assert not any(facts["counts"])


@pytest.mark.parametrize("name", OBSERVED)
def test_a_window_contains_the_tiles_that_are_recorded_beside_it(outcomes, name: str) -> None:
    _, alone = outcomes[name]
    _, facts = outcomes[f"{name}: both"]
    first, last = window(facts, layout.WRITE_WINDOW if name in WRITES else layout.ATTENTION_WINDOW)
    assert facts["counts"] == alone["counts"]
    step = step_of(facts)
    if name in WRITES:
        start = step.writes["start"].astype(np.int64)
        end = start + (step.writes["k_ticks"].astype(np.int64) + step.writes["v_ticks"]) * TICK_NS
    else:
        found = times(step)
        start, end = found.k_start_ns, found.v_ns
    assert first < start.min()
    assert end.max() < last


def test_windows_are_none_where_tiles_alone_are_recorded(outcomes) -> None:
    assert not any(any(outcomes[name][1]["windows"]) for name in OBSERVED)
