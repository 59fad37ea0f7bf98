"""Recordings of what was never recorded: a lab workload or a request trace, on an engine as another trace has it."""

from __future__ import annotations

import json
import tomllib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.matrix import IN_WORKLOAD, Cell, workload_in_cell
from kvtrace.lab.replay.recording import EngineFacts, RecordedRequest, Recording, StepTime
from kvtrace.lab.workloads import Workload, make
from kvtrace.queries import Trace

NEVER_RECORDED = "this workload was never recorded: no figure of it could be held against a measured one"
_START_NS = 1_000_000_000_000_000_000
"""When workloads begin: 2001. A workload has no time of its own."""

_FRONTEND_SHARE = 10
_MATRICES = (".toml", ".json")


def is_workload(path: Path) -> bool:
    """A file that describes workloads: a matrix, or one workload's parameters."""
    return path.suffix in _MATRICES


def read_workload(path: Path, name: str | None = None) -> Workload:
    """The workload of a file: a matrix's only or named one, as its cells have it, or a table with `kind`.

    Raises:
        KvtraceError: It cannot be read, or has several workloads and none was named.
    """
    try:
        text = path.read_text(encoding="utf-8")
        given = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise KvtraceError(f"{path} cannot be read: {error}", 2) from error
    if not isinstance(given, dict):
        raise KvtraceError(f"{path}: expected [workloads.NAME], or a table with kind and its parameters", 2)
    if "kind" in given:
        return make(path.stem, given)
    known = given.get("workloads", {})
    chosen = name or (next(iter(known)) if len(known) == 1 else "")
    if chosen not in known:
        raise KvtraceError(f"{path}: name a workload with --workload; there are {', '.join(known) or 'none'}", 2)
    cell = given.get("cell", {})
    common = {
        key.removeprefix("workload."): value
        for key, value in cell.items()
        if key in IN_WORKLOAD or key.startswith("workload.")
    }
    return make(chosen, workload_in_cell(known[chosen], common, cell.get("seed", Cell.seed)))


def is_request_trace(path: Path) -> bool:
    """A trace that says what was asked of an engine, and not what one did: no steps, and requests with arrivals."""
    with Trace(path) as trace:
        (row,) = trace.sql(
            "SELECT (SELECT count(*) FROM step) steps, (SELECT count(arrival_ns) FROM request) asked",
            format="arrow",
        ).to_pylist()
    return not row["steps"] and bool(row["asked"])


def engine_like(engine: EngineFacts, **changes: object) -> EngineFacts:
    """An engine of the same kind for other requests: no connector, vLLM's own scheduler, other sizes.

    Args:
        engine: The recorded one.
        changes: Fields to change. With another block size, blocks keep their bytes a token, and so does the pool. With
            `block_bytes` given, it is another model, whose layers keep K and V of every token.
    """
    size = changes.get("block_size", engine.block_size)
    assert isinstance(size, int)
    of_others = {"ttl_pin", "kv_transfer", "lora", "speculative"}
    if size != engine.block_size or "block_bytes" in changes:
        of_others |= {"kv_cache", "kv_cache_groups"}
    scaled = {
        "told": {name: value for name, value in engine.told.items() if name not in of_others},
        "block_size": size,
        "hash_block_size": size,
        "blocks": engine.blocks * engine.block_size // size,
        "block_bytes": engine.block_bytes and engine.block_bytes * size // engine.block_size,
        "engine_id": 1,
        "scheduler": None,
        "connector": None,
        "prefix_caching": True,
        "invented": True,
    }
    return replace(engine, **{**scaled, **changes})  # type: ignore[arg-type]


