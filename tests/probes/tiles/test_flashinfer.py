"""FlashInfer's attention: what rewriting inserts, what compiles, and what its programs write."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.ingest.derive import tile_columns
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.flashinfer import recorder, rewrite
from kvtrace.probes.device.tiles.source import MismatchError
from tests.probes.tiles import wheel
from tests.probes.tiles.versions import distinct

HERE = Path(__file__).parent
FOLDERS = [Path(text) for text in os.environ.get("KVTRACE_FLASHINFER_SOURCES", "").split(":") if text]
ATTENTION = Path("flashinfer/data/include/flashinfer/attention")
HOPPER = ATTENTION / "hopper"
NO_HEADERS = "needs FlashInfer's headers: KVTRACE_FLASHINFER_SOURCES"
NVCC, PTXAS = shutil.which("nvcc"), shutil.which("ptxas")


@pytest.fixture(params=FOLDERS or ["none"], ids=lambda folder: getattr(folder, "name", folder))
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param == "none":
        pytest.skip(NO_HEADERS)
    return Path(request.param)


def inserted(before: str, after: str) -> Counter[str]:
    """The calls that rewriting inserted; without them, and the blocks a multiprocessor, the text is what it was."""
    calls = "begin|key|value|end|prepare|Asked|ask|claim|Forward|forward|leave"
    text = re.sub(rf"kvt::({calls})[^;]*;|variant\.kvt_at[^;]*;", "", after)
    text = text.replace("kvt::Recording<AttentionVariant>", "AttentionVariant")
    text = re.sub(rf'#include "(hopper/)?{rewrite.RECORDER_HEADER}"\n', "", text)
    text = text.replace("__launch_bounds__(KTraits::NUM_THREADS, 2)", "__launch_bounds__(KTraits::NUM_THREADS)")
    assert "".join(text.split()) == "".join(before.split())
    return Counter(re.findall(r"(?:kvt::|variant\.kvt_)(\w+)", after))


def test_only_calls_are_inserted(folder: Path) -> None:
    kernel = (folder / HOPPER / rewrite.KERNEL_HEADER).read_text()
    assert inserted(kernel, rewrite.kernel(kernel)) == {"Recording": 1, "at": 1, "prepare": 1}
    products = (folder / HOPPER / rewrite.MULTIPLY_HEADER).read_text()
    rewritten = rewrite.multiply(products)
    assert inserted(products, rewritten) == {"begin": 1, "key": 4, "value": 4, "end": 1}
    first = rewritten.index("kvt::begin")
    assert first < rewritten.index("barrier_Q.try_wait") < rewritten.index("kvt::key") < rewritten.index("kvt::value")
    assert rewritten.rindex("kvt::value") < rewritten.index("kvt::end")
    whole = (folder / ATTENTION / rewrite.FORWARD_HEADER).read_text()
    calls = inserted(whole, rewrite.forward(whole))
    branches = {calls.pop(call) for call in ("forward_key", "forward_value")}
    assert branches in ({1}, {2})  # a compiler keeps one
    once = ("Asked", "ask_forward", "Forward", "begin_forward", "leave", "prepare")
    assert calls == {**dict.fromkeys(once, 1), "claim_forward": 2}  # without a causal mask, and with one


PREFILL = """
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
namespace flashinfer {
using Number = cutlass::bfloat16_t;
using Params = BatchPrefillPagedParams<Number, Number, Number, int>;
template cudaError_t BatchPrefillWithPagedKVCacheDispatched<128, 128, MaskMode::kCausal, false, true, StandardAttention,
                                                            Params>(Params&, bool, cudaStream_t);
}
"""
FORWARD_BEGIN = """
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>
namespace flashinfer {
using Number = nv_bfloat16;
using Params = BatchPrefillPagedParams<Number, Number, Number, int>;
using Variant = DefaultAttention<false, false, false, false>;
"""
READS = """
template cudaError_t BatchPrefillWithPagedKVCacheDispatched<SAME_STRIDES 16, 128, 128, PosEncodingMode::kNone, false,
                                                            MaskMode::kNone, SCALES Variant, Params>(
    Params, Number*, float*, bool, cudaStream_t);
"""
DECODE = FORWARD_BEGIN + READS + "}"
BOTH = FORWARD_BEGIN + READS + READS.replace(" 16,", " 64,").replace("MaskMode::kNone", "MaskMode::kCausal") + "}"
"""On other GPUs than Hopper, prompts are read by `fa2`, too."""
CURAND = """#pragma once
struct curandState_t {};
__device__ void curand_init(unsigned long long, unsigned long long, unsigned long long, curandState_t*);
__device__ float curand_uniform(curandState_t*);
__device__ double curand_uniform_double(curandState_t*);
__device__ float curand_normal(curandState_t*);
__device__ double curand_normal_double(curandState_t*);
"""
"""Declarations for a part of CUTLASS that is included and not used: cuRAND is not in the wheels of the compiler."""

COUNTED = (
    "%globaltimer_lo",
    "%globaltimer;",
    "red.relaxed",
    "st.global.u8",
    "atom.relaxed",
    "redux.sync",
    "st.global.u16",
    "wgmma.mma_async",
    "mma.sync",
    "cp.async.cg",
)


def compiled(instance: str, gpu: str, folder: Path, headers: Path, work: Path) -> tuple[dict[str, int], list[int]]:
    """Compile kernels with pages of any size, bfloat16, heads of 128.

