"""FlashAttention 4's kernel: what rewriting inserts, which launches record, and what is read back."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtrace.format.tile_file import FROM_END
from kvtrace.ingest.derive import tile_columns
from kvtrace.probes.device.tiles.fa4 import rewrite
from kvtrace.probes.device.tiles.fa4.launch import RecordingForward
from kvtrace.probes.device.tiles.launch import Current
from kvtrace.probes.device.tiles.source import MismatchError
from tests.beside import beside, python_path
from tests.probes.tiles.versions import version_folders

SCRIPT = Path(__file__).with_name("compiled_fa4.py")
CUTE = "vllm/vllm_flash_attn/cute"
BESIDE = beside("cute")
"""CuTe DSL, if it is there: it is not one of the environment's packages."""
FOLDERS = [folder for folder in version_folders() if (folder / CUTE / "flash_fwd_sm90.py").exists()]
HOPPER, BLACKWELL = rewrite.HOPPER, rewrite.BLACKWELL
INSERTED = {
    HOPPER: {"kvt_inputs": 1, "kvt_prepare": 1, "kvt_begin": 1, "kvt_end": 1, "kvt_key": 3, "kvt_value": 3},
    BLACKWELL: {"kvt_inputs": 1, "kvt_prepare": 1, "kvt_begin": 1, "kvt_end": 1, "kvt_key": 2, "kvt_value": 2},
}
"""On Hopper a tile is finished in the loop, plain or overlapped, and in the halves around an overlapped loop.
On Blackwell the first K is multiplied before the loop, and the last V behind it."""
BOTH = pytest.mark.parametrize("form", [HOPPER, BLACKWELL], ids=["hopper", "blackwell"])


@pytest.fixture(params=FOLDERS or ["none"], ids=lambda folder: getattr(folder, "name", folder))
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param == "none":
        pytest.skip("needs the sources of a vLLM for GPUs: KVTRACE_VLLM_SOURCES")
    return request.param


def source_of(folder: Path, form: rewrite.Form) -> str:
    return (folder / CUTE / f"{form.module}.py").read_text()


def methods(source: str, name: str) -> dict[str, ast.FunctionDef]:
    [found] = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name]
    return {n.name: n for n in found.body if isinstance(n, ast.FunctionDef)}


class WithoutOurs(ast.NodeTransformer):
    """Takes kvtrace's statements out and counts them."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}

    def _visit(self, node: ast.stmt) -> Any:
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.startswith("kvt_"):
            self.taken[call.func.id] = self.taken.get(call.func.id, 0) + 1
            return None
        return self.generic_visit(node)

    visit_Expr = _visit  # noqa: N815
    visit_Assign = _visit  # noqa: N815


@pytest.mark.kernels
@pytest.mark.parametrize("gpu", ["sm_90a", "sm_100a"])
def test_the_rewritten_kernel_compiles_with_its_timers_and_as_many_products_and_copies(folder: Path, gpu: str) -> None:
    if not BESIDE.exists() and None in map(importlib.util.find_spec, ("cutlass", "quack", "torch", "triton")):
        pytest.skip("needs nvidia-cutlass-dsl, quack-kernels and Triton: make kernels installs them")
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), gpu]
    places = python_path(BESIDE, BESIDE / "nvidia_cutlass_dsl" / "dsl_packages")
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
    if done.returncode == 3:
        pytest.skip(f"vLLM's own kernel needs other versions of the packages: {done.stdout}")
    assert done.returncode == 0, done.stderr[-3000:]
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    forms = 6 if gpu == "sm_100a" else 5
    assert Counter(fact["output"] for fact in facts) == {"tiles": forms, "windows": forms, "both": 1}
    for fact in facts:
        tiles, windows = fact["output"] != "windows", fact["output"] != "tiles"
        # K and V: on Hopper once outside the loops, and once in each loop
        marks = 4 if gpu == "sm_100a" else 8 if "window" in fact["form"] else 6
        assert fact["memory"] == [tiles, windows], fact
        assert fact["%globaltimer_lo"] == [0, (1 + marks) * tiles], fact
        assert fact["st.global.u8"] == [0, marks * tiles], fact
        assert fact["atom.relaxed"] == fact["redux.sync"] == [0, int(tiles)], fact
        assert fact["%globaltimer;"] == fact["red.relaxed"] == [0, 2 * windows], fact
        assert fact[PRODUCT[gpu]][0] > 0, fact
        (registers, stack), ours = fact["taken"]
        spared = STACK_SPARED.get((folder.name, gpu, fact["form"], fact["output"]), 0)
        assert ours == [registers, stack - spared], fact
        for same in SAME:
            assert fact[same][0] == fact[same][1], fact
        if gpu == "sm_100a" and tiles:
            assert fact["around"] == ["product", "commit"] * marks, fact


STACK_SPARED = {(version, "sm_100a", "split", "windows"): 8 for version in ("0.26.0", "0.29.0")}
"""Bytes of stack that a rewritten kernel takes less than vLLM's; all others take the same."""
PRODUCT = {"sm_90a": "wgmma.mma_async", "sm_100a": "tcgen05.mma"}
SAME = (
    "wgmma.mma_async", "tcgen05.mma", "tcgen05.commit", "tcgen05.ld", "cp.async.cg", "cp.async.bulk",
    "mbarrier.try_wait", "bra.uni",
)  # fmt: skip
"""Instructions of the kernel's own: products and their ends, copies, waits, branches."""


