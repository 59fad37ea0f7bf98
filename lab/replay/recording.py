"""Reads from a trace what a scheduler needs to run again: its settings, its requests and the times of its steps."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.queries import Trace

_ONE_ARRIVAL_NS = 100_000_000
_SAMPLE = re.compile(r"\d+_(.+)", re.ASCII | re.DOTALL)
LOAD = 1 << 40
"""Set in a `transfer` that is a load, above the connector's own number of it (`probes/connectors/part.py`)."""
_HOLDS_UP, _WAITS = "SimpleCPUOffloadConnector", "LMCacheConnectorV1"
_HIDDEN_WAITS = (
    "LMCache's stores were recorded by an earlier kvtrace, with the wait for their steps' own work in their times: "
    "neither their speed is known nor what prefills take"
)
HIDDEN_COPY_NS = 8_000_000
"""Copies that this connector's thread hands to the driver hold up launches, but for so long (inferred). On an H100 with
vLLM 0.33, steps with loads of 20 to 190 ms took as long as the load, less 2 to 13 ms: `kvtrace query load-steps`."""
_ABORTS = ("abort", "error", "other", "ignored")


@dataclass(frozen=True)
class EngineFacts:
    """Settings of the recorded engine. `blocks` leaves out the null block, as table `engine` does.

    Attributes:
        told: Further settings, by the names of `engine.settings`; empty in recordings of earlier kvtraces.
        load_gb_per_s: Bandwidth that a worker's copies from the host achieved, GB/s; None without any.
        store_gb_per_s: The same of copies to the host.
        copies_by: The connector that made these copies.
        invented: No engine had all this: it was made for a workload that was never recorded.
        graph_tokens: Most tokens of a step that ran as CUDA graphs, or vLLM's default where that fits (inferred).
        copy_begin_us: Host time that loading a block adds to a step, us: in the scheduler, and to begin its copy.
        connector_lookup_us: Host time that asking the connector about a waiting request adds to a step for each block
            of that request, us: in all of the scheduler, not in the question alone.
    """

    engine_id: int
    model: str | None
    vllm_version: str | None
    block_size: int
    hash_block_size: int
    blocks: int
    block_bytes: int | None
    kv_groups: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    policy: str
    scheduler: str | None
    prefix_caching: bool
    chunked_prefill: bool
    async_scheduling: bool
    connector: str | None
    tp_size: int = 1
    told: dict[str, Any] = field(default_factory=dict)
    load_gb_per_s: float | None = None
    store_gb_per_s: float | None = None
    copy_begin_us: float | None = None
    connector_lookup_us: float | None = None
    copies_by: str | None = None
    invented: bool = False
    graph_tokens: int = 0

    @property
    def num_speculative_tokens(self) -> int:
        """Most draft tokens of a request in a step; 0 without speculation."""
        return int((self.told.get("speculative") or {}).get("num_speculative_tokens") or 0)


@dataclass
class RecordedRequest:
    """A request as the recording tells of it. Times are UNIX nanoseconds.

    Attributes:
        output_tokens: Output length, if the model or the length limit ended the request; else tokens it got to.
        end: Finish reason; None if the recording ended first.
        chain: Block hashes by position, in blocks of `EngineFacts.hash_block_size` tokens.
        skips_cache: Its prefix lookups were disabled.
        tenant: Its tenant, as the recording names it.
        lora: Name of its LoRA adapter.
        drafts: With speculation, by the number of output tokens before a step: draft tokens that were verified, and
            those of them that were accepted.
        pool: Of a job that takes a free slot of this name: as many at a time as `Recording.slots` says, in the order of
            their numbers, each as soon as another one ends.
    """

    number: int
    internal_id: str
    external_id: str | None
    session: str | None
    turn: int | None
    tool: str | None
    priority: int
    arrival_ns: int
    queued_ns: int
    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    end: str | None
    finished_ns: int | None
    chain: dict[int, int] = field(default_factory=dict)
    skips_cache: bool = False
    tenant: str | None = None
    lora: str | None = None
    drafts: dict[int, tuple[int, int]] = field(default_factory=dict)
    pool: str | None = None

    @property
    def aborted(self) -> bool:
        """Something outside the scheduler ended it."""
        return self.end in _ABORTS


