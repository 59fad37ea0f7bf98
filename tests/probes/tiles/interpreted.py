"""Runs a rewritten kernel in Triton's interpreter and prints what it recorded, as JSON.

Run as a script:

    TRITON_INTERPRET=1 python interpreted.py OPS_DIRECTORY

OPS_DIRECTORY is `vllm/v1/attention/ops` of any vLLM. The clock is a counter, so that times can be told in advance.
"""

import ast
import ctypes
import itertools
import json
import sys
import tempfile
import types
from pathlib import Path

import torch
import triton.language as tl

from kvtrace.probes.device.tiles import clock, launch, layout, recorder, rewrite

CAPACITY = 1 << 14
TICK = 1 << layout.TICK_SHIFT


class Clock:
    """Advances by a tick whenever it is read. Stands in for all that is assembly (`clock`)."""

    def __init__(self):
        self.now = 0

    def read(self):
        self.now += TICK
        return self.now

    def install(self):
        recorder.kvt_now = clock.kvt_now = lambda: tl.full([], self.read(), tl.int32)
        clock.kvt_ticks = lambda bits, since: tl.full(bits.shape, self.ticks(since), tl.int32)
        recorder.kvt_behind = clock.kvt_behind = lambda bits: None
        recorder.kvt_mark = clock.kvt_mark = self.mark
        recorder.kvt_record = clock.kvt_record = record
        recorder.kvt_reserve = clock.kvt_reserve = reserve
        recorder.kvt_put = clock.kvt_put = put
        recorder.kvt_load = clock.kvt_load = load
        recorder.kvt_enter = clock.kvt_enter = lambda word, wanted: self.raise_to(word, wanted, ~self.read())
        recorder.kvt_leave = clock.kvt_leave = lambda word, wanted: self.raise_to(word, wanted, self.read())

    def ticks(self, since):
        return ticks(since, self.read())

    def raise_to(self, word, wanted, value):
        if first(wanted):
            there = ctypes.c_uint64.from_address(first(word))
            there.value = max(there.value, value & (1 << 64) - 1)

    def mark(self, since, key, pair, end, address):
        to_key = ticks(since, first(key))
        key = first(since) + (to_key << layout.TICK_SHIFT)
        place = first(pair) & 0xFFFFFFFF
        if place < first(end):
            at = first(address) + 2 * place
            ctypes.c_uint16.from_address(at).value = to_key | self.ticks(key) << 8
        return tl.full([], key, tl.int32)


def ticks(since, time):
    return min((time - first(since)) >> layout.TICK_SHIFT, 255)


def reserve(counter, amount, wanted):
    return tl.atomic_add(counter, amount, mask=wanted)  # looked up when called: the interpreter has put its own there


def load(pointer):
    return tl.load(pointer)


def record(pair, end, programs, first_program, *words):
    program, place = first(pair) >> layout.TILE_BITS, first(pair) & layout.TILE_MASK
    if place < first(end) and program < first(programs):
        start, total, who, of, place_0, more = map(first, words)
        words = start, total, who, of, place_0 + place, more
        at = first(first_program) + layout.SECTIONS[layout.PROGRAMS].record_bytes * program
        (ctypes.c_uint32 * 6).from_address(at)[:] = [word & 0xFFFFFFFF for word in words]


def put(ticks, more, word_0, word_1, word_2, address, ok):
    if first(ok):
        words = first(word_0), first(word_1), first(word_2), first(ticks) | first(more) << 8
        (ctypes.c_uint32 * 4).from_address(first(address))[:] = [word & 0xFFFFFFFF for word in words]


def first(value):
    """A value, or a tensor's first."""
    return int(value.handle.data.flat[0]) if isinstance(value, tl.tensor) else int(value)


def kernels(*paths):
    """The Triton functions of source files, in one module."""
    text = ["import triton", "import triton.language as tl"]
    for path in paths:
        source = path.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                lines = source.splitlines()[node.decorator_list[0].lineno - 1 : node.end_lineno]
                text.append("\n".join(lines))
    path = Path(tempfile.mkdtemp()) / "kernels.py"
    path.write_text("\n\n".join(text))
    module = types.ModuleType("kernels")
    module.__file__ = str(path)
    module.float8_info = torch.finfo(torch.float8_e4m3fn)
    sys.modules["kernels"] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


