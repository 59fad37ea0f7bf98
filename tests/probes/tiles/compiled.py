"""Compiles vLLM's kernels and their rewritten forms for real GPUs, without one, and prints facts of the machine code.

    python compiled.py OPS_DIRECTORY

A JSON object a kernel, architecture and output (tiles, or windows): whether it compiled, its registers, the order of
events in its tile loop, and its timer reads and atomics on windows.
And one with the numbers of sequences that attention still has to be compiled for once its first launch was made ready.
"""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import torch
import triton
from interpreted import kernels  # beside this script
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvtrace.probes.device.tiles import launch, rewrite

OUTPUTS = {"tiles": {"kvt_windows": None}, "windows": {"kvt_control": None}}
"""By name: the arguments that are left out."""
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
FIXED = {
    "sink_ptr": None, "alibi_slopes_ptr": None, "qq_bias_ptr": None, "q_scale": None, "num_query_heads": 32,
    "num_queries_per_kv": 4, "BLOCK_SIZE": 16, "HEAD_SIZE": 128, "HEAD_SIZE_PADDED": 128, "USE_ALIBI_SLOPES": False,
    "USE_ALIBI_SQRT": False, "USE_QQ_BIAS": False, "USE_SOFTCAP": False, "USE_SINKS": False, "SLIDING_WINDOW": 0,
    "USE_CAUSAL": True, "USE_PER_SEQ_CAUSAL": False, "per_seq_causal_ptr": None, "USE_MM_PREFIX": False,
    "MAX_MM_RANGES": 0, "mm_prefix_range_ptr": None, "R_SWA_WINDOW": 0, "USE_R_SWA": False, "stride_k_cache_3": 1,
    "stride_v_cache_3": 1, "BLOCK_Q": 4, "BLOCK_M": 16, "USE_FP8": False, "KV_QUANT_MODE": 0, "FP8_MIN": -448.0,
    "FP8_MAX": 448.0, "CHUNK_LOOKBACK": -1, "CHUNK_SIZE": -1, "USE_TD": False, "USE_TD_QO": False, "Q_IS_FP8": False,
    "MM_PREFIX_CLAMP_SW": False, "k_scale_cache_ptr": None, "v_scale_cache_ptr": None, "stride_ks_blk": None,
    "stride_ks_slot": None, "stride_ks_head": None, "stride_vs_blk": None, "stride_vs_slot": None,
    "stride_vs_head": None,
}  # fmt: skip
FLAT = {"IS_3D": False, "TILE_SIZE": 32, "NUM_SEGMENTS_PER_SEQ": 1}
FLAT |= dict.fromkeys(("segm_output_ptr", "segm_max_ptr", "segm_expsum_ptr"))
SEGMENTS = {"IS_3D": True, "TILE_SIZE": 16, "NUM_SEGMENTS_PER_SEQ": 16}
WRITE = {"num_heads": 8, "head_size": 128, "block_size": 16, "x": 1, "USE_HEAD_MAJOR_LAYOUT": False}
WRITE |= {"FP8_KV_CACHE": False, "TILE_SIZE": 1024}
TYPES = {
    "block_tables_ptr": "*i32", "seq_lens_ptr": "*i32", "query_start_len_ptr": "*i32", "rswa_prefix_lens_ptr": "*i32",
    "segm_output_ptr": "*fp32", "segm_max_ptr": "*fp32", "segm_expsum_ptr": "*fp32", "k_scale": "*fp32",
    "v_scale": "*fp32", "slot_mapping_ptr": "*i64", "kvt_control": "*i64", "kvt_windows": "*i64", "kvt_what": "i32",
    "scale": "fp32", "out_scale": "fp32", "softcap": "fp32", "num_seqs": "i32",
}  # fmt: skip


def type_of(name):
    return TYPES.get(name, "*bf16" if name.endswith("_ptr") else "i64")


def compiled(kernel, constants, architecture, warps, **options):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else type_of(name) for name in names}
    aligned = [i for i, name in enumerate(names) if signature[name][0] == "*" or "stride" in name]
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items() if name in names},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned if signature[names[i]] != "constexpr"},
    )
    options |= {"num_warps": warps}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