def in_job_order(requests: list[RecordedRequest]) -> list[RecordedRequest]:
    """The requests with priorities by the arrival of their session's first one, as a client of the lab gives them."""
    first: dict[str | int, int] = {}
    for request in requests:
        job = request.session or request.number
        first[job] = min(first.get(job, request.arrival_ns), request.arrival_ns)
    place = {job: place for place, job in enumerate(sorted(first, key=lambda job: first[job]))}
    return [replace(request, priority=place[request.session or request.number]) for request in requests]


class Pinned(NamedTuple):
    """When a request's blocks were pinned, and what is known of the end of their time to live: between two moments.

    It is looked for as a step starts. `after_ns` is the start of the last step that did not find it, or when something
    else ended the pin; `until_ns` the start of the step that did. None where the recording does not tell.
    """

    begin_ns: int
    after_ns: int | None
    until_ns: int | None


class StepTime(NamedTuple):
    """A recorded step. `update_ns` and `end_ns` are None if its results are not in the recording.

    Decode tokens include drafts. A decoding request's context counts once. `copying_ns` is how long its worker was busy
    with a KV connector's copies, or launches waited for them (inferred); `asking_ns` what its questions to it
    took (inferred, of `EngineFacts.connector_lookup_us`); `waited_ns` how long its worker waited for the step's own
    work before it stored that, and `worked_ns` the time from the step's start to the end of it, without its loads.
    `launched_ns` is what its slowest worker took to launch its forward passes, 0 where that was not recorded, and
    `graph_mode` how they ran, eager if one of them did; None where vLLM did not say.
    """

    step: int
    start_ns: int
    update_ns: int | None
    end_ns: int | None
    decode_tokens: int
    prefill_tokens: int
    decode_context: int
    prefill_context: int
    waiting: int
    copying_ns: int = 0
    asking_ns: int = 0
    waited_ns: int = 0
    worked_ns: int = 0
    launched_ns: int = 0
    graph_mode: str | None = None


@dataclass
class Recording:
    """Everything a replay reads from a trace.

    Attributes:
        resets_ns: When the prefix cache was emptied.
        phases_ns: When a workload began that waited for the ends of all requests before it.
        slots: Jobs at a time, by the pool of requests that have one.
        places: Of a resample: how many requests each `loops.Group` of the recording had, and its other fields.
        pins: Of requests whose blocks were pinned for some time after their end, by their internal id.
        transfers: With a KV connector: the step with whose results the workers reported each transfer's end, by the
            connector's own number of the transfer, of a load with `LOAD`.
        ended: By step, the internal ids of ended requests in the order in which the connector was told of them.
        loaded: The same of requests whose loads were reported with a step's results.
        warnings: What the trace does not tell, and what is assumed instead.
    """

    trace: Path
    engine: EngineFacts
    requests: list[RecordedRequest]
    steps: list[StepTime]
    resets_ns: list[int]
    command: str | None
    warnings: list[str]
    transfers: dict[int, int] = field(default_factory=dict)
    pins: dict[str, Pinned] = field(default_factory=dict)
    ended: dict[int, list[str]] = field(default_factory=dict)
    loaded: dict[int, list[str]] = field(default_factory=dict)
    phases_ns: list[int] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    places: list[tuple[int, int, list[int], int]] | None = None

    @property
    def by_number(self) -> dict[int, RecordedRequest]:
        """The requests by their key in the trace."""
        return {request.number: request for request in self.requests}


