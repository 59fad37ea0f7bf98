"""Predicted cells: vLLM's own scheduler in virtual time in place of an engine, in the same folders as measured ones.

DIR/cells/ID-predicted/   as a measured cell's, but that `facts.json` says from what it was predicted

One process imports vLLM and makes the workloads once: `python -m kvtrace.lab.replay.cell PLAN`. Each cell is its fork.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from kvtrace import __version__
from kvtrace.errors import KvtraceError
from kvtrace.format import layout
from kvtrace.lab.cell import DRAWS, FACTS, arguments_of, load_cell
from kvtrace.lab.lifetime import dies_with_us
from kvtrace.lab.matrix import Cell
from kvtrace.lab.policies import TTL_PIN, jobs_go_in_order, policy_label
from kvtrace.lab.replay import process
from kvtrace.lab.replay.check import Outcome
from kvtrace.lab.replay.loops import Loop
from kvtrace.lab.replay.recording import EngineFacts, Recording, default_graph_tokens
from kvtrace.lab.replay.resample import drawn_job
from kvtrace.lab.replay.run import Job, Replayed, finish
from kvtrace.lab.replay.settings import SCHEDULER, Settings, changed_settings, recorded_settings
from kvtrace.lab.replay.timing import COPIES_TAKEN_OFF, TimeModel
from kvtrace.lab.replay.workload import NEVER_RECORDED, engine_like, recording_of_workloads
from kvtrace.lab.shapes import kv_bytes_per_token
from kvtrace.lab.sweep import RESULT, RUN, write_object
from kvtrace.lab.workloads import Workload
from kvtrace.lab.workloads.agents import TOOL_S

_HARMLESS = {"gpu_memory_utilization"}
"""Arguments of vLLM that a replay leaves out: they change nothing that is predicted."""

_workloads: dict[str, tuple[list[Workload], list[dict[str, Any]]]] = {}

_RECORDS = """
SELECT internal_id AS id, arrival_ns, first_token_ns, finished_ns, output_tokens,
    coalesce(local_cached_tokens, 0) + coalesce(external_cached_tokens, 0) AS cached_tokens FROM request
