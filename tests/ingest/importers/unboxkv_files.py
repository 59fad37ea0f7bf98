"""Files as UnBoxKV-IO writes them, made small: what a run of a few requests would leave, in the tool's own layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TICKS = 7


def block_bytes(block_tokens: int, width: int, element: int) -> int:
    """Bytes of K of a block: `width` elements a token."""
    return block_tokens * width * element


def write_record(slot: int, block_tokens: int, width: int, element: int) -> list[int]:
    """The row of a token: first and last byte of its K, of its V, and how long it took."""
    size = block_bytes(block_tokens, width, element)
    block, place = divmod(slot, block_tokens)
    group = 16 // element
    k = block * size + place * 16
    k_end = block * size + (width // group - 1) * block_tokens * 16 + place * 16 + (group - 1) * element
    v = block * size + place * element
    v_end = block * size + (width - 1) * block_tokens * element + place * element
    return [k, k_end, v, v_end, TICKS]


def read_lists(tables: Sequence[Sequence[int]], warps: int, entries: int, *, v: bool) -> list[list[int]]:
    """A list a request as the kernels fill it: K by warp and turn, V by warp and position, into one flat array."""
    flat = [-1] * (len(tables) * warps * entries * 3)
    for row, table in enumerate(tables):
        for position, block in enumerate(table):
            warp, turn = position % warps, position // warps
            slot = row * warps * entries + warp * entries + (position if v else turn)
            start = 100 + turn * 10 if v else 5 + turn * 10
            if (slot + 1) * 3 <= len(flat):
                flat[slot * 3 : slot * 3 + 3] = [start, 6, block]
    stride = warps * entries * 3
    return [flat[row * stride : (row + 1) * stride] for row in range(len(tables))]


class Patterns:
    """A run of prompts that all prefill in one step, then decode together, over some layers."""

    def __init__(
        self, prompts: Sequence[int], decodes: int, *, block_tokens: int = 16, width: int = 64, element: int = 2,
        layers: int = 2, blocks: int = 40, warps: int = 4, entries: int = 5,
    ) -> None:  # fmt: skip
        self.block_tokens, self.width, self.element = block_tokens, width, element
        self.tables: list[list[int]] = [[] for _ in prompts]
        self._lengths = [0] * len(prompts)
        self._next = blocks - 1
        self.writes: list[dict[str, Any]] = []
        self.reads: list[dict[str, Any]] = []
        for step in range(1, decodes + 2):
            slots = [self._store(row) for row, count in enumerate(prompts) for _ in range(count if step == 1 else 1)]
            for layer in range(layers):
                head = {
                    "layer_id": layer, "step": step, "start_time": 1000.0 + step + layer / 1000,
                    "cpu_duration(us)": 9.5, "kcache_start_addr": 1, "vcache_start_addr": 2,
                    "kv_cache_range": blocks * block_bytes(block_tokens, width, element),
                    "seq_lens": list(prompts) if step == 1 else [1] * len(prompts),
                }  # fmt: skip
                records = [write_record(slot, block_tokens, width, element) for slot in slots]
                self.writes.append(head | {"kv_write_pattern_record": records})
                if step > 1:
                    lists = {
                        f"{part}_read_pattern_record": read_lists(self.tables, warps, entries, v=part == "v")
                        for part in "kv"
                    }
                    strides = {"req_stride": warps * entries * 3, "block_acc_stride": entries}
                    self.reads.append(head | strides | lists)

    def _store(self, row: int) -> int:
        place = self._lengths[row] % self.block_tokens
        if place == 0:
            self.tables[row].append(self._next)
            self._next -= 1
        self._lengths[row] += 1
        return self.tables[row][-1] * self.block_tokens + place

    def save(self, folder: Path, name: str = "") -> tuple[Path, Path]:
        """Write both files; returns their paths."""
        paths = folder / f"kv_write_pattern{name}.json", folder / f"kv_read_pattern{name}.json"
        for path, lines in zip(paths, (self.writes, self.reads), strict=True):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return paths


USAGE_HEADER = (
    "Time elapsed (ms),Avg throughput (tokens/s),Running (reqs),Swapped (reqs),Pending (reqs),"
    "GPU KV cache usage (%),CPU KV cache usage (%)"
)
USAGE = f"""{USAGE_HEADER}
0,0,0,0,0,0,0
100.0,1000.0,2,0,0,95.0,0.0
140.0,50.0,2,0,0,99.0,0.0
190.5,2.0,1,1,0,50.0,12.2
230.5,25.0,1,1,0,51.0,12.2
330.5,10.0,2,0,0,96.0,0.0
"""
STEPS = """step_id,dur(ms),running_reqs,resumed_reqs,raw_running
1,90.0,2,0,2
2,39.5,2,0,2
3,50.25,1,0,1
4,39.5,1,0,1
5,99.0,2,1,1
"""

LOG = """\
Namespace(backend='vllm', model='/models/tiny-7b', tensor_parallel_size=1, input_len=40, output_len=2, \
max_model_len=128, enable_prefix_caching=False, enable_chunked_prefill={chunked}, max_num_batched_tokens=32, \
max_num_seqs=8, block_size=16, preemption_mode='recompute', enable_mixed_batch=False)
Loaded 1 requests, requiring 1 requests.
User Requests: prompt_len=40, output_len=2, sequence_len=42...
Selected required requests 1
User Requests: prompt_len=40, output_len=2, sequence_len=42...
{banner}
INFO 09-24 01:41:38 llm_engine.py:103] Initializing an LLM engine (v0.4.2) with config: model='/models/tiny-7b'
INFO 09-24 01:41:48 llama.py:316] before LlamaModel forward() input_ids.shape=torch.Size([32]), positions.shape=x
INFO 09-24 01:41:48 worker.py:164] Peak: 13.5 GB,               cache_block_size: 8388608 Bytes, available GPU x
INFO 09-24 01:41:48 gpu_executor.py:117] # GPU blocks: 1000, # CPU blocks: 500
INFO 09-24 01:42:00 Start warmup...
{warmup}INFO 09-24 01:42:05 Start benchmarking...
{benchmark}RequestOutput(request_id=1, request_type=SequenceType.RAW, finished=True, \
metrics=RequestMetrics(arrival_time=1727142125.0, last_token_time=1727142125.2, \
first_scheduled_time=1727142125.01, first_token_time=1727142125.15, time_in_queue=0.01, \
finished_time=1727142125.25, rescheduled_time=None, reget_first_token_time=None))
Total_num_tokens: 42
Throughput: 5.00 requests/s, 210.00 tokens/s
"""


def log_step(
    tokens: int,
    prompt: float,
    output: float,
    interval_ms: float,
    time_ms: float,
    *,
    usage: float = 10.0,
    running: int = 1,
) -> str:
    """The lines of a step: the forward pass, the statistics, its time. `prompt` and `output` are tokens."""
    seconds = interval_ms / 1000
    return (
        f"INFO 09-24 01:42:00 llama.py:316] before LlamaModel forward() input_ids.shape=torch.Size([{tokens}]), x\n"
        f"INFO 09-24 01:42:00 metrics.py:335] Avg prompt throughput: {prompt / seconds:.1f} tokens/s, "
        f"Avg generation throughput: {output / seconds:.1f} tokens/s, Running: {running} reqs, Swapped: 0 reqs, "
        f"Pending: 0 reqs, GPU KV cache usage: {usage:.1f}%, CPU KV cache usage: 0.0%, "
        f"Interval(ms): {interval_ms:.1f}\n"
        f"INFO 09-24 01:42:00 llm_engine.py:629] LLMEngine step() (unit:ms): time_cost {time_ms:.4f} resumed_reqs=0, "
        f"running_reqs={running} raw_running={running}\n"
    )


def log_text(*, chunked: bool) -> str:
    """A log of a prompt of 40 tokens and one more output, with a budget of 32 tokens a pass."""
    banner = "Chunked prefill is enabled. max_num_batched_tokens=32" if chunked else "default batching strategy."
    warmup = log_step(16, 16, 1, 20.0, 19.0)
    parts = [(32, 32, 0, 50.0, 49.0), (8, 8, 1, 100.0, 99.5)] if chunked else [(40, 40, 1, 150.0, 149.0)]
    benchmark = "".join(log_step(*part) for part in parts) + log_step(1, 0, 1, 10.0, 9.5, usage=0.0)
    return LOG.format(chunked=chunked, banner=banner, warmup=warmup, benchmark=benchmark)