def read_recording(path: Path, engine_id: int | None = None) -> Recording:
    """Read one engine's part of a trace.

    Args:
        path: A trace made by `kvtrace ingest`.
        engine_id: Which engine; the only one unless given.

    Raises:
        KvtraceError: The trace has no scheduler steps or requests, or several engines and none was named.
    """
    with Trace(path) as trace:
        facts = dict(_rows(trace, "SELECT key, value FROM run"))
        engine = _engine(trace, path, engine_id, facts.get("vllm_version"))
        warnings: list[str] = []
        if engine.connector == _WAITS and _hides_waits(trace, engine):
            engine = replace(engine, store_gb_per_s=None)
            warnings.append(_HIDDEN_WAITS)
        requests = _requests(trace, engine, warnings)
        if not requests:
            raise KvtraceError(f"{path} has no requests of engine {engine.engine_id} to replay")
        _read_chains(trace, engine, requests, warnings)
        steps = _steps(trace, engine)
        engine = replace(engine, graph_tokens=_graph_tokens(steps, engine))
        resets = _rows(
            trace,
            "SELECT time_ns FROM block_event WHERE op = 'reset' AND pool = 0 AND engine_id = $e ORDER BY time_ns",
            engine,
        )
        if not steps:
            raise KvtraceError(f"{path} has no scheduler steps of engine {engine.engine_id}")
        drafts = _drafts(trace, engine)
        _refuse(trace, engine, drafts)
        _read_drafts(trace, engine, requests, drafts)
        if facts.get("kept_from_ns"):
            warnings.append("the recording's beginning was discarded: what the cache held at first is not known")
        _read_owners(trace, engine, requests, warnings)
        recording = Recording(path, engine, requests, steps, [row[0] for row in resets], facts.get("command"), warnings)
        if engine.connector:
            recording.transfers = _transfers(trace, engine)
            _read_news(trace, recording)
        recording.pins = _pins(trace, engine)
    return recording


MOST_GRAPH_TOKENS = 512
"""Of vLLM's default; on Blackwell it is twice that."""


def default_graph_tokens(max_num_seqs: int, num_speculative_tokens: int = 0) -> int:
    """Most tokens of a step that vLLM captures CUDA graphs for unless told otherwise."""
    return min(2 * max_num_seqs * (1 + num_speculative_tokens), MOST_GRAPH_TOKENS)


def _graph_tokens(steps: list[StepTime], engine: EngineFacts) -> int:
    """Most tokens of a step that ran as CUDA graphs: vLLM's default, where no step says that it was another limit."""
    tokens: dict[bool, list[int]] = {False: [], True: []}
    for step in steps:
        if step.graph_mode and step.decode_tokens + step.prefill_tokens:
            tokens[step.graph_mode != "eager"].append(step.decode_tokens + step.prefill_tokens)
    most = max(tokens[True], default=0)
    default = default_graph_tokens(engine.max_num_seqs, engine.num_speculative_tokens)
    return default if 0 < most <= default < min(tokens[False], default=default + 1) else most


def _pins(trace: Trace, engine: EngineFacts) -> dict[str, Pinned]:
    rows = _rows(
        trace,
        "WITH ended AS ("
        "SELECT pin, any_value(reason)::VARCHAR AS reason, min(time_ns) AS time_ns, any_value(step) AS step "
        "FROM pin_end WHERE engine_id = $e GROUP BY pin"
        "), start AS ("
        "SELECT step, start_ns, lag(start_ns) OVER (ORDER BY step) AS before_ns FROM step WHERE engine_id = $e) "
        "SELECT internal_id, min(p.time_ns), any_value(if(reason = 'expired', before_ns, e.time_ns)), "
        "any_value(if(reason = 'expired', start_ns, NULL)) "
        "FROM pin_start p JOIN request USING (request, engine_id) LEFT JOIN ended e USING (pin) "
        "LEFT JOIN start s ON s.step = e.step WHERE cause = 'ttl' AND p.engine_id = $e GROUP BY internal_id",
        engine,
    )
    return {name: Pinned(*times) for name, *times in rows}


def _refuse(trace: Trace, engine: EngineFacts, drafts: Drafts) -> None:
    """Raise for what no replay can repeat."""
    why = None

    def has(rows: str) -> bool:
        return bool(_rows(trace, f"SELECT 1 FROM {rows} AND engine_id = $e LIMIT 1", engine))

    if has("pin_start WHERE cause = 'streaming'"):
        why = "requests got their prompts in parts (streaming sessions); the trace does not tell how long these were"
    elif has("step_schedule WHERE decode_tokens > decode_requests") and not drafts:
        why = "it generated speculatively, and the trace does not tell its drafts"
    elif has("request_remote WHERE true"):
        why = "it was one half of a prefill/decode pair; the other engine's part is not in its requests"
    elif has("request_key WHERE multimodal_key IS NOT NULL"):
        why = "requests had images or other items; the trace does not tell what their encoder took of a step"
    if why:
        raise KvtraceError(f"engine {engine.engine_id} cannot be replayed: {why}", 2)