"""


@dataclass(frozen=True)
class Source:
    """The trace that step times and the engine's other settings come from.

    Attributes:
        name: As reports call it.
        like: Its recording, of which only the engine and the requests' handover are needed.
        model: Fitted to its steps.
    """

    name: str
    like: Recording
    model: TimeModel


@dataclass(frozen=True)
class Plan:
    """Cells to predict: their folders, and the number of the source of each; draws of step times of each, or 0."""

    places: list[tuple[Path, int]]
    sources: list[Source]
    at_once: int
    draws: int = 0


def settings_of(policy: Mapping[str, Any]) -> list[str]:
    """A policy as changes of replayed settings.

    Raises:
        KvtraceError: No replay has it.
    """
    return [*(["order=jobs"] if jobs_go_in_order(policy) else []), *_own_settings(policy)]


def _own_settings(policy: Mapping[str, Any]) -> list[str]:
    name = policy["name"]
    if name in ("fcfs", "priority"):
        return []
    if name == "ttl-pin":
        options = {"tool_s": TOOL_S, **policy}
        given = [f"{key}={options[key]}" for key in ("ttl_s", "threshold_s", "unseen_tool_s") if key in options]
        return [f"scheduler_cls={TTL_PIN}", *given, f"tool_s={json.dumps(options['tool_s'])}"]
    if "host_gib" in policy:
        size = int(float(policy["host_gib"]) * (1 << 30))
    if name == "offloading":
        return [f"cpu_bytes_to_use={size}"]
    if name == "simple-cpu-offload":
        lazy = [f"lazy_offload={str(bool(policy['lazy_offload'])).lower()}"] if "lazy_offload" in policy else []
        return [f"cpu_bytes_to_use={size}", "connector=simple-cpu-offload", *lazy]
    if name == "lmcache":  # a model of its host tier; LMCache itself is not run
        rate = [f"tier_store_gb_per_s={policy['store_gb_per_s']}"] if "store_gb_per_s" in policy else []
        return ["tier=lmcache", f"tier_bytes={size}", f"tier_chunk_tokens={policy.get('chunk_tokens', 256)}", *rate]
    raise KvtraceError(f"policy {policy_label(policy)} cannot be replayed")


def changes_of(cell: Cell) -> list[str]:
    """A cell's policy and its further arguments of vLLM as changes of replayed settings.

    Raises:
        KvtraceError: No replay has the policy.
    """
    given = {name: value for name, value in cell.engine.items() if name in SCHEDULER}
    return [*settings_of(cell.policy), *(f"{name}={json.dumps(value)}" for name, value in given.items())]


def replayable(cell: Cell, source: Source) -> tuple[list[Workload], Recording, Settings]:
    """The workloads of a cell, as a recording to replay, and the settings to replay it with.

    Raises:
        KvtraceError: No replay can stand for the cell.
    """
    if strange := sorted(set(cell.engine) - _HARMLESS - set(SCHEDULER)):
        raise KvtraceError(f"arguments of vLLM that no replay has: {', '.join(strange)}")
    changes = changes_of(cell)
    workloads, _ = _workloads_of(cell)
    engine = engine_like(
        source.like.engine,
        **_of_shape(cell, source),
        block_size=cell.block_size,
        blocks=cell.kv_tokens // cell.block_size,
        max_num_seqs=cell.max_num_seqs,
        max_num_batched_tokens=cell.max_num_batched_tokens or source.like.engine.max_num_batched_tokens,
        max_model_len=arguments_of(cell, workloads)["max_model_len"],
        policy="fcfs",
        prefix_caching=cell.prefix_caching,
        chunked_prefill=cell.chunked_prefill,
        graph_tokens=0 if cell.enforce_eager else default_graph_tokens(cell.max_num_seqs),
    )
    recording = recording_of_workloads(workloads, engine, source.like, cell.reset_between)
    return workloads, recording, changed_settings(engine, recorded_settings(engine), changes)


def _of_shape(cell: Cell, source: Source) -> dict[str, Any]:
    """Fields of an engine that depend on the model, where the source's is another one.

    Raises:
        KvtraceError: It is not known what the layers of the cell's model keep.
    """
    if not _other_shape(cell, source):
        return {"model": cell.model}
    token_bytes = kv_bytes_per_token(cell.model)
    if token_bytes is None:
        raise KvtraceError(f"steps of {source.name} are of another model, and {cell.model} keeps other things by layer")
    return {"model": cell.model, "block_bytes": token_bytes * cell.block_size, "kv_groups": 1}


def _other_shape(cell: Cell, source: Source) -> str:
    """The name of the source's model, where it is not the cell's; else empty."""
    name = Path(source.like.engine.model or "").name
    return "" if name == Path(cell.model).name else name or "an unknown model"


def _workloads_of(cell: Cell) -> tuple[list[Workload], list[dict[str, Any]]]:
    """The workloads of a cell and their descriptions; cells that differ in their engines share them."""
    pool = (cell.kv_tokens, cell.block_size) if any(w["kind"] == "evict-pair" for w in cell.workloads.values()) else ()
    key = json.dumps([cell.phases, cell.workloads, cell.workload, cell.seed, cell.repeat, pool], sort_keys=True)
    if key not in _workloads:
        made = cell.make_workloads()
        _workloads[key] = made, [{"phase": phase, **each.describe()} for phase, each in enumerate(made)]
    return _workloads[key]


def job_of(cell: Cell, source: Source, settings: Settings, place: Path) -> Job:
    """The replay of a cell; its trace is where a measured cell's is."""
    facts = {"replay_time": f"fitted to {source.name}", "replay_changes": changes_of(cell), "lab_cell": cell.id}
    return Job(
        cell.label, settings, source.model, Loop("closed"), place / RUN / "trace.duckdb", facts,
        run_dir=str(place / RUN), result=str(place / "replay.json"),
    )  # fmt: skip