class Memory:
    """The control words and sections, as the ring lays them out, and windows; `outputs` are those to be written."""

    def __init__(self, room=CAPACITY, outputs=("tiles",)):
        self.windows = torch.zeros(8 * layout.WINDOW_WORDS, dtype=torch.int64)
        self.outputs = outputs
        self.control = torch.zeros(layout.CONTROL_WORDS, dtype=torch.int64)
        self.sections = [torch.zeros(CAPACITY * s.record_bytes, dtype=torch.uint8) for s in layout.SECTIONS]
        for index, section in enumerate(self.sections):
            self.control[layout.ADDRESS_WORD + index] = section.data_ptr()
            self.control[layout.ROOM_WORD + index] = room

    def arguments(self, case):
        """Arguments that a rewritten kernel takes before vLLM's own."""
        control = self.control if "tiles" in self.outputs else None
        windows = self.windows if "windows" in self.outputs else None
        return control, windows, case["what"], case.get("head_bits", -1)

    def facts(self):
        pair = int(self.control[layout.CURSOR_WORDS[layout.PROGRAMS]])
        places = pair >> layout.TILE_BITS, pair & ((1 << layout.TILE_BITS) - 1)
        counts = (*places, int(self.control[layout.CURSOR_WORDS[layout.WRITES]]))
        return {
            "counts": counts,
            "windows": self.windows.tolist(),
            "tile_origin": (self.sections[layout.TILES].data_ptr() >> 1) & 0xFFFFFFFF,
            "sections": [
                self.sections[i][: min(counts[i], CAPACITY) * s.record_bytes].numpy().tobytes().hex()
                for i, s in enumerate(layout.SECTIONS)
            ],
        }