def _read_owners(trace: Trace, engine: EngineFacts, requests: list[RecordedRequest], warnings: list[str]) -> None:
    owners = {number: owner for number, *owner in _rows(trace, "SELECT request, tenant, lora FROM request")}
    for request in requests:
        request.tenant, request.lora = owners[request.number]
    if any(request.lora for request in requests) and not engine.told.get("lora"):
        warnings.append("LoRA adapters were used; replay does not limit how many are loaded at once")


Drafts = dict[tuple[int, int], tuple[int, int]]
"""Verified and accepted draft tokens, by request and step."""


def _drafts(trace: Trace, engine: EngineFacts) -> Drafts:
    """Read table `draft`, which traces of earlier kvtraces lack."""
    if not _rows(trace, "SELECT 1 FROM duckdb_tables() WHERE table_name = 'draft'"):
        return {}
    rows = _rows(trace, "SELECT request, step, drafted_tokens, accepted_tokens FROM draft WHERE engine_id = $e", engine)
    return {(request, step): (drafted, accepted) for request, step, drafted, accepted in rows}


def _read_drafts(trace: Trace, engine: EngineFacts, requests: list[RecordedRequest], drafts: Drafts) -> None:
    """Put in each request's drafts, by the output tokens that it had when a step with them had its results.

    Where another replay stops between two such steps, a draft of the first goes on with what is left of it. What a
    preempted request had drafted was not recorded: as many as may be, none of them accepted (inferred; a long draft is
    what needs the blocks that a preemption frees).
    """
    if not drafts:
        return
    by_number = {request.number: request for request in requests}
    outputs: dict[int, int] = defaultdict(int)
    rows = _rows(
        trace,
        "SELECT request, step, phase::VARCHAR, computed_tokens + scheduled_tokens FROM step_request "
        "WHERE engine_id = $e ORDER BY step",
        engine,
    )
    for number, step, phase, end in rows:
        request = by_number.get(number)
        if request is None or not (phase == "decode" or end >= request.prompt_tokens + outputs[number]):
            continue  # a part of a prompt gives no token
        drafted, accepted = drafts.get((number, step), (engine.num_speculative_tokens if phase == "resumed" else 0, 0))
        for more in range(accepted + 1):
            request.drafts[outputs[number] + more] = (drafted - more, accepted - more)
        outputs[number] += 1 + accepted


def _transfers(trace: Trace, engine: EngineFacts) -> dict[int, int]:
    """The step whose results told of each finished transfer: that of the poll which found the last worker done."""
    rows = _rows(
        trace,
        "SELECT t.transfer, max(p.step) FROM (SELECT transfer, process_id, finished_ns FROM transfer_end "
        f"WHERE finished_ns IS NOT NULL AND transfer < {2 * LOAD}) t ASOF JOIN "
        "(SELECT process_id, start_ns, step FROM connector_call "
        "WHERE call = 'poll' AND part = 0 AND engine_id = $e) p "
        "ON t.process_id = p.process_id AND t.finished_ns >= p.start_ns GROUP BY t.transfer",
        engine,
    )
    return dict(rows)


def _read_news(trace: Trace, recording: Recording) -> None:
    """Read in which order the connector was told of ended requests and loads."""
    rows = []
    if _rows(trace, "SELECT 1 FROM duckdb_tables() WHERE table_name = 'connector_news'"):
        rows = _rows(
            trace,
            "SELECT n.op::VARCHAR, n.step, r.internal_id FROM connector_news n JOIN request r USING (request) "
            "WHERE n.engine_id = $e ORDER BY n.rowid",
            recording.engine,
        )
    if not rows:
        recording.warnings.append(
            "the trace does not tell in which order its connector took requests that ended with one step; "
            "blocks of the tier may be evicted in another order"
        )
    for op, step, internal_id in rows:
        (recording.ended if op == "ended" else recording.loaded).setdefault(step, []).append(internal_id)