@BOTH
def test_only_calls_are_inserted(folder: Path, form: rewrite.Form) -> None:
    source = source_of(folder, form)
    own, ours = methods(source, form.kernel), methods(rewrite.attention(source, form), form.recording)
    counter = WithoutOurs()
    for name, method in ours.items():
        assert ast.dump(counter.visit(method)) == ast.dump(own[name]), name
    assert counter.taken == INSERTED[form]


def test_programs_begin_before_they_wait_for_their_queries_and_end_before_they_store(folder: Path) -> None:
    text = ast.unparse(methods(rewrite.attention(source_of(folder, HOPPER)), HOPPER.recording)["mma"])
    end, stores = text.index("kvt_end(self, tidx)"), text.index("self.epilogue(")
    prepare, loop = text.index("kvt_prepare(self)"), text.index("while work_tile.is_valid_tile")
    begin, wait = text.index("kvt_begin(self, tidx, n_block_min, n_block_max"), text.index("pipeline_q.consumer_wait")
    assert prepare < loop < begin < wait < end < stores


def test_on_blackwell_one_warp_stamps_and_another_sees_the_last_product(folder: Path) -> None:
    ours = methods(rewrite.attention(source_of(folder, BLACKWELL), BLACKWELL), BLACKWELL.recording)
    calls = re.findall(r"kvt_\w+|(?:pipeline_(?:q|kv)\.|gemm_.i\[stage\]\()(?:consumer_\w+)?", ast.unparse(ours["mma"]))
    query, wait, give = (
        "pipeline_q.consumer_wait_w_index_phase",
        "pipeline_kv.consumer_wait",
        "pipeline_kv.consumer_release",
    )
    assert calls == [
        "kvt_prepare", "kvt_begin", query, wait, "gemm_Si[stage](", "kvt_key", give,
        wait, "gemm_Pi[stage](", "kvt_value", give, wait, "gemm_Si[stage](", "kvt_key", give,
        "pipeline_q.consumer_release_w_index", wait, "gemm_Pi[stage](", "kvt_value", give,
    ]  # fmt: skip
    text = ast.unparse(ours["correction_loop"])
    wait_of_last, end = (
        text.index("pipeline_o_acc.consumer_wait"),
        text.index("kvt_end(self, tidx, stage + 1 == self.q_stage)"),
    )
    assert wait_of_last < end < text.index("self.correction_epilogue(")


KERNEL = """
class FlashAttentionForwardSm90:
    @cute.kernel
    def kernel(self, mK, mPageTable, aux_data):
        self.mma()

    @cute.jit
    def mma(self, tidx, pipeline_q, mO):
        work = scheduler.first()
        while work.is_valid:
            block, head, row, split = work.tile_idx
            lengths = SeqlenInfoCls(row)
            low, high = info.get_n_block_min_max(lengths, block)
            pipeline_q.consumer_wait(0)
            self.store(mO)
            work = scheduler.next()

    @cute.jit
    def turn(self, pipeline_k, pipeline_v):
        pipeline_k.consumer_release(0)
        pipeline_v.consumer_release(0)
"""


BLACKWELLS = """
class FlashAttentionForwardSm100:
    @cute.jit
    def correction(self, pipeline_o_acc):
        tidx = thread()
        for group in cutlass.range_constexpr(self.q_stage):
            pipeline_o_acc.consumer_wait_w_index_phase(group, 0)
            self.store()

    @cute.jit
    def products(self, sK, sV, pipeline_q, pipeline_kv):
        work = scheduler.first()
        while work.is_valid:
            block, head, row, split = work.tile_idx
            lengths = SeqlenInfoCls(row)
            low, high = info.get_n_block_min_max(lengths, block)
            if low < high:
                for group in cutlass.range_constexpr(self.q_stage):
                    pipeline_q.consumer_wait_w_index_phase(group, 0)
                    multiply(sK[0])
                pipeline_kv.consumer_release(0)
                for i in cutlass.range(high - low):
                    multiply(sV[0])
                    pipeline_kv.consumer_release(0)
                    multiply(sK[1])
                    pipeline_kv.consumer_release(0)
                multiply(sV[1])
                pipeline_kv.consumer_release(0)
            work = scheduler.next()

    @cute.kernel
    def kernel(self, mK, mPageTable, aux_data):
        self.products()
"""


