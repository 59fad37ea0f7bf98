"""The baseline without paging: Hugging Face's `generate()` on fixed batches, the same shape, the same prompts.

Prompts of a batch are padded to the longest on the left, and all run until the last is done: what a paged engine saves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.lab.client import Notes, realtime_offset_ns
from kvtrace.lab.matrix import Cell
from kvtrace.lab.shapes import shape_path
from kvtrace.lab.turn import wait_for_turn
from kvtrace.lab.workloads import Job, Workload


def measure(cell: Cell, directory: Path, run_dir: Path, facts: dict[str, Any]) -> None:
    """Run a cell's phases and write what a client would have seen.

    Raises:
        KvtraceError: A workload has jobs of several turns.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    workloads = cell.make_workloads()
    if any(len(job.turns) > 1 for workload in workloads for job in workload.jobs):
        raise KvtraceError("policy hf-generate: batches are fixed, so jobs must have one turn")
    described = [{"phase": phase, **workload.describe()} for phase, workload in enumerate(workloads)]
    (run_dir / layout.WORKLOAD).write_text(json.dumps(described, indent=1) + "\n")
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(shape_path(cell.model))
    make_model: Any = AutoModelForCausalLM.from_config
    torch.manual_seed(0)
    with torch.device(device):
        model = make_model(config, dtype=getattr(torch, str(config.dtype).removeprefix("torch.")))
    model.eval()
    facts["start_s"] = round(time.monotonic() - began, 3)
    facts["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    facts["phases"] = []
    batch = int(cell.policy.get("batch", 8))
    offset_ns = realtime_offset_ns()
    first = [job.turns[0] for job in workloads[0].jobs[:batch]]
    # The first batch once before it counts: kernels are chosen at a new length, and it ran 2 to 4 times slower.
    _generate(model, [turn.new for turn in first], max(turn.output_tokens for turn in first), device)
    facts["waited_s"] = round(wait_for_turn(directory), 3)
    with Notes(run_dir / layout.CLIENT) as notes:
        for phase, workload in enumerate(workloads):
            start_ns = time.monotonic_ns() + offset_ns
            _phase(model, workload, phase, batch, device, notes, offset_ns)
            end_ns = time.monotonic_ns() + offset_ns
            facts["phases"].append({"workload": workload.name, "start_ns": start_ns, "end_ns": end_ns})


def _phase(model: Any, workload: Workload, phase: int, batch: int, device: str, notes: Notes, offset_ns: int) -> None:
    """Batches of jobs in order, whenever the one before is done; arrivals are not waited for."""
    start_ns = time.monotonic_ns() + offset_ns
    for first in range(0, len(workload.jobs), batch):
        jobs: Sequence[Job] = workload.jobs[first : first + batch]
        longest = max(job.turns[0].output_tokens for job in jobs)
        times = [at_ns + offset_ns for at_ns in _generate(model, [job.turns[0].new for job in jobs], longest, device)]
        for job in jobs:
            output = job.turns[0].output_tokens
            notes.write(
                {
                    "request_id": f"{workload.name}-{phase}-{job.session}-{job.first_turn}",
                    "phase": phase,
                    "workload": workload.name,
                    "session": job.session,
                    "turn": job.first_turn,
                    "last": True,
                    "due_ns": start_ns,
                    "send_ns": start_ns,  # all are there from the start and wait for their batch
                    "first_token_ns": times[0],
                    "last_token_ns": times[-1],  # the batch returns as a whole
                    "prompt_tokens": len(job.turns[0].new),
                    "output_tokens": output,
                    "cached_tokens": 0,
                    "error": None,
                }
            )


def _generate(model: Any, prompts: Sequence[Sequence[int]], output_tokens: int, device: str) -> list[int]:
    """Return when each token of the batch was there, CLOCK_MONOTONIC ns."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    times: list[int] = []

    class Stamp(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.monotonic_ns())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=output_tokens,
            max_new_tokens=output_tokens,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([Stamp()]),
        )
    return times