def _rows(trace: Trace, sql: str, engine: EngineFacts | None = None) -> list[tuple[Any, ...]]:
    if engine is not None:
        sql = sql.replace("$e", str(engine.engine_id))
    table = trace.sql(sql, format="arrow")
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def _engine(trace: Trace, path: Path, engine_id: int | None, vllm_version: str | None) -> EngineFacts:
    rows = _rows(
        trace,
        "SELECT engine_id, model, block_size_tokens, coalesce(hash_block_tokens, block_size_tokens), blocks, "
        "block_bytes, coalesce(kv_groups, 1), max_num_batched_tokens, max_num_seqs, max_model_len, "
        "coalesce(policy, 'fcfs'), scheduler, "
        "coalesce(prefix_caching, true), coalesce(chunked_prefill, true), coalesce(async_scheduling, false), "
        f"connector, coalesce(tp_size, 1), {_if_there(trace, 'engine', 'settings')} FROM engine ORDER BY engine_id",
    )
    ids = ", ".join(str(row[0]) for row in rows)
    if engine_id is None and len(rows) > 1:
        raise KvtraceError(f"{path} has several engines ({ids}); name one with --engine", 2)
    chosen = [row for row in rows if engine_id in (None, row[0])]
    if not chosen:
        raise KvtraceError(
            f"{path} has no engine {engine_id if engine_id is not None else ''}; it has {ids or 'none'}", 2
        )
    (number, model, size, hash_size, blocks, block_bytes, groups, budget, seqs, longest, *rest) = chosen[0]
    if None in (size, blocks, budget, seqs, longest):
        raise KvtraceError(
            f"{path} does not say how large engine {number}'s cache and steps are; it cannot be replayed"
        )
    policy, scheduler, caching, chunked, ahead, connector, tp_size, settings = rest
    load, store = _rates(trace, number)
    begin_us, lookup_us = _host_times(trace, number, size, connector) if connector else (None, None)
    return EngineFacts(
        number, model, vllm_version, size, hash_size, blocks, block_bytes, groups, budget, seqs, longest, policy,
        scheduler, caching, chunked, ahead, connector, tp_size, _told(settings), load, store, begin_us, lookup_us,
        copies_by=connector,
    )  # fmt: skip


def _hides_waits(trace: Trace, engine: EngineFacts) -> bool:
    """Tell if no store of LMCache's started later than its call, as earlier kvtraces recorded them."""
    sql = "SELECT max(started_ns - submitted_ns) FROM transfer WHERE direction = 'store' AND engine_id = $e"
    return bool(_rows(trace, sql, engine)[0][0] == 0)


def _rates(trace: Trace, engine_id: int) -> tuple[float | None, float | None]:
    """Bandwidths of a worker's copies from the host, and to it, GB/s; None where none was recorded."""
    rows = _rows(trace, f"SELECT direction, bytes_per_s FROM transfer_rate WHERE engine_id = {engine_id}")
    found = {direction: rate / 1e9 for direction, rate in rows if rate}
    return found.get("load"), found.get("store")


_ASKED_BLOCKS = f"""
SELECT step, sum(prompt_tokens) / $size AS blocks, sum(time_ns - asked_ns) AS ns FROM (
    SELECT *, row_number() OVER (PARTITION BY request ORDER BY time_ns) AS time FROM connector_lookup
    WHERE part = 0 AND engine_id = $e
) JOIN request USING (engine_id, request)
WHERE time = 1 OR connector <> '{_WAITS}' GROUP BY step
"""
"""Blocks of the requests that a step asked the connector about. LMCache keeps its answers: again it takes 20 us."""