def test_names_and_order_of_methods_do_not_matter() -> None:
    text = rewrite.attention(KERNEL)
    assert "kvt_begin(self, tidx, low, high, lengths.seqlen_k, row, head, block)" in text
    assert "kvt_end(self, tidx)\n            self.store(mO)" in text
    assert text.count("kvt_key(self)") == text.count("kvt_value(self)") == 1
    text = rewrite.attention(BLACKWELLS, BLACKWELL)
    assert "kvt_begin(self, cute.arch.lane_idx(), low, high, lengths.seqlen_k, row, head, block)" in text
    assert "kvt_end(self, tidx, group + 1 == self.q_stage)\n            self.store()" in text
    assert re.findall(r"multiply\((\w+)|kvt_(key|value)", text) == [
        ("sK", ""), ("", "key"), ("sV", ""), ("", "value"), ("sK", ""), ("", "key"), ("sV", ""), ("", "value"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "instead", "why"),
    [
        ("class FlashAttentionForwardSm90", "class Another", "defines 0 classes"),
        ("@cute.kernel", "@cute.jit", "0 entry points"),
        ("mPageTable, aux_data", "aux_data", "no parameter mPageTable"),
        ("pipeline_q.consumer_wait(0)", "pass", "0 methods that wait for Q"),
        (
            "pipeline_q.consumer_wait(0)",
            "if late: pipeline_q.consumer_wait(0)",
            "not in the loop over work tiles itself",
        ),
        ("pipeline_q, mO", "pipeline_q, out", "no parameter mO"),
        ("self.store(mO)", "self.store(out)", "0 statements store the output"),
        ("work.tile_idx", "work.place", "0 assignments"),
        ("block, head, row, split", "block, head, row", "not 4 names"),
        ("pipeline_v.consumer_release(0)", "pass", "V's in 0"),
        ("pipeline_k.consumer_release(0)", "if late: pipeline_k.consumer_release(0)", "at its top level"),
    ],
)
def test_another_form_is_told(text: str, instead: str, why: str) -> None:
    assert text in KERNEL
    with pytest.raises(MismatchError, match=why):
        rewrite.attention(KERNEL.replace(text, instead))


@pytest.mark.parametrize(
    ("text", "instead", "why"),
    [
        ("@cute.kernel", "@cute.jit", "0 entry points"),
        ("pipeline_q.consumer_wait_w_index_phase(group, 0)", "pass", "0 methods that wait for Q"),
        ("sK, sV, pipeline_q", "sK, pipeline_q", "no parameter sV"),
        ("multiply(sV[0])", "pass", "neither K nor V has been read"),
        ("multiply(sV[1])", "multiply(sV[1], sK[0])", "by one statement"),
        ("multiply(sV[1])", "multiply(sK[1])", "3 times with K and 1 times with V"),
        ("work = scheduler.next()", "pipeline_kv.consumer_release(0)", "5 times, 2 times with K and 2 times with V"),
        ("pipeline_o_acc.consumer_wait_w_index_phase(group, 0)", "pass", "0 methods wait for the last product"),
        ("pipeline_o_acc.consumer_wait_w", "if late: pipeline_o_acc.consumer_wait_w", "not in a loop"),
        (
            "for group in cutlass.range_constexpr(self.q_stage):\n            pip",
            "for group in both:\n            pip",
            "groups",
        ),
        ("tidx = thread()", "pass", "does not know its threads"),
    ],
)
def test_another_form_of_blackwells_is_told(text: str, instead: str, why: str) -> None:
    assert text in BLACKWELLS
    with pytest.raises(MismatchError, match=why):
        rewrite.attention(BLACKWELLS.replace(text, instead), BLACKWELL)


class Interface(types.ModuleType):
    """The module with `_flash_attn_fwd`: says which class and cache a launch found, and with which scalars."""

    def __init__(self) -> None:
        super().__init__("interface")
        self.FlashAttentionForwardSm90 = "own"
        self.launches: list[tuple[Any, ...]] = []

        def forward(q: Any, k: Any, v: Any, *, aux_scalars: Any = None, fails: Any = None, **kwargs: Any) -> str:
            kernel, cache = self.FlashAttentionForwardSm90, self._flash_attn_fwd.compile_cache
            if fails == kernel:
                raise TypeError("no such argument")
            if isinstance(kernel, Recording) and "another" not in kwargs:
                kernel.kvt_made = True
            cache.setdefault(kernel, len(cache))
            self.launches.append((kernel, aux_scalars))
            return "out"

        forward.compile_cache = {}  # type: ignore[attr-defined]
        self.own_cache = forward.compile_cache  # type: ignore[attr-defined]
        self._flash_attn_fwd: Any = forward