    Returns counts of words in the PTX, and the registers of each of `fa2`'s kernels that read tiles.
    """
    data = folder / wheel.DATA
    (work / "stub").mkdir(parents=True)
    (work / "stub" / "curand_kernel.h").write_text(CURAND)
    header = (data / "include/flashinfer/attention/prefill.cuh").read_text()
    for mark, parameter, value in (
        ("SAME_STRIDES", "bool SAME_KV_STRIDES", "true,"),
        ("SCALES", "MaskMode MASK_MODE,\n          bool USE_TOKEN_HEAD_SF", "false,"),
    ):
        instance = instance.replace(mark, value if parameter in header else "")
    (work / "instance.cu").write_text(instance)
    others = [data / "cutlass/include", data / "cutlass/tools/util/include", data / "csrc", work / "stub"]
    command = [NVCC, "-ptx", f"-gencode=arch=compute_{gpu},code=compute_{gpu}"]
    command += ["-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", *wheel.arguments(folder, headers, *others)]
    done = subprocess.run(
        [*map(str, command), "-o", str(work / "out.ptx"), str(work / "instance.cu")],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ptx = (work / "out.ptx").read_text()
    command = [PTXAS, "-v", f"-arch=sm_{gpu}", "-o", str(work / "out.cubin"), str(work / "out.ptx")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stderr
    used = re.findall(rf"entry function '\w*{rewrite._BOUNDED}\w*' for(?:.*\n){{3}}.*Used (\d+) registers", said)
    return {word: ptx.count(word) for word in COUNTED}, [int(registers) for registers in used]


def blocks(registers: int) -> int:
    """Count the thread blocks of 128 for which a multiprocessor has registers."""
    return 65536 // (128 * -(-registers // 8) * 8)


INSTANCES = {
    # the kernels, for what GPU, of which versions, and the headers that they are in
    "fa3": (PREFILL, "90a", FOLDERS, HOPPER / "*"),
    "fa2": (DECODE, "90a", FOLDERS, ATTENTION / "*"),
    "fa2-blackwell": (BOTH, "100a", FOLDERS, ATTENTION / "*"),
    "fa2-ampere": (BOTH, "80", FOLDERS[-1:], ATTENTION / "*"),
}
COMPILED = [
    pytest.param(folder, instance, gpu, id=f"{folder.name}-{name}")
    for name, (instance, gpu, folders, headers) in INSTANCES.items()
    for folder in distinct(folders, str(headers))
] or [pytest.param(None, "", "", marks=pytest.mark.skip(reason=NO_HEADERS))]


@pytest.mark.kernels
@pytest.mark.skipif(NVCC is None or PTXAS is None, reason="needs nvcc and ptxas")
@pytest.mark.parametrize(("folder", "instance", "gpu"), COMPILED)
def test_the_rewritten_kernel_compiles_with_its_timers_and_as_many_products_and_copies(
    folder: Path, tmp_path: Path, instance: str, gpu: str
) -> None:
    rewritten = wheel.rewritten_headers(folder, tmp_path)
    own, own_registers = compiled(instance, gpu, folder, folder / wheel.DATA / "include", tmp_path / "own")
    ours, our_registers = compiled(instance, gpu, folder, rewritten, tmp_path / "ours")
    added = {word: ours[word] - own[word] for word in COUNTED if ours[word] != own[word]}
    marks = ours["st.global.u8"]
    if instance is PREFILL:
        assert marks >= 8
        assert added == {
            "%globaltimer_lo": marks + 1, "%globaltimer;": 2, "red.relaxed": 2, "st.global.u8": marks,
            "atom.relaxed": 1, "redux.sync": 1,
        }  # fmt: skip
        assert own["wgmma.mma_async"] > 0 < own["cp.async.cg"]
    else:
        kernels = 4 * instance.count("template ")  # of tiles of 1, 2, 4 and 8 times 64 tokens, or 16
        assert added.pop("st.global.u16") >= kernels
        assert added == {
            "%globaltimer_lo": 2 * kernels, "%globaltimer;": 2 * kernels, "red.relaxed": 2 * kernels,
            "atom.relaxed": kernels, "redux.sync": kernels,
        }  # fmt: skip
        assert own["mma.sync"] > 0 < own["cp.async.cg"]
        assert len(own_registers) == len(our_registers) == kernels
        for one, other in zip(own_registers, our_registers, strict=True):
            assert blocks(other) >= min(2, blocks(one))  # FlashInfer sizes tiles for two


KERNEL = """
__global__ void PrefillWithKVCacheKernel(Params const params) {
  auto [q_tile_idx, qo_head_idx, kv_head_idx, qo_indptr, kv_indptr, qo_len, kv_len, batch_idx] = block_coord;
  AttentionVariant variant(params, block_coord);  // an AttentionVariant variant(of, a comment);
  mma_f16(params, variant);
}
void launch() { (void*)PrefillWithKVCacheKernel<int>; }
cudaError_t BatchPrefillWithPagedKVCacheDispatched(Params& params, bool pdl, cudaStream_t stream) {
  return launched(params, stream);
}
"""
PRODUCTS = """#pragma once
#include "variants.cuh"
template <bool MULTIITEMSCORING>
void mma_f16(const Params& mainloop_params, Variant& variant, int kv_tile_idx_count, int swa_begin_kv_tile_idx,
             int thread_idx) {
  static constexpr int CTA_KV = 96;
  int token =
      shared.barrier_Q.try_wait(0);
  pipeline_k.consumer_release(read_k);
  for (;;) {
    pipeline_k.consumer_release(read_k);
    pipeline_v.consumer_release(read_v);
  }
  pipeline_v.consumer_release(read_v);
  ++read_v;
}
"""


FORWARD = """#pragma once
#include "mask.cuh"
__device__ void BatchPrefillWithPagedKVCacheDevice(const Params params, const dim3 tid = threadIdx) {
  const uint32_t request_idx = request_indices[bx];
  AttentionVariant variant(params, request_idx, smem);
  init(o_frag);  // load_q_global_smem<of a comment>
  load_q_global_smem<KTraits>(&qo_smem, tid);
  cp_async::commit_group();
  produce_k(paged_kv, request_idx, kv_head_idx, qo_tile_idx);
  cp_async::commit_group();
  if constexpr (!SHARED) {
    produce_v(0);
    cp_async::commit_group();
  }
  if constexpr (MASK_MODE != MaskMode::kMultiItemScoring) {
    num_iterations = ceil_div(
        (MASK_MODE == MaskMode::kCausal ? min(chunk_size, kv_len - chunk_start) : chunk_size), CTA_TILE_KV);
  }
#pragma unroll 1
  for (uint32_t iter = 0; iter < num_iterations; ++iter) {
    block.sync();
    compute_qk<KTraits>(s_frag);
    update_mdo_states<KTraits>(s_frag, o_frag);
    block.sync();
    if constexpr (SHARED) {
      produce_v(iter);
      cp_async::commit_group();
    } else {
      produce_k(iter + 1);
      cp_async :: commit_group ( );
    }
    block.sync();
    if constexpr (SPLIT) {
      compute_sfm_v<KTraits, true>(s_frag, o_frag);
    } else {
      compute_sfm_v<KTraits>(s_frag, o_frag);
    }
    block . sync ( );
    produce_v(iter + 1);
    cp_async::commit_group();
  }
  block.sync();
  write(o_frag);
}
__global__ __launch_bounds__(KTraits::NUM_THREADS) void BatchPrefillWithPagedKVCacheKernel(const Params params) {
  BatchPrefillWithPagedKVCacheDevice<KTraits>(params);
}
cudaError_t BatchPrefillWithPagedKVCacheDispatched(Params params, float* tmp_s, cudaStream_t stream) {
  return launched(params, stream);
}
"""


def test_a_program_that_goes_forward_begins_among_its_first_copies_and_tells_of_each_product() -> None:
    text = rewrite.forward(FORWARD)
    calls = [
        "AttentionVariant variant(", "kvt::Asked ", "kvt::ask_forward<", "load_q_global_smem<KTraits>", "produce_k(",
        "kvt::claim_forward<", "produce_v(0)", "kvt::claim_forward<!", "kvt::Forward ", "kvt::begin_forward<",
        "#pragma unroll 1", "for (", "compute_qk", "update_mdo_states", "produce_v(iter)", "kvt::forward_key(",
        "produce_k(iter + 1)", "compute_sfm_v<KTraits>", "produce_v(iter + 1)", "kvt::forward_value<", "kvt::leave(",
        "write(o_frag)", "kvt::prepare(stream);",
    ]  # fmt: skip
    places = [text.index(call) for call in calls]
    assert places == sorted(places)
    assert "__launch_bounds__(KTraits::NUM_THREADS, 2) void" in text
    assert text.count("kvt::forward_key(") == 2  # in each branch
    assert text.count("kvt::") == 11
    assert text.index('#include "hopper/kvtrace.cuh"') < text.index('#include "mask.cuh"')


def test_order_of_coordinates_and_comments_do_not_matter() -> None:
    text = rewrite.kernel(KERNEL)
    assert (
        "kvt::Recording<AttentionVariant> variant(params, block_coord); variant.kvt_at(batch_idx, kv_head_idx, " in text
    )
    assert "// an AttentionVariant variant(of, a comment);" in text
    assert "cudaStream_t stream) { kvt::prepare(stream);\n" in text
    text = rewrite.multiply(PRODUCTS)
    assert text.index("kvt::begin<MULTIITEMSCORING>(mainloop_params, variant,") < text.index("int token =")
    assert "consumer_release(read_v);\n  kvt::end(mainloop_params, variant, thread_idx);\n  ++read_v;" in text


@pytest.mark.parametrize(
    ("rewriting", "source", "text", "instead", "why"),
    [
        (rewrite.kernel, KERNEL, "PrefillWithKVCacheKernel(Params", "Another(Params", "defined 0 times"),
        (rewrite.kernel, KERNEL, "AttentionVariant variant(params", "auto variant(params", "makes 0 variants"),
        (rewrite.kernel, KERNEL, "kv_indptr, qo_len", "pages, qo_len", "has no kv_indptr"),
        (rewrite.kernel, KERNEL, "cudaStream_t stream) {", "cudaStream_t on) {", "takes no stream"),
        (rewrite.kernel, KERNEL, "  mma_f16(params, variant);\n}", "  mma_f16(params, variant);", "do not match"),
        (rewrite.multiply, PRODUCTS, "barrier_Q.try_wait", "barrier_O.try_wait", "does not wait for Q"),
        (rewrite.multiply, PRODUCTS, "int thread_idx", "int thread", "has no thread_idx"),
        (
            rewrite.multiply,
            PRODUCTS,
            "  pipeline_v.consumer_release(read_v);\n  ++",
            "  ++",
            "at 2 places and V's at 1",
        ),
        (rewrite.multiply, PRODUCTS, '#include "variants.cuh"', "", "includes nothing"),
        (rewrite.forward, FORWARD, "kv_len - chunk_start", "kv_len", "has no chunk_start"),
        (
            rewrite.forward,
            FORWARD,
            ": chunk_size), CTA_TILE_KV",
            ": kv_len), CTA_TILE_KV",
            "counts its tiles otherwise",
        ),
        (
            rewrite.forward,
            FORWARD,
            "  load_q_global_smem<KTraits>(",
            "  load_q<KTraits>(",
            "does not issue copies of Q",
        ),
        (rewrite.forward, FORWARD, "    produce_v(0);\n    cp_async::commit_group();\n", "", "does not issue copies"),
        (rewrite.forward, FORWARD, "iter < num_iterations; ++iter", "iter < num_iterations - 1; ++iter", "0 loops"),
        (rewrite.forward, FORWARD, "update_mdo_states<", "update_states<", "does not call update_mdo_states"),
        (rewrite.forward, FORWARD, "  }\n  block.sync();", "  }\n", "no barrier behind its loop"),
        (rewrite.forward, FORWARD, "block . sync ( );", "", "no barrier behind compute_sfm_v"),
        (
            rewrite.forward,
            FORWARD,
            "produce_v(iter + 1);\n    cp_async::commit_group();",
            "",
            "no copies behind compute",
        ),
        (rewrite.forward, FORWARD, "__launch_bounds__(KTraits::NUM_THREADS) ", "", "has no bounds"),
        (rewrite.forward, FORWARD, "cudaStream_t stream)", "cudaStream_t on)", "takes no stream"),
    ],
)
def test_another_form_is_told(rewriting: Any, source: str, text: str, instead: str, why: str) -> None:
    assert text in source
    with pytest.raises(MismatchError, match=why):
        rewriting(source.replace(text, instead))


@given(st.sets(st.integers(0, (1 << 64) - 1), min_size=1, max_size=256))
def test_a_kernel_finds_each_layer_in_one_look(addresses: set[int]) -> None:
    layers = {address: number for number, address in enumerate(sorted(addresses))}
    words, factor, shift = recorder.table(layers)
    assert len(words) <= 2 * 32 * len(layers)
    for address, what in layers.items():
        entry = 2 * ((address * factor & (1 << 64) - 1) >> shift)
        assert words[entry : entry + 2] == [address, what]


class Program(NamedTuple):
    """A program of attention: tiles `low` to `high` of a sequence."""

    layer: int
    row: int
    head: int
    query_block: int
    tokens: int
    low: int
    high: int
    start_ns: int
    passed_ns: list[int]

    @property
    def tiles(self) -> int:
        return self.high - self.low


class Machine:
    """A device with one step open in its ring: control words, two layers, page tables of a batch."""

    PAGES, TOLD, ROWS_BEFORE, DECODES = 256, (1 << 8 | 1 << 16, 1 | 1 << 8), 3, 2
    """`DECODES` rows of the table belong to another kernel, which ran `ROWS_BEFORE` rows."""

    def __init__(self, code: ctypes.CDLL, page: int, tile: int, tile_room: int, program_room: int) -> None:
        self.code, self.page, self.tile, self.rooms = code, page, tile, (program_room, tile_room)
        self.memory = [np.zeros(size, np.uint8) for size in (24 * 64, 2 * 8192)]
        self.control, self.windows = (
            np.zeros(layout.CONTROL_WORDS, np.uint64),
            np.zeros(2 * layout.WINDOW_WORDS, np.uint64),
        )
        for section, room in ((layout.PROGRAMS, program_room), (layout.TILES, tile_room)):
            self.control[layout.ADDRESS_WORD + section] = self.memory[section].ctypes.data
            self.control[layout.ROOM_WORD + section] = room
        self.keys = [0x7F12_3400_0000, 0x7F12_3500_0000]
        words, factor, shift = recorder.table(dict(zip(self.keys, self.TOLD, strict=True)))
        self.table = np.array(words, np.uint64)
        self.indices = np.random.default_rng(1).integers(0, 1 << 20, 8 * self.PAGES, np.int32)
        told = {
            "control": self.control.ctypes.data, "windows": self.windows.ctypes.data, "heads": 0b0111,
            "layers": self.table.ctypes.data, "factor": factor, "shift": shift,
            "pages_before": self.DECODES * self.PAGES, "rows_before": self.ROWS_BEFORE,
        }  # fmt: skip
        self.facts = np.array([told[name] for name in recorder.FACTS], np.uint64)
        code.set_facts(ctypes.c_uint64(self.facts.ctypes.data))

    def run(self, program: Program, *, paged: bool = True) -> None:
        passed = (ctypes.c_uint32 * len(program.passed_ns))(*program.passed_ns)
        key = self.keys[program.layer] if program.layer < 2 else 0xDEAD
        self.code.run(
            ctypes.c_uint64(key), ctypes.c_void_p(self.indices.ctypes.data), self.page, self.tile, program.row,
            program.head, program.query_block, program.row * self.PAGES, program.tokens, program.low, program.high,
            ctypes.c_uint64(program.start_ns), passed, int(paged),
        )  # fmt: skip

    def run_forward(self, program: Program, begin: int, length: int) -> None:
        """Run a program that reads tiles from token `begin` on."""
        passed = (ctypes.c_uint32 * len(program.passed_ns))(*program.passed_ns)
        key = self.keys[program.layer] if program.layer < 2 else 0xDEAD
        indptr = np.arange(0, 9 * self.PAGES, self.PAGES, np.int32)
        self.code.run_forward(
            ctypes.c_uint64(key), ctypes.c_void_p(self.indices.ctypes.data), ctypes.c_void_p(indptr.ctypes.data),
            self.page, self.tile, program.row, program.head, program.query_block, begin, length, program.tokens,
            program.tiles, ctypes.c_uint64(program.start_ns), passed,
        )  # fmt: skip

    def window(self, layer: int) -> tuple[int, int]:
        """First start and last end of a layer's attention, over the lines of its window."""
        words = self.windows.reshape(2, layout.WINDOW_WAYS, layout.WAY_WORDS)[layer].max(axis=0)
        first, last = (int(words[layout.ATTENTION_WINDOW + word]) for word in (layout.FIRST, layout.LAST))
        return first ^ (1 << 64) - 1, last