def attend(module, case, memory):
    """Attention of a batch over a paged cache; the output, for comparison with the original kernel's."""
    torch.manual_seed(1)
    lengths, queries = torch.tensor(case["lengths"]), torch.tensor(case["queries"])
    heads, size, block_size, tile = case["heads"], 16, case["block_size"], case["tile_size"]
    group, block_m = 2, 16
    tables = torch.tensor(case["tables"], dtype=torch.int32)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), queries.cumsum(0)]).to(torch.int32)
    tokens = int(queries.sum())
    query = torch.randn(tokens, heads * group, size)
    cache = torch.randn(2, case["blocks"], block_size, heads, size)
    output = torch.zeros_like(query)
    segments = 4
    partial = torch.zeros(tokens, heads * group, segments, size)
    peaks = torch.zeros(tokens, heads * group, segments)
    block_q = block_m // group
    grid = (tokens // block_q + len(lengths), heads, *((segments,) if case["is_3d"] else ()))
    kernel = module.kernel_unified_attention
    if memory is not None:
        rewritten = launch.load(kernel, rewrite.attention)
        kernel = _with(rewritten, *memory.arguments(case))
    names = set(_parameters(module.kernel_unified_attention))
    arguments = dict(  # noqa: C408
        output_ptr=output, query_ptr=query, key_cache_ptr=cache[0], value_cache_ptr=cache[1], sink_ptr=None,
        block_tables_ptr=tables, seq_lens_ptr=lengths.to(torch.int32), alibi_slopes_ptr=None, qq_bias_ptr=None,
        scale=0.25, q_scale=None, k_scale=None, v_scale=None, out_scale=1.0, softcap=0.0,
        num_query_heads=heads * group, num_queries_per_kv=group, block_table_stride=tables.stride(0),
        query_stride_0=query.stride(0), query_stride_1=query.stride(1), output_stride_0=output.stride(0),
        output_stride_1=output.stride(1), qq_bias_stride_0=0, BLOCK_SIZE=block_size, TILE_SIZE=tile, HEAD_SIZE=size,
        HEAD_SIZE_PADDED=size, USE_ALIBI_SLOPES=False, USE_ALIBI_SQRT=False, USE_QQ_BIAS=False, USE_SOFTCAP=False,
        USE_SINKS=False, SLIDING_WINDOW=case.get("sliding_window", 0), USE_CAUSAL=True, USE_PER_SEQ_CAUSAL=False,
        per_seq_causal_ptr=None, USE_MM_PREFIX=False, MAX_MM_RANGES=0, mm_prefix_range_ptr=None,
        rswa_prefix_lens_ptr=lengths.to(torch.int32), R_SWA_WINDOW=0, USE_R_SWA=False,
        stride_k_cache_0=cache.stride(1), stride_k_cache_1=cache.stride(2), stride_k_cache_2=cache.stride(3),
        stride_k_cache_3=1, stride_v_cache_0=cache.stride(1), stride_v_cache_1=cache.stride(2),
        stride_v_cache_2=cache.stride(3), stride_v_cache_3=1, query_start_len_ptr=starts, BLOCK_Q=block_q,
        num_seqs=len(lengths), BLOCK_M=block_m, NUM_SEGMENTS_PER_SEQ=segments if case["is_3d"] else 1, USE_FP8=False,
        IS_3D=case["is_3d"], segm_output_ptr=partial, segm_max_ptr=peaks, segm_expsum_ptr=peaks.clone(),
    )  # fmt: skip
    kernel[grid](**{name: value for name, value in arguments.items() if name in names})
    return partial if case["is_3d"] else output


def write(module, case, memory):
    """A cache write of tokens at slots; the cache afterwards."""
    torch.manual_seed(2)
    slots, heads, size, block_size = torch.tensor(case["slots"]), case["heads"], 16, case["block_size"]
    key, value = torch.randn(2, len(slots), heads, size)
    cache = torch.zeros(2, case["blocks"], block_size, heads, size)
    kernel = module.reshape_and_cache_kernel_flash
    more = {"INTERLEAVED_V_PACK_FACTOR": 0} if "INTERLEAVED_V_PACK_FACTOR" in kernel.arg_names else {}  # from 0.33 on
    if memory is not None:
        rewritten = launch.load(kernel, rewrite.cache_write)
        kernel = _with(rewritten, *memory.arguments(case))
    tile = heads * size // case["parts"]
    kernel[(len(slots), case["parts"])](
        key_ptr=key, value_ptr=value, key_cache_ptr=cache[0], value_cache_ptr=cache[1], slot_mapping_ptr=slots,
        k_scale=None, v_scale=None, key_stride=key.stride(0), value_stride=value.stride(0),
        block_stride=cache.stride(1), head_stride=cache.stride(3), dim_stride_k=0, dim_stride_v=0,
        page_stride=cache.stride(2), num_heads=heads, head_size=size, block_size=block_size, x=1,
        USE_HEAD_MAJOR_LAYOUT=False, FP8_KV_CACHE=False, TILE_SIZE=tile, **more,
    )  # fmt: skip
    return cache


def _with(kernel, *arguments):
    class Launch:
        def __getitem__(self, grid):
            return lambda **kwargs: kernel[grid](*arguments, **kwargs)

    return Launch()


def _parameters(kernel):
    return kernel.fn.__code__.co_varnames[: kernel.fn.__code__.co_argcount]


def main():
    ops = Path(sys.argv[1])
    attention = kernels(ops / "triton_attention_helpers.py", ops / "triton_unified_attention.py")
    writing = kernels(ops / "triton_reshape_and_cache_flash.py")
    ticking = Clock()
    ticking.install()
    for number, line in zip(itertools.count(), sys.stdin):
        case = json.loads(line)
        run, module = (write, writing) if "slots" in case else (attend, attention)
        memory = Memory(case.get("room", CAPACITY), case.get("outputs", ("tiles",)))
        plain = run(module, case, None)
        begun = ticking.now
        recorded = run(module, case, memory)
        facts = {"case": number, "same": bool(torch.equal(plain, recorded)), "begun": begun, "ended": ticking.now}
        print(json.dumps(facts | memory.facts()), flush=True)


if __name__ == "__main__":
    main()