class Recording(str):
    """Stands for the class that records."""

    kvt_made = False


class Cache:
    """A KV cache's tensor."""

    def __init__(self, tokens: int = 16) -> None:
        self.shape = (10, tokens, 8, 128)


@pytest.fixture
def launched() -> tuple[Interface, Current, list[str]]:
    interface, current, failures = Interface(), Current("control", -1), []
    forward = RecordingForward(
        interface,
        HOPPER.kernel,
        lambda tokens: Recording(f"recording {tokens}"),
        lambda n: ("scalar", n),
        current,
        failures.append,
    )
    interface._flash_attn_fwd = forward
    return interface, current, failures


def test_only_layers_to_record_get_the_recording_kernel_and_its_cache(launched) -> None:
    interface, current, failures = launched
    interface._flash_attn_fwd("q", Cache(), "v", page_table="table")
    current.what = 5
    for tokens in (16, 128, 16):
        assert interface._flash_attn_fwd("q", Cache(tokens), "v", page_table="table") == "out"
    interface._flash_attn_fwd("q", Cache(), "v", page_table="table", aux_scalars=("theirs",))
    interface._flash_attn_fwd("q", Cache(), "v", page_table=None)
    assert interface.launches == [
        ("own", None),
        ("recording 16", (("scalar", 5),)),
        ("recording 128", (("scalar", 5),)),
        ("recording 16", (("scalar", 5),)),
        ("recording 16", ("theirs", ("scalar", 5))),
        ("own", None),
    ]
    assert interface.own_cache == {"own": 0}
    assert interface.FlashAttentionForwardSm90 == "own"
    assert failures == []


@pytest.mark.parametrize(
    ("tokens", "arguments", "why"),
    [
        (16, {"fails": "recording 16"}, "TypeError: no such argument"),
        (16, {"fp8_kv_dequant": True}, "FP8"),
        (16, {"block_sparse_tensors": "sparse"}, "sparse blocks"),
        (24, {}, "24 tokens"),
    ],
)
def test_what_cannot_be_recorded_runs_as_before_and_is_told_once(launched, tokens, arguments, why) -> None:
    interface, current, failures = launched
    current.what = 5
    for _ in range(2):
        assert interface._flash_attn_fwd("q", Cache(tokens), "v", page_table="table", **arguments) == "out"
    assert interface.launches == [("own", None)] * 2
    assert len(failures) == 1
    assert why in failures[0]


def test_another_kernel_than_the_rewritten_one_is_noticed_at_its_first_launch(launched) -> None:
    """Blackwell's heads of 256 have a class of their own."""
    interface, current, failures = launched
    current.what = 5
    for _ in range(2):
        assert interface._flash_attn_fwd("q", Cache(), "v", page_table="table", another=True) == "out"
    assert current.launched == set()
    assert failures == ["FlashAttention 4 launches another kernel"]
    assert interface.launches[1] == ("own", None)


def program(tiles: int, flags: int, at: int) -> bytes:
    record = np.zeros(1, tile_columns.PROGRAM)
    record["start"], record["first_tile"], record["at"], record["tiles"], record["flags"] = 1000, 2, at, tiles, flags
    return record.tobytes()


def test_a_program_that_goes_from_its_last_tile_is_read_in_its_order() -> None:
    """K of the next tile comes before V of a tile, and each counts from the one of its kind before."""
    flags = FROM_END | 80 // 16 << 2 | 16 // 16 << 6
    ticks = np.array(
        [[4, 7], [2, 3], [5, 6], [0, 0], [3, 1]], np.uint8
    )  # three tiles, an unused place, one of Triton's
    step = tile_columns.from_sections([program(3, flags, 0) + program(1, 1 << 6, 4), ticks.tobytes(), b""], 0)
    times = tile_columns.times(step)
    assert tile_columns.tile_tokens(step.programs).tolist() == [80, 16]
    assert tile_columns.block_tokens(step.programs).tolist() == [16, 16]
    assert times.tile.tolist() == [4, 3, 2, 2]
    assert ((times.k_start_ns - 1000) // 32).tolist() == [0, 4, 6, 0]
    assert ((times.k_ns - 1000) // 32).tolist() == [4, 6, 11, 3]
    assert ((times.v_ns - 1000) // 32).tolist() == [7, 10, 16, 4]