_HOST_TIMES = f"""
WITH load AS (SELECT step, connector, blocks FROM step_load WHERE engine_id = $e), call AS (
    SELECT step, max(ns) AS ns FROM (
        SELECT process_id, step, sum(end_ns - start_ns) AS ns FROM connector_call
        WHERE call = 'load' AND engine_id = $e GROUP BY ALL
    ) GROUP BY step
), asked AS ({_ASKED_BLOCKS}), plan AS (
    SELECT step, scheduled_ns - start_ns AS ns, coalesce(asked.blocks, 0) AS asked, asked.ns AS asked_ns, load.blocks,
        if(connector LIKE 'LMCache%', 0, coalesce(call.ns, 0)) AS called_ns
    FROM step_schedule LEFT JOIN asked USING (step) LEFT JOIN load USING (step) LEFT JOIN call USING (step)
    WHERE engine_id = $e
), idle AS (
    SELECT median(ns) AS none_ns FROM plan WHERE blocks IS NULL AND asked = 0
), question AS (
    SELECT $answered AS ns, asked AS blocks FROM plan, idle WHERE blocks IS NULL AND asked > 0
), answer AS (
    SELECT greatest(sum(ns) / sum(blocks), 0) AS ns FROM question
    WHERE ns / blocks < 5 * (SELECT median(ns / blocks) FROM question)
), cost AS (
    SELECT plan.ns - none_ns - asked * coalesce(answer.ns, 0) + called_ns AS ns, blocks
    FROM plan, idle, answer WHERE blocks IS NOT NULL
)
SELECT
    (SELECT sum(ns) / sum(blocks) / 1e3 FROM cost WHERE ns / blocks < 5 * (SELECT median(ns / blocks) FROM cost)),
    (SELECT ns / 1e3 FROM answer)
"""
"""Host time that loading a block adds to a step beside its copy, and that asking about one does, without stalls. Other
connectors' questions are told by what they add to a step's planning, LMCache's by their own times.
LMCache copies within its call, which is not counted."""


def _host_times(trace: Trace, engine_id: int, block_size: int, connector: str) -> tuple[float | None, float | None]:
    """Host time of loading a block and of asking the connector about one, us; None without any."""
    answered = "asked_ns" if connector == _WAITS else "ns - none_ns"
    sql = _HOST_TIMES.replace("$e", str(engine_id)).replace("$size", str(block_size)).replace("$answered", answered)
    begin_us, lookup_us = (each if each is None else max(float(each), 0.0) for each in _rows(trace, sql)[0])
    return begin_us, lookup_us


def _if_there(trace: Trace, table: str, name: str) -> str:
    """A column that traces of earlier kvtraces lack, as SQL."""
    known = _rows(
        trace,
        f"SELECT 1 FROM duckdb_columns() WHERE table_name = '{table}' AND column_name = '{name}'",
    )
    return name if known else "NULL"