def _replayed(recording: Recording, job: Job) -> Replayed:
    """Replay in a fork, as clocks are replaced there for good.

    Raises:
        KvtraceError: It failed.
    """
    child = os.fork()
    if child == 0:
        os._exit(process._run(recording, job))
    os.waitpid(child, 0)
    done = finish(recording, job)
    Path(job.result).unlink(missing_ok=True)
    if isinstance(done, KvtraceError):
        raise done
    return done


def figures_of(found: Outcome) -> dict[str, float]:
    """Figures of a replay without a trace, by the names and in the units of the lab's."""
    means = {"jct_s": ("job", 1e3), "ttft_ms": ("ttft", 1.0), "tpot_ms": ("tpot", 1.0)}
    return {
        "makespan_s": found.span_s,
        "output_tokens_per_s": found.tokens_per_s,
        "cached_share": found.hit_share,
        "preemptions": found.preemptions,
        "evicted_blocks": found.evictions,
        **{
            f"{name}_mean": found.latency_ms[key][0] / unit
            for name, (key, unit) in means.items()
            if key in found.latency_ms
        },
    }


def _predict(place: Path, source: Source, draws: int) -> None:
    """Replay a cell and write what a measured cell's process would have written."""
    cell = load_cell(place)
    workloads, recording, settings = replayable(cell, source)
    if draws and len(workloads) > 1:
        raise KvtraceError(f"{len(workloads)} phases on one engine: draws are of cells with one")
    job = job_of(cell, source, settings, place)
    (place / RUN).mkdir()
    done = _replayed(recording, job)
    drawn = [_replayed(recording, drawn_job(job, number, draws)) for number in range(draws)]
    shutil.rmtree(place / RUN / layout.PROCESSES)  # several times its trace's size, and made again at will
    (place / RUN / layout.WORKLOAD).write_text(json.dumps(_workloads_of(cell)[1], indent=1) + "\n")
    windows = _write_records(place, workloads, recording)
    warnings = dict.fromkeys(warning for each in (done, *drawn) for warning in each.warnings)
    notes = [warning for warning in warnings if warning != NEVER_RECORDED]
    if other := _other_shape(cell, source):
        notes.append(f"steps take as long as those of {other}: of {cell.model}, believe counts only")
    if source.model.copies_taken_off:
        notes.append(COPIES_TAKEN_OFF)
    if copies := _copies(settings):
        notes.append(f"host copies at {copies} GB/s, {_measured(source.like.engine)}")
    facts = {
        "software": {"python": platform.python_version(), "vllm": done.vllm_version, "kvtrace": __version__},
        "device": source.name,
        "predicted": {
            "time_from": source.name,
            "residuals": [each._asdict() for each in source.model.residuals],
            "steps": done.steps,
            "replay_cpu_s": round(done.seconds, 3),
            "notes": notes,
            **({DRAWS: [figures_of(each.outcome) for each in drawn]} if drawn else {}),
        },
        "phases": [
            {"workload": workload.name, "start_ns": start_ns, "end_ns": end_ns}
            for workload, (start_ns, end_ns) in zip(workloads, windows, strict=True)
        ],
    }
    (place / FACTS).write_text(json.dumps(facts, indent=1) + "\n")


def _copies(settings: Settings) -> str:
    """Bandwidths of copies from and to the host, as text; empty without any."""
    if settings.tier:
        return f"{settings.tier['load_gb_per_s']:.3g} and {settings.tier['store_gb_per_s']:.3g}"
    return f"{settings.load_gb_per_s:.3g} and {settings.store_gb_per_s:.3g}" if settings.cpu_bytes_to_use else ""


def _measured(engine: EngineFacts) -> str:
    """Tell which of the bandwidths come from a recording."""
    if engine.load_gb_per_s is None and engine.store_gb_per_s is None:
        return "which nobody measured"
    if engine.load_gb_per_s is None or engine.store_gb_per_s is None:
        return "of which nobody measured those " + ("from" if engine.load_gb_per_s is None else "to") + " the host"
    return "as measured"