def recording_of_workloads(
    workloads: Sequence[Workload], engine: EngineFacts, like: Recording, reset_between: bool = False
) -> Recording:
    """A recording to replay, of workloads of the lab, each after the one before it has ended.

    Turns take no time in it; a closed loop gives them theirs.

    Args:
        workloads: What clients would send.
        engine: What they would send it to.
        like: The recording the engine is like; the frontend's share is taken from it.
        reset_between: Empty the prefix cache before each workload but the first.
    """
    frontend_ns = frontend_share(like)
    requests: list[RecordedRequest] = []
    phases_ns: list[int] = []
    slots: dict[str, int] = {}
    for phase, workload in enumerate(workloads):
        start_ns = _START_NS
        if phase:
            start_ns = max(request.queued_ns for request in requests) + 1
            phases_ns.append(start_ns)
        requests += _requests_of(workload, phase, engine, frontend_ns, start_ns, len(requests))
        slots[_pool(workload, phase)] = workload.concurrency or 1
    notes = list(dict.fromkeys(note for workload in workloads for note in workload.notes))
    made = _made(Path("+".join(dict.fromkeys(each.name for each in workloads))), engine, requests, notes)
    made = replace(made, slots=slots)
    return replace(made, resets_ns=phases_ns) if reset_between else replace(made, phases_ns=phases_ns)


def _pool(workload: Workload, phase: int) -> str:
    return f"{phase}-{workload.name}"


def _requests_of(
    workload: Workload, phase: int, engine: EngineFacts, frontend_ns: int, start_ns: int, before: int
) -> list[RecordedRequest]:
    """Requests of a workload that begins at some time, numbered after `before` others."""
    requests: list[RecordedRequest] = []
    apart = f"{phase}-" if phase else ""  # no turn follows one of the workload before
    pool = _pool(workload, phase) if workload.arrivals_s is None else None
    for place, job in enumerate(workload.jobs):
        end_ns = start_ns + (round(workload.arrivals_s[place] * 1e9) if workload.arrivals_s is not None else 0)
        prompts = list(_prompts(workload, place, engine.hash_block_size))
        for index, (turn, (prompt, chain)) in enumerate(zip(job.turns, prompts, strict=True)):
            # Jobs that take slots are apart, also where one goes on with another's session.
            session, turn_number = f"{pool}-{place}" if pool else apart + job.session, job.first_turn + index
            name = f"{workload.name}-{phase}-{job.session}-{job.first_turn + index}"
            requests.append(
                RecordedRequest(
                    before + len(requests) + 1,
                    name,
                    name,
                    session,
                    turn_number,
                    turn.tool or None,
                    0,
                    end_ns,
                    end_ns + frontend_ns,
                    prompt,
                    turn.output_tokens,
                    turn.output_tokens,
                    "length",
                    end_ns + frontend_ns,
                    chain,
                    pool=pool,
                )
            )
            end_ns += frontend_ns + round(turn.tool_s * 1e9)
    return requests