    def counted(self) -> int:
        """How many programs asked for room; none wrote where there is none."""
        programs, tiles = self.rooms
        assert not self.memory[0][24 * programs :].any()
        assert not self.memory[1][2 * tiles :].any()
        return int(self.control[layout.CURSOR_WORDS[layout.PROGRAMS]]) >> layout.TILE_BITS

    def row_of(self, program: Program) -> int:
        """The row of the batch that a program's row is."""
        return program.row + (self.ROWS_BEFORE if program.row >= self.DECODES else 0)

    def step(self) -> tile_columns.StepTiles:
        """Take the ring's content as the reader does."""
        pair = int(self.control[layout.CURSOR_WORDS[layout.PROGRAMS]])
        programs, tiles = pair >> layout.TILE_BITS, pair & layout.TILE_MASK
        sections = [self.memory[0][: 24 * programs].tobytes(), self.memory[1][: 2 * tiles].tobytes(), b""]
        return tile_columns.from_sections(sections, self.memory[1].ctypes.data // 2 & 0xFFFFFFFF)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header compiled for the CPU."""
    folder = tmp_path_factory.mktemp("flashinfer")
    own, used = recorder.HEADER.split("#endif  // __CUDACC__", 1)
    begin = own.split("#ifdef __CUDACC__")[0].replace("#pragma once", "")
    used = used.split("\n", 1)[1]
    program = (HERE / "flashinfer_program.cpp").read_text()
    host = (HERE / "flashinfer_host.h").read_text()
    (folder / "code.cpp").write_text(begin + host + used + program)
    command = [
        "c++",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-O1",
        "-pthread",
        "-o",
        folder / "code.so",
        folder / "code.cpp",
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "code.so"))


def of_tiles(draw: st.DrawFn, tokens: int, low: int, high: int) -> Program:
    """Draw a program that reads these tiles of a sequence, anywhere in the batch and at any pace."""
    passed = draw(st.lists(st.integers(0, 9000), min_size=2 * (high - low), max_size=2 * (high - low)))
    row, head, block = draw(st.integers(0, 7)), draw(st.integers(0, 3)), draw(st.integers(0, 300))
    start = draw(st.integers(1 << 31, (1 << 33)))
    return Program(draw(st.integers(0, 2)), row, head, block, tokens, low, high, start, passed)


@st.composite
def programs(draw: st.DrawFn, page: int, tile: int) -> list[Program]:
    found = []
    for _ in range(draw(st.integers(1, 5))):
        tokens = draw(st.integers(1, Machine.PAGES * page))
        high = draw(st.integers(1, -(-tokens // tile)))
        low = draw(st.integers(max(0, high - 6), high - 1))
        found.append(of_tiles(draw, tokens, low, high))
    return found


@settings(max_examples=60)
@given(st.data(), st.sampled_from([(16, 96), (32, 96), (96, 96), (16, 64), (64, 32), (16, 192)]))
def test_what_programs_write_is_what_they_read_and_when(
    code: ctypes.CDLL, data: st.DataObject, sizes: tuple[int, int]
) -> None:
    page, tile = sizes
    machine = Machine(code, page, tile, tile_room=8192, program_room=64)
    ran = data.draw(programs(page, tile))
    for program in ran:
        machine.run(program)
    recorded = [program for program in ran if program.layer < 2 and program.head < 3]
    step = machine.step()
    assert len(step.programs) == len(recorded)
    assert tile_columns._what_is_wrong(step) is None
    times, listed = tile_columns.times(step), tile_columns.block_ids(step)
    unit = min(page, tile)
    for number, program in enumerate(recorded):
        record = step.programs[number]
        assert (record["layer"], record["head"]) == (program.layer, program.head)
        assert record["row"] == machine.row_of(program)
        assert record["query_block"] == program.query_block
        assert (tile_columns.tile_tokens(step.programs)[number], tile_columns.block_tokens(step.programs)[number]) == (
            tile,
            page,
        )
        mine = times.program == number
        assert times.tile[mine].tolist() == list(range(program.high - 1, program.low - 1, -1))
        began = int(record["start"])
        assert began == program.start_ns & 0xFFFFFFFF
        marks = np.cumsum(program.passed_ns)  # K, then K and V of each tile but the last, V
        for ns, exact in (
            (times.k_ns, marks[[0, *range(1, len(marks) - 1, 2)]]),
            (times.v_ns, marks[[*range(2, len(marks), 2), -1]]),
        ):
            lag = exact - (ns[mine] - times.k_start_ns[mine][0])
            assert lag.min() >= 0
            if np.diff(exact, prepend=0).max() < 255 << layout.TICK_SHIFT:  # else it is caught up later
                assert lag.max() < 1 << layout.TICK_SHIFT
        pages = machine.indices[program.row * Machine.PAGES :]
        units = range(program.low * tile // unit, min(program.high * tile // unit, -(-program.tokens // unit)))
        blocks = [int(pages[index * unit // page]) for index in units]
        first_head, lists = machine.TOLD[program.layer] >> 8 & 0xFF, machine.TOLD[program.layer] >> 16
        if program.head + 1 == first_head:
            expected = sum(block * (2 * index + 1) for block, index in zip(blocks, units, strict=True)) & 0xFFFFFFFF
            assert record["sum"] == expected
        if program.head + 1 == lists:
            assert listed.block_id[listed.program == number].tolist() == blocks
            assert listed.block_index[listed.program == number].tolist() == list(units)


@st.composite
def forward_programs(draw: st.DrawFn, page: int, tile: int) -> list[tuple[Program, int, int]]:
    """Programs that read a part of their sequence from a block's begin on, with the part's begin and length."""
    found, unit = [], min(page, tile)
    for _ in range(draw(st.integers(1, 4))):
        tokens = draw(st.integers(1, Machine.PAGES * page))
        begin = draw(st.integers(0, (tokens - 1) // page)) * page + (draw(st.booleans()) and page > tile) * unit
        begin = begin if begin < tokens else 0
        length = draw(st.integers(1, tokens - begin))
        count = draw(st.integers(1, min(6, -(-length // tile))))
        found.append((of_tiles(draw, tokens, 0, count), begin, length))
    return found


@settings(max_examples=60)
@given(st.data(), st.sampled_from([(16, 128), (32, 64), (64, 64), (64, 128), (16, 16), (64, 32), (16, 512)]))
def test_programs_that_go_forward_write_the_blocks_of_their_part(
    code: ctypes.CDLL, data: st.DataObject, sizes: tuple[int, int]
) -> None:
    page, tile = sizes
    machine = Machine(code, page, tile, tile_room=8192, program_room=64)
    ran = data.draw(forward_programs(page, tile))
    for program, begin, length in ran:
        machine.run_forward(program, begin, length)
    recorded = [each for each in ran if each[0].layer < 2 and each[0].head < 3]
    step = machine.step()
    assert len(step.programs) == len(recorded)
    assert tile_columns._what_is_wrong(step) is None
    times, listed = tile_columns.times(step), tile_columns.block_ids(step)
    unit = min(page, tile)
    for number, (program, begin, length) in enumerate(recorded):
        record = step.programs[number]
        assert (record["layer"], record["head"]) == (program.layer, program.head)
        assert record["row"] == machine.row_of(program)
        assert (tile_columns.tile_tokens(step.programs)[number], tile_columns.block_tokens(step.programs)[number]) == (
            unit,
            page,
        )
        read = range(begin // unit, begin // unit + -(-min(length, program.tiles * tile) // unit))
        mine = times.program == number
        assert times.tile[mine].tolist() == list(read)
        marks = np.cumsum(program.passed_ns)
        inside = (np.array(read) - read[0]) * unit // tile  # the tile of each block
        for ns, exact in ((times.k_ns, marks[2 * inside]), (times.v_ns, marks[2 * inside + 1])):
            lag = exact - (ns[mine] - times.k_start_ns[mine][0])
            assert lag.min() >= 0
            if np.diff(marks, prepend=0).max() < 120 << layout.TICK_SHIFT:  # else it is caught up later
                assert lag.max() < 1 << layout.TICK_SHIFT
        starts = times.k_start_ns[mine]
        assert (starts <= times.k_ns[mine]).all()
        # A tile whose K follows the V before it within a tick is not told from that one's blocks.
        told = inside[1:] != inside[:-1]
        told &= (np.array(program.passed_ns)[2 * inside[1:]] >= 1 << layout.TICK_SHIFT) | (starts[1:] != starts[:-1])
        assert (starts[1:] == np.where(told, times.v_ns[mine][:-1], starts[:-1])).all()
        pages = machine.indices[program.row * Machine.PAGES :]
        blocks = [int(pages[index * unit // page]) for index in read]
        first_head, lists = machine.TOLD[program.layer] >> 8 & 0xFF, machine.TOLD[program.layer] >> 16
        if program.head + 1 == first_head:
            expected = sum(block * (2 * index + 1) for block, index in zip(blocks, read, strict=True)) & 0xFFFFFFFF
            assert record["sum"] == expected
        if program.head + 1 == lists:
            assert listed.block_id[listed.program == number].tolist() == blocks
            assert listed.block_index[listed.program == number].tolist() == list(read)


def test_a_program_without_tiles_or_with_a_part_between_blocks_writes_nothing(code: ctypes.CDLL) -> None:
    machine = Machine(code, 16, 64, tile_room=100, program_room=10)
    program = Program(1, 0, 0, 0, 100, 0, 0, 5000, [])
    machine.run_forward(program, 0, 100)
    assert not machine.windows.any()
    machine.run_forward(program._replace(high=1, passed_ns=[100, 100]), 8, 92)  # as a sliding window would have it
    assert int(machine.control[layout.CURSOR_WORDS[layout.PROGRAMS]]) == 0
    assert machine.window(1) == (5000, 5200)


@settings(max_examples=30)
@given(st.data(), st.integers(0, 40), st.integers(0, 4))
def test_programs_without_room_are_counted_and_write_nothing(
    code: ctypes.CDLL, data: st.DataObject, tiles: int, count: int
) -> None:
    machine = Machine(code, 16, 96, tile_room=tiles, program_room=count)
    ran = [program._replace(layer=1, head=1) for program in data.draw(programs(16, 96))]
    for program in ran:
        machine.run(program)
    pair = int(machine.control[layout.CURSOR_WORDS[layout.PROGRAMS]])
    assert machine.counted() == (len(ran) if tiles and count else 0)
    if tiles and count:
        assert pair & layout.TILE_MASK == sum(program.tiles + 1 & ~1 for program in ran)
    else:
        assert pair == 0


@settings(max_examples=30)
@given(st.data(), st.integers(0, 40), st.integers(0, 4))
def test_programs_that_go_forward_without_room_keep_to_the_ring(
    code: ctypes.CDLL, data: st.DataObject, tiles: int, count: int
) -> None:
    """A program that finds too little room writes nothing: its step is dropped whole, for its counts say so."""
    machine = Machine(code, 16, 128, tile_room=tiles, program_room=count)
    ran = [
        (each._replace(layer=1, head=1), begin, length) for each, begin, length in data.draw(forward_programs(16, 128))
    ]
    for program, begin, length in ran:
        machine.run_forward(program, begin, length)
    assert machine.counted() == (len(ran) if tiles and count else 0)


def test_windows_are_kept_without_a_ring_and_by_heads_that_are_left_out(code: ctypes.CDLL) -> None:
    machine = Machine(code, 16, 96, tile_room=0, program_room=0)
    machine.facts[recorder.FACTS.index("control")] = 0
    for start, head in ((5000, 0), (4000, 3), (6000, 1)):
        machine.run(Program(1, 0, head, 0, 100, 0, 2, start, [100, 100, 100, 100]))
    machine.run(Program(2, 0, 0, 0, 100, 0, 2, 1, [9000] * 4))
    assert not machine.windows[: layout.WINDOW_WORDS].any()
    assert machine.window(1) == (4000, 6400)


def test_kernels_without_pages_and_pages_that_fit_no_record_write_nothing(code: ctypes.CDLL) -> None:
    for page, paged in ((16, False), (24, True), (128, True)):
        machine = Machine(code, page, 96, tile_room=100, program_room=10)
        machine.run(Program(0, 0, 0, 0, 100, 0, 2, 1000, [100] * 4), paged=paged)
        assert int(machine.control[layout.CURSOR_WORDS[layout.PROGRAMS]]) == 0
    for page in (8, 24, 16 * 512):
        machine = Machine(code, page, 128, tile_room=100, program_room=10)
        machine.run_forward(Program(0, 0, 0, 0, 100, 0, 1, 1000, [100] * 2), 0, 100)
        assert int(machine.control[layout.CURSOR_WORDS[layout.PROGRAMS]]) == 0