class Device:
    """Stands for a GPU: what Triton asks of one before it compiles for it."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def not_ready(kernel, rewritten, numbers):
    """Of numbers of sequences those that a launch would be compiled for, once that for the first was made ready."""
    triton.runtime.driver.set_active(Device())
    types = {"*i32": torch.int32, "*i64": torch.int64, "*fp32": torch.float32, "*bf16": torch.bfloat16}
    given = {name: value for name, value in (FIXED | FLAT).items() if name in kernel.arg_names}
    for name in set(kernel.arg_names) - set(given):
        kind = type_of(name)
        given[name] = torch.empty(64, dtype=types[kind]) if kind in types else 0.5 if kind == "fp32" else 4096
    grid, ours = (4, 8), (torch.empty(64, dtype=torch.int64), None, 1, 1)
    options = launch.Compilation(kernel, rewritten).options(grid, ours, (), {**given, "num_seqs": numbers[0]})
    cache, found = rewritten.device_caches[0][0], []
    for number in numbers:
        ready = len(cache)
        rewritten.warmup(*ours, grid=grid, **{**given, **options, "num_seqs": number})
        found += [number] if len(cache) > ready else []
    return found


def listing(binary: bytes, folder: Path) -> str:
    """The machine code."""
    (folder / "kernel.cubin").write_bytes(binary)
    command = [TOOLS / "nvdisasm", "-c", folder / "kernel.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def registers(binary: bytes, folder: Path) -> int:
    """Registers of a thread."""
    (folder / "kernel.cubin").write_bytes(binary)
    command = [TOOLS / "cuobjdump", "-res-usage", folder / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.search(r"REG:(\d+)", said.stdout + said.stderr)[1])


def tile_loop(code: str) -> list[str]:
    """Return the largest loop's instructions."""
    lines, labels = [], {}
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif instruction := re.search(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", line):
            lines.append(instruction[1])
    loops = [
        (labels[target[1]], end)
        for end, line in enumerate(lines)
        if (target := re.search(r"BRA.*?(\.L_x_\d+)", line)) and labels.get(target[1], end + 1) <= end
    ]
    first, last = max(loops, key=lambda loop: loop[1] - loop[0])
    return lines[first : last + 1]


def events(loop: list[str]) -> list[str]:
    """Return timer reads, tensor-core products, waits and stores, in the machine code's order."""
    kinds = {"GLOBALTIMER": "timer", "HMMA": "product", "DEPBAR.LE": "wait", "STG": "store"}
    return [kind for line in loop for mark, kind in kinds.items() if mark in line]


def spills(loop: list[str]) -> int:
    """Return how many instructions move spilled registers."""
    return sum("LDL" in line or "STL" in line for line in loop)


def main():
    import tempfile

    ops, folder = Path(sys.argv[1]), Path(tempfile.mkdtemp())
    attention = kernels(ops / "triton_attention_helpers.py", ops / "triton_unified_attention.py")
    writing = kernels(ops / "triton_reshape_and_cache_flash.py")
    jobs = [
        ("attention 2D", attention.kernel_unified_attention, rewrite.attention, FIXED | FLAT, 4),
        ("attention 3D", attention.kernel_unified_attention, rewrite.attention, FIXED | SEGMENTS, 4),
        ("cache write", writing.reshape_and_cache_kernel_flash, rewrite.cache_write, WRITE, 16),
    ]
    for name, kernel, rewriting, constants, warps in jobs:
        rewritten = launch.load(kernel, rewriting)
        for architecture, (output, without) in itertools.product((80, 90), OUTPUTS.items()):
            fact = {"kernel": name, "architecture": architecture, "output": output}
            own = compiled(kernel, constants, architecture, warps).asm["cubin"]
            binary = compiled(rewritten, constants | without, architecture, warps).asm["cubin"]
            code = listing(binary, folder)
            fact["compared"] = len(rewritten.used_global_vals)
            fact["bytes"], fact["bytes_before"] = len(binary), len(own)
            fact["registers"], fact["registers_before"] = registers(binary, folder), registers(own, folder)
            fact["timer"], fact["atomics"] = code.count("GLOBALTIMER"), len(re.findall(r"\bRED[G.]", code))
            if "attention" in name:
                fact["loop"] = events(tile_loop(code))
                fact["shuffles"], fact["shuffles_before"] = (
                    sum("SHFL" in line for line in tile_loop(each)) for each in (code, listing(own, folder))
                )
                programs = launch.at_once(65536, fact["registers_before"], warps)  # as a launch holds it
                limit = launch.by_block(32 * warps * programs)
                held = compiled(rewritten, constants | without, architecture, warps, **limit).asm["cubin"]
                fact["registers_held"] = registers(held, folder)
                fact["spills_in_loop"] = spills(tile_loop(listing(held, folder)))
            print(json.dumps(fact), flush=True)
    kernel = attention.kernel_unified_attention
    numbers = not_ready(kernel, launch.load(kernel, rewrite.attention), [3, 1, 2, 15, 16, 17, 32, 100, 255, 256])
    print(json.dumps({"kernel": "attention 2D, later", "numbers": numbers}), flush=True)


if __name__ == "__main__":
    main()