def _write_records(place: Path, workloads: list[Workload], recording: Recording) -> list[tuple[int, int]]:
    """Write client.jsonl as a client would have, and its table; when each workload began and ended, ns."""
    from kvtrace.ingest.client import count_join, import_client

    trace = place / RUN / "trace.duckdb"
    with duckdb.connect(str(trace)) as connection:
        found = connection.execute(_RECORDS)
        names = [column[0] for column in found.description]
        rows = {row[0]: dict(zip(names, row, strict=True)) for row in found.fetchall()}
    turns = iter(sorted(recording.requests, key=lambda request: request.number))
    windows = []
    with (place / RUN / layout.CLIENT).open("w", encoding="utf-8") as file:
        for phase, workload in enumerate(workloads):
            records = [
                {
                    "request_id": asked.external_id, "phase": phase, "workload": workload.name,
                    "session": job.session, "turn": job.first_turn + index, "last": index == len(job.turns) - 1,
                    **({"tool": turn.tool, "tool_ms": turn.tool_s * 1e3} if turn.tool else {}),
                    "prompt_tokens": asked.prompt_tokens,
                    **_seen(rows.get(asked.internal_id), asked.queued_ns),
                }
                for job in workload.jobs
                for index, (turn, asked) in enumerate(zip(job.turns, turns, strict=False))
            ]  # fmt: skip
            file.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
            ends = [record["last_token_ns"] or record["due_ns"] for record in records]
            windows.append((min(record["due_ns"] for record in records), max(ends)))
    unread: list[str] = []
    with duckdb.connect(str(trace)) as connection:
        import_client(connection, place / RUN, unread)
        count_join(connection)
    return windows


def _seen(got: dict[str, Any] | None, due_ns: int) -> dict[str, Any]:
    """Times and tokens of a record; a request that never ended has an error."""
    if got is None or got["finished_ns"] is None:
        due = got["arrival_ns"] if got else due_ns
        missing = dict.fromkeys(("first_token_ns", "last_token_ns", "cached_tokens"))
        return {
            "due_ns": due,
            "send_ns": due,
            **missing,
            "output_tokens": 0,
            "error": "it was never scheduled to its end",
        }
    return {
        "due_ns": got["arrival_ns"], "send_ns": got["arrival_ns"], "first_token_ns": got["first_token_ns"],
        "last_token_ns": got["finished_ns"], "output_tokens": got["output_tokens"],
        "cached_tokens": got["cached_tokens"], "error": None,
    }  # fmt: skip


def _run_cell(place: Path, source: Source, draws: int) -> None:
    """Predict a cell and write its result, last."""
    started_ns, started_s, error = time.time_ns(), time.monotonic(), None
    try:
        _predict(place, source, draws)
    except KvtraceError as failure:
        error = str(failure)
    except Exception as failure:
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    result = {
        "status": "failed" if error else "ok",
        "error": error,
        "started_ns": started_ns,
        "seconds": round(time.monotonic() - started_s, 3),
        "cpu_s": round(sum(os.times()[:4]), 3),
        "predicted": True,
    }
    write_object(place / RESULT, result)


def main(path: Path) -> int:
    """Predict the cells of a plan, some side by side. Writes the name of each that has ended to standard output."""
    die_with_us = dies_with_us()
    with path.open("rb") as file:
        plan: Plan = pickle.load(file)  # written by our own parent
    process.import_vllm()
    import pandas  # noqa: F401 - ingest of a cell needs it

    import kvtrace.ingest.client
    import kvtrace.ingest.run  # noqa: F401

    waiting, running = list(plan.places), dict[int, Path]()
    for place, _ in waiting:
        _prepare(place)
    like = plan.sources[0].like.engine
    process.warm(like, recorded_settings(like))
    while waiting or running:
        while waiting and len(running) < plan.at_once:
            place, source = waiting.pop(0)
            child = os.fork()
            if child == 0:
                die_with_us()
                with (place / "log.txt").open("wb") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                _run_cell(place, plan.sources[source], plan.draws)
                os._exit(0)
            running[child] = place
        child, _ = os.wait()
        print(running.pop(child).name, flush=True)  # noqa: T201
    return 0


def _prepare(place: Path) -> None:
    """Make a cell's workload, so that the forks share it. What is wrong with it is the cell's own failure, later."""
    try:
        _workloads_of(load_cell(place))
    except KvtraceError:
        return


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