def _told(settings: str | None) -> dict[str, Any]:
    """The engine's further settings. A redacted trace has a hash in their place."""
    try:
        found = json.loads(settings or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _requests(trace: Trace, engine: EngineFacts, warnings: list[str]) -> list[RecordedRequest]:
    tagged = _if_there(trace, "request_queued", "tool")
    rows = _rows(
        trace,
        "SELECT r.request, r.internal_id, r.external_id, r.session, r.turn, coalesce(q.tool, c.tool), "
        "coalesce(r.priority, 0), "
        "coalesce(r.arrival_ns, r.queued_ns), r.queued_ns, r.prompt_tokens, r.max_tokens, "
        "coalesce(r.output_tokens, 0), "
        "r.finish_reason::VARCHAR, r.finished_ns FROM request r "
        "LEFT JOIN (SELECT request, any_value(tool) tool FROM client_request GROUP BY request) c USING (request) "
        f"LEFT JOIN (SELECT request, any_value({tagged})::VARCHAR tool FROM request_queued GROUP BY request) q "
        "USING (request) "
        "WHERE r.engine_id = $e AND r.queued_ns IS NOT NULL AND r.prompt_tokens > 0 ORDER BY r.queued_ns, r.request",
        engine,
    )
    requests = []
    for row in rows:
        if row[10] is None or row[10] <= 0:  # no length limit was asked for
            row = (*row[:10], max(row[11], 1), *row[11:])  # noqa: PLW2901
        requests.append(RecordedRequest(*row))
    _equal_arrivals(requests)
    unfinished = sum(request.end is None for request in requests)
    if unfinished:
        warnings.append(f"{unfinished} requests had not ended when the recording did; they end at the length they had")
    return requests


def _equal_arrivals(requests: list[RecordedRequest]) -> None:
    """Give the samples of a request (n > 1) one arrival time again: recording adds the jitter of two clock readings.

    vLLM orders requests of equal priority and arrival by their ids, which are the sample's number and the request's id.
    """
    first: dict[str, int] = {}
    for request in sorted(requests, key=lambda request: request.arrival_ns):
        if match := _SAMPLE.fullmatch(request.internal_id):
            arrival_ns = first.setdefault(match[1], request.arrival_ns)
            if request.arrival_ns - arrival_ns < _ONE_ARRIVAL_NS:  # else only their clients gave them such ids
                request.arrival_ns = arrival_ns


def _read_chains(trace: Trace, engine: EngineFacts, requests: list[RecordedRequest], warnings: list[str]) -> None:
    """Put in each request's chain: of its prompt from its lookups, of its outputs from the blocks it cached."""
    by_number = {request.number: request for request in requests}
    chains: dict[int, dict[int, int]] = defaultdict(dict)
    alike = engine.hash_block_size == engine.block_size
    looked_up = "SELECT DISTINCT request, position, block_hash FROM block_lookup WHERE engine_id = $e"
    if not alike:  # hits are in groups whose blocks hold one hash or several; a block has the last one's
        looked_up = (
            "SELECT DISTINCT request, position, block_hash FROM request_hash WHERE engine_id = $e UNION SELECT "
            "h.request, (row_number() OVER (PARTITION BY h.request, h.step, c.kv_group ORDER BY h.place)) "
            f"* g.block_size_tokens // {engine.hash_block_size} - 1, c.block_hash FROM (SELECT *, rowid AS place FROM "
            "block_event WHERE engine_id = $e AND op = 'hit' AND pool = 0) h ASOF JOIN (SELECT *, rowid AS place FROM "
            "block_event WHERE engine_id = $e AND op = 'cache' AND pool = 0) c ON h.block_id = c.block_id "
            "AND h.place > c.place JOIN kv_group g ON g.engine_id = h.engine_id AND g.kv_group = c.kv_group "
            "WHERE g.kind = 'full'"
        )
    for number, position, block_hash in _rows(trace, looked_up, engine):
        chains[number][position] = block_hash
    # A block id stands at one place of a request's table from the step that put it there.
    events = (
        "SELECT request, block_id, step, block_hash FROM block_event WHERE op = 'cache' AND pool = 0 AND engine_id = $e"
    )
    tables = "SELECT request, block_id, step, position FROM block_table WHERE engine_id = $e"
    if not alike:
        tables = (
            f"SELECT request, block_id, step, (position + 1) * block_size_tokens // {engine.hash_block_size} - 1 "
            "AS position FROM block_table JOIN kv_group USING (engine_id, kv_group) WHERE engine_id = $e "
            "AND kind = 'full'"
        )
    cached = (
        f"SELECT t.request, t.position, e.block_hash FROM ({events} AND request > 0) e ASOF JOIN ({tables}) t "
        "ON e.request = t.request AND e.block_id = t.block_id AND e.step >= t.step UNION ALL "
        # Blocks that asynchronous scheduling caches with a step's results are recorded without their request. They are
        # their holder's: at the end of that step, hence not for the others, whose holder may change within a step.
        f"SELECT t.request, t.position, e.block_hash FROM ({events} AND coalesce(request, 0) = 0) e "
        f"ASOF JOIN ({tables}) t ON e.block_id = t.block_id AND e.step >= t.step"
    )
    for number, position, block_hash in _rows(trace, cached, engine):
        chains[number].setdefault(position, block_hash)
    if not alike:
        _fill(chains.values())
    for number, chain in chains.items():
        if number in by_number:
            by_number[number].chain = chain
    off = _rows(
        trace,
        "SELECT request FROM prefix_lookup WHERE engine_id = $e GROUP BY request HAVING NOT bool_or(enabled)",
        engine,
    )
    if engine.prefix_caching:
        for (number,) in off:
            if number in by_number:
                by_number[number].skips_cache = True
        unknown = sum(not request.chain and request.prompt_tokens >= engine.hash_block_size for request in requests)
        if unknown:
            warnings.append(f"{unknown} requests were never admitted or have no hashes; their blocks count as unique")
    else:
        warnings.append("prefix caching was off, so the trace has no block hashes: all blocks count as unique")


def _fill(chains: Iterable[dict[int, int]]) -> None:
    """Enter hashes that a chain lacks and another one has: a hash stands for all before it, too."""
    before: dict[int, int] = {}
    for chain in chains:
        before |= {chain[place]: chain[place - 1] for place in chain if place - 1 in chain}
    for chain in chains:
        for place in sorted(chain, reverse=True):
            while place and place - 1 not in chain and chain[place] in before:
                place -= 1  # noqa: PLW2901
                chain[place] = before[chain[place + 1]]


def _steps(trace: Trace, engine: EngineFacts) -> list[StepTime]:
    asking_ns = 1e3 * (engine.connector_lookup_us or 0)
    held_ns = f"greatest(device_ns, {HIDDEN_COPY_NS}) - {HIDDEN_COPY_NS}" if engine.connector == _HOLDS_UP else "0"
    begun_ns = "started_ns" if engine.connector == _WAITS else "submitted_ns"
    rows = _rows(
        trace,
        # A token at position p attends to p + 1 tokens; prefill of n tokens behind c: n * c + n * (n + 1) / 2.
        "WITH share AS (SELECT step, sum(scheduled_tokens) FILTER (phase = 'decode') decodes, "
        "coalesce(sum(scheduled_tokens) FILTER (phase <> 'decode'), 0) prefill, "
        "coalesce(sum(computed_tokens + 1) FILTER (phase = 'decode'), 0) decode_context, "
        "coalesce(sum(scheduled_tokens::BIGINT * computed_tokens + scheduled_tokens * (scheduled_tokens + 1) / 2) "
        "FILTER (phase <> 'decode'), 0)::BIGINT prefill_context FROM step_request WHERE engine_id = $e GROUP BY step) "
        "SELECT s.step, s.start_ns, s.update_ns, s.end_ns, coalesce(decodes, 0)::BIGINT, coalesce(prefill, 0)::BIGINT, "
        "coalesce(decode_context, 0)::BIGINT, coalesce(prefill_context, 0)::BIGINT, s.waiting, "
        "greatest(coalesce(c.ns, 0) + coalesce(t.ns, 0) - coalesce(t.waited_ns, 0), 0)::BIGINT, "
        f"coalesce(a.blocks * {asking_ns}, 0)::BIGINT, coalesce(t.waited_ns, 0)::BIGINT, "
        "coalesce(if(t.waited_ns > 0, t.begun_ns - s.start_ns - coalesce(c.load_ns, 0), 0), 0)::BIGINT, "
        "coalesce(f.ns, 0)::BIGINT, f.mode FROM step s LEFT JOIN share USING (step) "
        "LEFT JOIN (SELECT step, max(ns) AS ns, min(mode)::VARCHAR AS mode FROM (SELECT process_id, step, "
        "sum(end_ns - start_ns) AS ns, min(graph_mode) AS mode FROM forward "
        "WHERE engine_id = $e AND tokens > 0 GROUP BY ALL) GROUP BY step) f USING (step) "
        f"LEFT JOIN ({_ASKED_BLOCKS.replace('$size', str(engine.block_size))}) a USING (step) "
        "LEFT JOIN (SELECT step, max(ns) AS ns, max(waited_ns) AS waited_ns, max(begun_ns) AS begun_ns FROM ("
        f"SELECT process_id, step, sum({held_ns}) AS ns, max({begun_ns} - submitted_ns) AS waited_ns, "
        f"max({begun_ns}) AS begun_ns FROM transfer WHERE engine_id = $e GROUP BY ALL) GROUP BY step) t USING (step) "
        "LEFT JOIN (SELECT step, max(ns) AS ns, max(load_ns) AS load_ns FROM (SELECT process_id, step, "
        "sum(end_ns - start_ns) AS ns, sum(end_ns - start_ns) FILTER (call = 'load') AS load_ns "
        "FROM connector_call WHERE engine_id = $e AND call <> 'poll' GROUP BY ALL) "
        "GROUP BY step) c USING (step) WHERE s.engine_id = $e ORDER BY s.step",
        engine,
    )
    return [StepTime(*row) for row in rows]
