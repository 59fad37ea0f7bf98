"""Matrices, the command for them, and sweeps made by hand: their clients' records are known to the nanosecond."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvtrace.format import layout
from kvtrace.lab.cell import CELL, FACTS, PREDICTED
from kvtrace.lab.matrix import Cell
from kvtrace.lab.policies import policy_label, policy_of
from kvtrace.lab.sweep import RESULT, RUN
from tests.vllm.conftest import vllm_environment

MS = 1_000_000
SOFTWARE = {"python": "3.11", "vllm": "0.32.0"}


def lab(*arguments: str | Path, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `kvtrace lab` in a process of its own, which can start vLLM."""
    command = [sys.executable, "-m", "kvtrace", "lab", *map(str, arguments)]
    environment = vllm_environment(**environment)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=timeout)


def small_matrix(*policies: str) -> str:
    """The file of a matrix: agents on the smallest shape with each policy, as TOML has it."""
    listed = "".join(f"  {policy},\n" for policy in policies)
    return f"""
name = "small"
compare = "policy"
[cell]
model = "tiny"
block_size = 32
max_num_seqs = 6
max_num_batched_tokens = 256
rate = 20.0
[axes]
policy = [
{listed}]
kv_tokens = [1536]
[workloads.agents]
kind = "agent"
jobs = 8
turns = 4
scale = 0.1
tool_scale = 0.1
"""


def request(session: str, turn: int, send: int, first: int, end: int, **more: Any) -> dict[str, Any]:
    """A record of the client; times in ms."""
    return {
        "request_id": f"0-{session}-{turn}",
        "phase": 0,
        "workload": "w",
        "session": session,
        "turn": turn,
        "last": False,
        "due_ns": send * MS,
        "send_ns": send * MS,
        "first_token_ns": first * MS,
        "last_token_ns": end * MS,
        "prompt_tokens": 100,
        "output_tokens": 5,
        "cached_tokens": 40,
        "error": None,
        **more,
    }


class Sweep:
    """A directory of cells of one study."""

    def __init__(self, directory: Path, compare: str | None = "policy", **axes: list[Any]) -> None:
        self.directory = directory
        self._axes, self._compare = axes, compare
        self._cells: list[str] = []

    def cell(
        self,
        records: list[dict[str, Any]] | None = None,
        *,
        policy: Any = "fcfs",
        error: str | None = None,
        predicted: bool = False,
        **more: Any,
    ) -> Path:
        """Add a cell with what its client saw in the only phase, or its error; returns its place."""
        facts = {"software": SOFTWARE, "device": "gpu", **more.pop("facts", {})}
        workload = {
            "name": "w",
            "sha256": "one",
            "jobs": 9,
            "requests": 9,
            "parameters": {},
            **more.pop("workload", {}),
        }
        workloads = more.pop("workloads", [{"phase": 0, **workload}])
        settings = {"kv_tokens": 1600, **more}
        place = {axis: settings.get(axis) for axis in self._axes if axis != "policy"}
        if "policy" in self._axes:
            place = {"policy": policy_label(policy_of(policy)), **place}
        rate = settings.pop("rate", None)
        cell = Cell(study="study", axes=place, policy=policy_of(policy), workload={"rate": rate}, **settings)
        folder = self.directory / "cells" / (cell.id + (PREDICTED if predicted else ""))
        (folder / RUN).mkdir(parents=True)
        (folder / CELL).write_text(json.dumps(asdict(cell)))
        (folder / FACTS).write_text(json.dumps(facts))
        status = {"status": "failed" if error else "ok", "error": error, "seconds": 1.0, "started_ns": 0}
        (folder / RESULT).write_text(json.dumps(status))
        (folder / RUN / layout.CLIENT).write_text("".join(json.dumps(record) + "\n" for record in records or []))
        (folder / RUN / layout.WORKLOAD).write_text(json.dumps(workloads))
        self._cells += [cell.id] if cell.id not in self._cells else []
        return folder

    def close(self) -> Path:
        """Write the study; returns the directory."""
        study = {"name": "study", "axes": self._axes, "compare": self._compare, "cells": self._cells}
        (self.directory / "studies").mkdir()
        (self.directory / "studies" / "study.json").write_text(json.dumps(study))
        return self.directory


def job(session: str, start: int, ttft: int, turn_ms: int, **more: Any) -> list[dict[str, Any]]:
    """Two turns, the second 100 ms after the first's end; JCT is 2 turns + 100 ms."""
    second = start + turn_ms + 100
    return [
        request(session, 0, start, start + ttft, start + turn_ms, **more),
        request(session, 1, second, second + ttft, second + turn_ms, last=True, **more),
    ]


def both_made(directory: Path) -> Path:
    """Two policies at two rates, measured and predicted; the prediction has the policies' order wrong at the second."""
    sweep = Sweep(directory, policy=["fcfs", "priority"], rate=["1.0", "2.0"])
    told = {"predicted": {"time_from": "h100.duckdb", "notes": ["schedulers differ"]}}
    for policy, rate, measured, predicted in (
        ("fcfs", 1.0, 100, 110),
        ("priority", 1.0, 50, 55),
        ("fcfs", 2.0, 100, 100),
        ("priority", 2.0, 80, 120),
    ):
        for turn_ms, how in ((measured, False), (predicted, True)):
            records = [record for n in range(8) for record in job(f"j{n}", n, 10, turn_ms)]
            workload = {"parameters": {"rate": rate}}
            facts = told if how else {}
            sweep.cell(records, policy=policy, rate=rate, predicted=how, workload=workload, facts=facts)
    return sweep.close()


def drawn(directory: Path) -> Path:
    """Two policies at two rates, predicted with eight draws each; at the second rate two runs differ by more."""
    sweep = Sweep(directory, policy=["fcfs", "priority"], rate=["1.0", "2.0"])
    for policy, rate, turn_ms, step in (
        ("fcfs", 1.0, 100, 0.001),
        ("priority", 1.0, 50, 0.001),
        ("fcfs", 2.0, 100, 0.1),
        ("priority", 2.0, 80, 0.1),
    ):
        records = [record for n in range(8) for record in job(f"j{n}", n, 10, turn_ms)]
        jct_s = 2 * turn_ms / 1e3 + 0.1
        draws = [{"jct_s_mean": jct_s + step * (number - 3.5), "ttft_ms_mean": 10.0} for number in range(8)]
        facts = {"predicted": {"time_from": "h100.duckdb", "notes": [], "draws": draws}}
        workload = {"parameters": {"rate": rate}}
        sweep.cell(records, policy=policy, rate=rate, predicted=True, workload=workload, facts=facts)
    return sweep.close()


def table(markdown: str, heading: str) -> list[dict[str, str]]:
    """The first table after a heading, without marks."""
    head, *body = first_table(markdown[markdown.index(f"### {heading}\n") :])
    return [dict(zip(head, row, strict=True)) for row in body]


def first_table(markdown: str, *, marks: bool = False) -> list[list[str]]:
    """The rows of the first table in a text, without marks unless they are asked for; its head is the first."""
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), markdown.splitlines())
    rows = [
        [cell.strip() if marks else cell.strip().replace("**", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines)
    ]
    return [rows[0], *rows[2:]]
