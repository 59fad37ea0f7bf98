"""On a GPU: FlashAttention 4's rewritten kernel alone. What it records, what its times mean and what it costs.

    python -m bench.fa4_tiles [truth] [latency] [cost]

Three parts, all of them or those named, with a JSON line a case. Truth: batches of several forms (decode, mixed, split,
pages as large as a tile and larger, a sliding window, heads of 64 and 256) in two layers: whether the output is bit for
bit that of vLLM's kernel, and whether tiles and blocks are those that lengths and block tables require. Latency: the
times of tiles whose bytes were in L2, and of others. Cost: graphs of 32 launches of vLLM's kernel, of the rewritten one
in steps that are recorded and that are not, and of the one that keeps only layers' windows.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func
from vllm.vllm_flash_attn.cute import interface

from kvtrace.format.tile_file import SECTION_BYTES
from kvtrace.ingest.derive import tile_columns
from kvtrace.ingest.derive.tile_tables import _checked
from kvtrace.probes.device.tiles import layout
from kvtrace.probes.device.tiles.fa4 import install
from kvtrace.probes.device.tiles.launch import Current
from kvtrace.probes.device.tiles.ring import STEP_SLOTS, Ring

HEADS, KV_HEADS, LAYERS = 32, 8, 32
FLUSH_BYTES = 512 << 20


class Batch:
    """A batch of sequences over a paged KV cache whose pages lie in random order."""

    def __init__(self, lengths, queries, page, size=128):
        pages = [-(-length // page) for length in lengths]
        order = torch.randperm(sum(pages) + 8, generator=torch.Generator().manual_seed(0)).int()
        self.table = torch.zeros((len(lengths), max(pages) + 3), dtype=torch.int32)
        at = 0
        for row, count in enumerate(pages):
            self.table[row, :count] = order[at : at + count]
            at += count
        self.cache = torch.randn((len(order), KV_HEADS, page, 2 * size), dtype=torch.bfloat16, device="cuda")
        k, v = self.cache.transpose(1, 2).split(size, dim=-1)
        starts = np.concatenate([[0], np.cumsum(queries)])
        self.arguments = {
            "q": torch.randn((sum(queries), HEADS, size), dtype=torch.bfloat16, device="cuda"),
            "k": k,
            "v": v,
            "cu_seqlens_q": torch.tensor(starts, dtype=torch.int32, device="cuda"),
            "max_seqlen_q": max(queries),
            "seqused_k": torch.tensor(lengths, dtype=torch.int32, device="cuda"),
            "max_seqlen_k": max(lengths),
            "block_table": self.table.cuda(),
            "softmax_scale": size**-0.5,
            "causal": True,
            "fa_version": 4,
        }
        self.lengths, self.queries, self.page = lengths, queries, page


class Recorder:
    """Launches, and reads back what they recorded."""

    def __init__(self) -> None:
        self.ring = Ring(256 << 20)
        self.current = Current(self.ring.control, -1)
        self.failures: list[str] = []
        self.windows = Current(
            None, windows=torch.zeros(LAYERS * layout.WINDOW_WORDS, dtype=torch.int64, device="cuda")
        )
        self._forwards = {}
        for current in (self.windows, self.current):
            installed = install(current, frozenset({"read"}), self.failures.append)
            if installed.problems:
                raise SystemExit("; ".join(installed.problems))
            self._forwards[current] = interface._flash_attn_fwd
            installed.undo()
        self._steps = 0

    def launch(self, batch, what, splits=0, window=None, out=None, *, tiles=True):
        """Attention of one layer; `what` as the rewritten kernel takes it, None for vLLM's own."""
        current = self.current if tiles else self.windows
        own, interface._flash_attn_fwd = interface._flash_attn_fwd, self._forwards[current]
        current.what = what
        out = torch.empty_like(batch.arguments["q"]) if out is None else out
        window = list(window) if window else None
        flash_attn_varlen_func(**batch.arguments, out=out, num_splits=splits, window_size=window)
        current.what = None
        interface._flash_attn_fwd = own
        return out

    def open(self, *, enabled=True) -> None:
        self.ring.open(torch.cuda.current_stream().cuda_stream, enabled=enabled)

    def close(self):
        """Close the step: its description, and where its sections lie."""
        self.ring.close(self._steps, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        step = self.ring.steps.numpy()[self._steps % STEP_SLOTS]
        self._steps += 1
        starts = [int(step[layout.START_WORD + section]) for section in range(3)]
        recorded = step[layout.STATE_WORD] == layout.RECORDED
        counts = [int(step[layout.COUNT_WORD + section]) * int(recorded) for section in range(3)]
        return starts, counts, recorded

    def release(self, starts, counts) -> None:
        for section in range(3):
            self.ring.released[section] = starts[section] + counts[section]
        self.ring.released[3] = self._steps

    def record(self, launches):
        """The records of the launches that a function makes."""
        self.open()
        launches()
        starts, counts, recorded = self.close()
        if not recorded:
            raise SystemExit("the ring has no room")
        sections = []
        for section, (start, count) in enumerate(zip(starts, counts, strict=True)):
            size = SECTION_BYTES[section]
            first = start % self.ring.capacities[section] * size
            sections.append(self.ring.memory[section][first : first + count * size].cpu().numpy().tobytes())
        tiles = int(self.ring.memory[layout.TILES].data_ptr()) // 2
        origin = (tiles + starts[layout.TILES] % self.ring.capacities[layout.TILES]) & 0xFFFFFFFF
        self.release(starts, counts)
        return tile_columns.from_sections(sections, origin)


def check(recorder, name, batch, splits=0, window=None) -> None:
    """Two layers' records against the lengths and the block table."""
    first, second = 1 << 8 | 1 << 16, 1 | 1 << 8  # the first lists its blocks
    own = recorder.launch(batch, None, splits, window)
    recorder.launch(batch, first, splits, window)  # compiles
    outs = []
    step = recorder.record(
        lambda: outs.extend(recorder.launch(batch, what, splits, window) for what in (first, second))
    )
    programs, times, listed = step.programs, tile_columns.times(step), tile_columns.block_ids(step)
    tile, block = (int(tokens(programs)[0]) for tokens in (tile_columns.tile_tokens, tile_columns.block_tokens))
    of = times.program
    found = set(zip(*(programs[n][of].tolist() for n in ("layer", "head", "row")), times.tile.tolist(), strict=True))
    needed, blocks, unit = set(), {}, min(tile, block)
    for row, (length, queries) in enumerate(zip(batch.lengths, batch.queries, strict=True)):
        low = max(0, (length - queries - window[0]) // tile) if window else 0
        for number in range(low, -(-length // tile)):
            needed |= {(layer, head, row, number) for layer in (0, 1) for head in range(KV_HEADS)}
        for index in range(low * tile // unit, -(-length // unit)):
            blocks[row, index] = int(batch.table[row, index * unit // batch.page])
    rows = programs["row"][listed.program].tolist()
    lists = dict(zip(zip(rows, listed.block_index.tolist(), strict=True), listed.block_id.tolist(), strict=True))
    right, wrong = _checked(step, listed)
    facts = {
        "case": name,
        "programs": len(programs),
        "tiles": len(times.tile),
        "tile_tokens": tile,
        "same_output": all(torch.equal(own, out) for out in outs),
        "missing": len(needed - found),
        "unexpected": len(found - needed),
        "blocks_right": lists == blocks,
        "sums_right": right,
        "sums_wrong": wrong,
        "in_order": bool((times.v_ns >= times.k_ns).all() and (times.k_ns >= times.k_start_ns).all()),
    }
    print(json.dumps(facts), flush=True)


def latency(recorder, calls=60, context=4096, together=8) -> None:
    """Times of tiles whose bytes were in L2 and of others, which take turns, run by run, within one sequence."""
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    batch = Batch([context], [1], 16)
    table = batch.table[0, : context // 16].cuda().long()
    run = torch.arange(context // 16, device="cuda") * 16 // 128 // together
    found: dict[str, tuple[list, list]] = {name: ([], []) for name in ("start to first K", "K to K", "V to V")}
    recorder.launch(batch, 1 << 8, 1)
    for call in range(calls):
        flush.add_(1)
        batch.cache[table[(run + call) % 2 == 0]].sum().item()
        torch.cuda.synchronize()
        step = recorder.record(lambda: recorder.launch(batch, 1 << 8, 1))
        times = tile_columns.times(step)
        for program in range(len(step.programs)):
            mine = times.program == program
            tile = times.tile[mine]
            cold = (tile // together + call) % 2 == 1
            inner = (tile % together > 2) & (tile % together < together - 3)  # away from where L2 and HBM meet
            for name, at in (("K to K", times.k_ns), ("V to V", times.v_ns)):
                between = np.diff(at[mine])
                for population in (0, 1):
                    found[name][population].append(between[inner[1:] & (cold[1:] == bool(population))])
            found["start to first K"][int(cold[0])].append((times.k_ns - times.k_start_ns)[mine][:1])
    for name, (warm, cold) in found.items():
        l2, hbm = np.concatenate(warm), np.concatenate(cold)
        longer = np.searchsorted(np.sort(l2), hbm).mean() / len(l2)
        quarters = [np.percentile(times, (25, 50, 75)).astype(int).tolist() for times in (l2, hbm)]
        facts = {"times": name, "l2_ns": quarters[0], "hbm_ns": quarters[1], "hbm_longer": round(float(longer), 4)}
        print(json.dumps(facts), flush=True)


def cost(recorder, name, batch, rounds=40) -> None:
    """Graphs of 32 launches: vLLM's kernel, and the rewritten one in steps that are not recorded and that are."""
    out = torch.empty_like(batch.arguments["q"])
    graphs = {}
    for kind in ("own", "rewritten", "windows"):

        def launches(kind=kind) -> None:
            for layer in range(LAYERS):
                what = layer | 1 << 8 | (1 << 16 if layer == 0 else 0)
                what = layer if kind == "windows" else what
                recorder.launch(batch, None if kind == "own" else what, out=out, tiles=kind != "windows")

        launches()
        torch.cuda.synchronize()
        graphs[kind] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[kind]):
            launches()
    found: dict[str, list[float]] = {"own": [], "not recorded": [], "recorded": [], "windows": []}
    for number in range(rounds):
        for kind in found if number % 2 else reversed(found):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            recorder.open(enabled=kind == "recorded")
            torch.cuda._sleep(20_000)
            start.record()
            graphs.get(kind, graphs["rewritten"]).replay()
            end.record()
            starts, counts, _ = recorder.close()
            recorder.release(starts, counts)
            if number > 3:
                found[kind].append(start.elapsed_time(end) * 1e3 / LAYERS)
    medians = {kind: float(np.median(times)) for kind, times in found.items()}
    ratios = {kind: round(median / medians["own"], 4) for kind, median in medians.items()}
    print(json.dumps({"cost": name, "us_a_launch": medians, "ratios": ratios}), flush=True)


def main() -> None:
    print(torch.cuda.get_device_name())
    recorder = Recorder()
    parts = set(sys.argv[1:]) or {"truth", "latency", "cost"}
    if "truth" in parts:
        some, few = [1000, 40, 130, 513], [1, 40, 1, 100]
        check(recorder, "decode", Batch([100, 700, 16, 129], [1] * 4, 16))
        check(recorder, "decode of 32", Batch([576 + 3 * row for row in range(32)], [1] * 32, 16))
        check(recorder, "mixed", Batch([900, 513, 31, 1000, 640], [300, 1, 31, 1, 640], 16))
        check(recorder, "split in 4", Batch(some, [1] * 4, 16), splits=4)
        check(recorder, "pages of a tile", Batch(some, few, 128))
        check(recorder, "pages of two tiles", Batch(some, few, 256))
        check(recorder, "heads of 64", Batch(some, few, 64, size=64))
        check(recorder, "window of 256", Batch(some, few, 16), window=(255, 0))
        check(recorder, "heads of 256", Batch(some, few, 16, size=256))
    if "latency" in parts:
        latency(recorder)
    if "cost" in parts:
        cost(recorder, "32 sequences", Batch([512 + 4 * row for row in range(32)], [1] * 32, 16))
        cost(recorder, "256 sequences", Batch([512 + row % 128 for row in range(256)], [1] * 256, 16))
        cost(recorder, "8 sequences", Batch([512 + 4 * row for row in range(8)], [1] * 8, 16))
        cost(recorder, "4 prompts of 512", Batch([512] * 4, [512] * 4, 16))
        cost(recorder, "a sequence of 8192", Batch([8192], [1], 16))
    if recorder.failures:
        raise SystemExit("; ".join(recorder.failures))


if __name__ == "__main__":
    main()
