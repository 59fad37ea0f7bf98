"""Rewritten kernels compile for real GPUs, and in their machine code the timer is read where it is meant to be."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probes.tiles.versions import KERNELS, distinct, version_folders

SCRIPT = Path(__file__).with_name("compiled.py")
pytestmark = pytest.mark.kernels


@pytest.fixture(
    scope="module",
    params=distinct(version_folders(), *KERNELS) or ["none"],
    ids=lambda folder: getattr(folder, "name", folder),
)
def facts(request: pytest.FixtureRequest) -> list[dict]:
    if request.param == "none" or importlib.util.find_spec("triton") is None:
        pytest.skip("needs vLLM's sources and Triton")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(request.param / "vllm/v1/attention/ops")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_all_kernels_compile_for_both_architectures(facts: list[dict]) -> None:
    facts = [fact for fact in facts if "architecture" in fact]
    found = {(fact["kernel"], fact["architecture"], fact["output"]) for fact in facts}
    names = ("attention 2D", "attention 3D", "cache write")
    assert found == set(itertools.product(names, (80, 90), ("tiles", "windows")))
    assert all(fact["bytes"] > fact["bytes_before"] for fact in facts)


def test_k_is_timed_between_its_product_and_vs_and_v_before_the_next_wait(facts: list[dict]) -> None:
    """Warps issue in order: a timer read behind a product is read when that product's operands have arrived."""
    for fact in facts:
        if "loop" in fact and fact["output"] == "tiles":
            events = [event for event, _ in itertools.groupby(fact["loop"])]
            assert events == ["timer", "store", "wait", "product", "timer", "product"], fact


def test_a_launch_compares_no_constants_with_what_they_were(facts: list[dict]) -> None:
    """Triton would, at each launch outside a graph: with twenty constants that takes 17 us, the rest of it 43."""
    assert {fact["compared"] for fact in facts if "compared" in fact} == {0}


def test_the_maximum_that_ks_time_waits_for_is_computed_once(facts: list[dict]) -> None:
    """It stands in front of vLLM's function, which has it as well: threads exchange as much as without."""
    for fact in facts:
        if "loop" in fact:
            assert fact["shuffles"] == fact["shuffles_before"] > 0, fact


def test_a_window_takes_two_reads_of_the_timer_and_two_atomics_outside_the_loop(facts: list[dict]) -> None:
    for fact in facts:
        if fact.get("output") == "windows":
            assert fact["timer"] == fact["atomics"] == 2, fact
            assert {"timer", "store"}.isdisjoint(fact.get("loop", [])), fact


def test_on_hopper_a_window_takes_no_registers(facts: list[dict]) -> None:
    """Elsewhere some, where it is held to vLLM's number."""
    for fact in facts:
        if fact.get("output") == "windows" and fact["architecture"] == 90 and "attention" in fact["kernel"]:
            assert fact["registers"] <= fact["registers_before"], fact


def test_held_to_vllms_registers_hardly_anything_in_the_loop_is_spilled(facts: list[dict]) -> None:
    """Three loads a tile with Triton 3.8 on Hopper, where vLLM's kernel has 80 registers (docs/device-recorder.md)."""
    spilled = {(fact["architecture"], fact["output"]): fact["spills_in_loop"] for fact in facts if "loop" in fact}
    assert len(spilled) == 4
    assert all(count <= (3 if made == (90, "tiles") else 0) for made, count in spilled.items()), spilled


def test_no_request_waits_for_the_compiler(facts: list[dict]) -> None:
    """Triton's kernels for a lone sequence, for multiples of 16 and for other numbers are there at the first launch."""
    assert [fact["numbers"] for fact in facts if "later" in fact["kernel"]] == [[]]