def frontend_share(like: Recording) -> int:
    """Time from a request's arrival until an idle engine's scheduler has it, ns."""
    handover = sorted(max(request.queued_ns - request.arrival_ns, 0) for request in like.requests)
    return handover[len(handover) // _FRONTEND_SHARE]


def _prompts(workload: Workload, place: int, block_size: int) -> Iterator[tuple[int, dict[int, int]]]:
    """Each turn's prompt tokens, and the hashes of the blocks that it and what the history goes on with fill.

    Turns share one chain as long as the history goes on with what the model generated, whose tokens are unique.
    """
    history, previous = array("i"), b""
    hashes: dict[int, int] = {}
    for index, turn in enumerate(workload.jobs[place].turns):
        history.extend(turn.new)
        prompt = len(history)
        # Negative tokens are those of an answer that nobody else gets.
        history.extend(range(-1, -1 - turn.output_tokens, -1) if turn.answer is None else turn.answer)
        if turn.answer is None and turn.output_tokens:
            history[prompt] = -(place << 12 | index) - 1
        if index and workload.jobs[place].turns[index - 1].answer is not None:
            hashes = dict(hashes)  # the turn before generated other tokens than the history goes on with
        end = len(history) if turn.answer is None else prompt
        for position in range(len(hashes), end // block_size):
            block = history[position * block_size : (position + 1) * block_size].tobytes()
            previous = blake2b(previous + block, digest_size=8).digest()
            hashes[position] = int.from_bytes(previous, "big")
        yield prompt, hashes


def recording_of_requests(path: Path, like: Recording) -> Recording:
    """A recording to replay, of a request trace that `kvtrace ingest --requests` read: an open loop at its times.

    A hash stands for its block and all before it; requests without hashes share nothing.

    Raises:
        KvtraceError: The trace's blocks are no multiple of vLLM's.
    """
    rows, chains, hash_tokens = _read_requests(path)
    size = hash_tokens or like.engine.hash_block_size
    engine, warnings, cut = engine_like(like.engine), [], 0
    divides = size % engine.block_size == 0
    if not divides:
        engine = engine_like(like.engine, block_size=size)
        warnings.append(f"blocks have {size} tokens, as many as a hash of {path.name} covers")
    frontend_ns, ratio, requests = frontend_share(like), size // engine.block_size, []
    for row in rows:
        output = max(int(row["outputs"]), 1)
        prompt = min(row["prompt_tokens"], engine.max_model_len - output)
        if prompt < 1:
            raise KvtraceError(
                f"request {row['internal_id']} generates {output} tokens; {like.trace} had a max_model_len of "
                f"{engine.max_model_len}; take --time-from a trace that had more",
                2,
            )
        cut += prompt < row["prompt_tokens"]
        arrival = _START_NS + row["arrival_ns"] - rows[0]["arrival_ns"]
        requests.append(
            RecordedRequest(
                row["request"],
                row["internal_id"],
                row["external_id"] or row["internal_id"],
                row["session"],
                row["turn"],
                None,
                0,
                arrival,
                arrival + frontend_ns,
                prompt,
                output,
                output,
                "length",
                arrival + frontend_ns,
                _split(chains.get(row["request"], {}), ratio, prompt // engine.block_size),
            )
        )
    if cut:
        warnings.append(f"{cut} prompts were cut to max_model_len, {engine.max_model_len} tokens, less their output")
    if not chains:
        warnings.append(f"{path.name} has no block hashes: all blocks count as unique, so nothing is shared")
    return _made(path, engine, requests, warnings)


def _read_requests(path: Path) -> tuple[list[dict[str, Any]], dict[int, dict[int, int]], int | None]:
    """Requests of a trace by arrival, the hashes of each by position, and the tokens of a hash, if all have as many."""
    with Trace(path) as trace:
        sizes = trace.sql("SELECT DISTINCT hash_block_tokens n FROM engine", format="arrow")["n"].to_pylist()
        rows = trace.sql(
            "SELECT request, internal_id, external_id, session, turn, prompt_tokens, arrival_ns, "
            "coalesce(output_tokens, 1) outputs FROM request "
            "WHERE arrival_ns IS NOT NULL AND prompt_tokens > 0 ORDER BY arrival_ns, request",
            format="arrow",
        ).to_pylist()
        hashes = trace.sql("SELECT request, position, block_hash FROM request_hash", format="arrow")
    if not rows:
        raise KvtraceError(f"{path} has no requests to replay")
    chains: dict[int, dict[int, int]] = defaultdict(dict)
    for number, position, block_hash in zip(*(column.to_pylist() for column in hashes.columns), strict=True):
        chains[number][position] = block_hash
    return rows, chains, sizes[0] if len(sizes) == 1 else None


def _split(chain: dict[int, int], ratio: int, blocks: int) -> dict[int, int]:
    """Hashes of large blocks as hashes of the engine's smaller ones."""
    if ratio == 1:
        return {position: block_hash for position, block_hash in chain.items() if position < blocks}
    found = {}
    for position, block_hash in chain.items():
        for part in range(min(ratio, blocks - position * ratio)):
            found[position * ratio + part] = _part(block_hash, part)
    return found


def _part(block_hash: int, part: int) -> int:
    return int.from_bytes(
        blake2b(block_hash.to_bytes(8, "big") + bytes((part % 256, part // 256)), digest_size=8).digest()
    )


def _made(name: Path, engine: EngineFacts, requests: Sequence[RecordedRequest], warnings: list[str]) -> Recording:
    ordered = sorted(requests, key=lambda request: (request.queued_ns, request.number))
    start_ns = ordered[0].arrival_ns
    nothing = StepTime(0, start_ns, None, None, 0, 0, 0, 0, 0)  # replays begin with the first step
    return Recording(name, engine, list(ordered), [nothing], [], None, [NEVER_RECORDED, *warnings])
