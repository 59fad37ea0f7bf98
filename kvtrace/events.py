"""Every event kvtrace records, declared once.

The capture layout, C's records (`kvtrace/capture/native/events.h`), the DuckDB tables with their comments and the event
reference page all derive from the declarations in this module. To add an event, add an `Event` to `EVENTS`; to add a
field, declare it and set it in the hook that records the event. `make docs` generates what is generated.

Times are captured as CLOCK_MONOTONIC nanoseconds and become UNIX nanoseconds at ingest.
"""

from __future__ import annotations

import enum
import struct
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

SCHEMA_VERSION = 1
"""Raised when the meaning of an existing field changes; added fields do not raise it."""


EnumType = type[enum.IntEnum]


class Type(NamedTuple):
    """Storage of a field: in a capture record (`code`, of `struct`) and in DuckDB (`sql`)."""

    name: str
    code: str
    sql: str
    null: int | None = None  # the captured value that means "none"


TIME = Type("time", "q", "BIGINT", 0)
I64 = Type("i64", "q", "BIGINT")
I32 = Type("i32", "i", "INTEGER", -1)
U8 = Type("u8", "B", "UTINYINT")
HASH = Type("hash", "Q", "UBIGINT", 0)
STRING = Type("string", "I", "VARCHAR", 0)  # index into the process's interned strings
REQUEST = Type("request", "I", "INTEGER", 0)  # interned request id; `request.request` after ingest
ENUM = Type("enum", "B", "ENUM", 0)
BOOL = Type("bool", "?", "BOOLEAN")
PROCESS = Type("process", "i", "INTEGER", 0)  # a pid; `process.process_id` after ingest
COUNT = Type("count", "q", "BIGINT", -1)  # a large count or a duration that may be unknown


class Phase(enum.IntEnum):
    """Phase of a request's scheduled tokens."""

    prefill = 1  # the whole remaining prompt in one step
    chunked_prefill = 2  # a part of the prompt
    decode = 3  # new tokens
    resumed = 4  # tokens computed again after a preemption


class Limit(enum.IntEnum):
    """Reason why the request at the head of the waiting queue was not admitted in a step."""

    none = 1  # nothing was left waiting
    token_budget = 2
    kv_insufficient = 3
    max_num_seqs = 4
    preempted = 5  # the step preempted a running request, so nothing was admitted
    paused = 6
    other = 7  # e.g. the budget of an encoder; in older recordings also what is told apart below
    prefill_interval = 8  # prefills are held between steps of a cadence (`prefill_schedule_interval`)
    state_pending = 9  # it hits a state of Mamba or linear attention that another request stores in this very step
    remote_kv = 10  # a connector loads its KV
    connector_deferred = 11  # its connector cannot tell yet what it has, e.g. because that is being stored
    grammar = 12  # the grammar of its structured output is being compiled
    streaming_input = 13  # a session that waits for its next input
    max_loras = 14  # the step has as many LoRA adapters as it may have


class BlockOp(enum.IntEnum):
    """Change of a KV cache block."""

    allocate = 1  # taken from the free queue
    hit = 2  # referenced again through a prefix-cache hit (vLLM's `touch`)
    cache = 3  # became findable by its hash
    evict = 4  # is no longer findable by its hash
    free = 5  # one reference released; free for reuse once `ref_count` is 0
    reset = 6  # the whole prefix cache was emptied (block_id is NULL)


class RequestOp(enum.IntEnum):
    """A turn in a request's life, as the scheduler sees it."""

    schedule = 1  # admitted for the first time
    first_token = 2  # the first output token came back from the model
    preempt = 3  # thrown out of the batch; its KV is dropped and computed again
    resume = 4  # admitted again after a preemption
    finish = 5


class FinishReason(enum.IntEnum):
    """Reason for the end of a request."""

    stop = 1
    length = 2
    abort = 3
    ignored = 4
    error = 5
    other = 6


class RemotePart(enum.IntEnum):
    """A request's part in a pair of engines, one of which computes the prompt and the other the answer."""

    prefill = 1  # its KV is to be sent to another engine (`do_remote_decode`)
    decode = 2  # its prompt's KV comes from another engine (`do_remote_prefill`)


class GroupKind(enum.IntEnum):
    """Kind of a KV cache group: what of a prefix it needs to go on from there."""

    full = 1  # every block
    window = 2  # the blocks of a sliding window
    chunk = 3  # the blocks of the chunk that the next token is in
    state = 4  # one state, as Mamba and linear attention have
    other = 5

    @classmethod
    def of(cls, names: Iterable[str]) -> GroupKind:
        """Tell the kind by the names of vLLM's class of the group and of its bases, the class first."""
        return next((kind for name in names for part, kind in _SPEC_KINDS.items() if part in name), cls.other)


_SPEC_KINDS = {
    "SlidingWindow": GroupKind.window,
    "ChunkedLocal": GroupKind.chunk,
    "Mamba": GroupKind.state,
    "FullAttention": GroupKind.full,
    "MLA": GroupKind.full,
    "RSWA": GroupKind.full,
    "HiddenStateCache": GroupKind.full,
}
"""Kinds by a part of a class's name. The first that fits counts. The last two are for recordings without the bases."""


class TableOp(enum.IntEnum):
    """Change of a block table."""

    set = 1  # first entries of a request's table; what was there before is void
    append = 2


class GraphMode(enum.IntEnum):
    """CUDA graph mode of a forward pass."""

    eager = 1
    piecewise = 2
    full = 3


class WindowKind(enum.IntEnum):
    """Work of a layer on the KV cache in a window of GPU time."""

    write = 1  # stored the new tokens' K and V
    attention = 2  # read K and V of the tokens attended to


class AccessKind(enum.IntEnum):
    """Kind of access to a KV block."""

    write = 1  # K and V stored, somewhere in that time (derived)
    attention = 2  # K and V read, somewhere in that time (derived)
    k_read = 3
    v_read = 4
    k_write = 5
    v_write = 6


class Tier(enum.IntEnum):
    """Place of KV."""

    gpu = 1
    cpu = 2
    disk = 3
    remote = 4
    other = 5  # kvtrace cannot tell


class Direction(enum.IntEnum):
    """Direction of a transfer."""

    store = 1  # away from the GPU's side
    load = 2  # towards it


class TierOp(enum.IntEnum):
    """Change of a block of an offload tier."""

    write = 1  # space was taken; the copy is not finished
    store = 2  # can be read from here on
    hit = 3  # will be loaded for a request
    evict = 4  # its content was evicted
    drop = 5  # space was given back without content
    reset = 6  # the whole tier was emptied (tier_block_id is NULL)


class ConnectorNews(enum.IntEnum):
    """News of a request for the scheduler's side of a KV connector."""

    ended = 1  # the request ended; told with the next step's plan
    loaded = 2  # its load ended; told with a step's results


class ConnectorCall(enum.IntEnum):
    """A call of vLLM's worker into a KV connector."""

    load = 1  # start_load_kv
    save = 2  # wait_for_save
    poll = 3  # get_finished


class PinCause(enum.IntEnum):
    """Reason for a reference on a block that no running request holds."""

    delayed_free = 1  # the request ended, its connector still saves or loads
    in_flight = 2  # freed while a step that may still write it was running
    async_load = 3  # the request waits for a connector to load its KV
    connector = 4  # a connector took a reference of its own, for a transfer
    ttl = 5  # the scheduler keeps it for a time, for a request to come
    streaming = 6  # a streaming session waits for its next input


class PinEnd(enum.IntEnum):
    """Reason for the end of a pin."""

    used = 1  # what it was kept for came
    expired = 2  # its time ran out
    forced = 3  # forced out to admit others
    saved = 4  # the transfer away from the GPU finished
    loaded = 5  # the transfer to the GPU finished
    drained = 6  # the step that might still write it finished
    failed = 7  # the load failed
    aborted = 8  # the request was cancelled
    released = 9  # the scheduler did not say why


Scope = Literal["engine", "worker", "frontend"]


class Field(NamedTuple):
    """A column: its name (unit included), type and meaning."""

    name: str
    type: Type
    doc: str
    enum: EnumType | None = None

    @property
    def sql_type(self) -> str:
        """The DuckDB type of the column."""
        return enum_type(self.enum) if self.enum else self.type.sql


@dataclass(frozen=True)
class Event:
    """A stream of fixed-width records.

    `name` is the stream's, its segment files' and its DuckDB table's. `scope` is the vLLM process that records it:
    tables of scope `engine` carry the recording process as `engine_id`, the others as `process_id`.
    """

    name: str
    scope: Scope
    doc: str
    fields: tuple[Field, ...]

    @cached_property
    def struct(self) -> struct.Struct:
        """A record's layout: the fields, packed, then one byte that is 1 once the record is whole."""
        return struct.Struct("<" + "".join(field.type.code for field in self.fields) + "B")

    @cached_property
    def layout(self) -> str:
        """The fields as compiled code knows them, in order: `name:code`, an enumeration with its members' numbers."""
        return " ".join(f"{field.name}:{field.type.code}{_members(field)}" for field in self.fields)

    @cached_property
    def record(self) -> type[tuple[Any, ...]]:
        """A named tuple of a captured record's values."""
        return namedtuple(self.name, [field.name for field in self.fields])

    @property
    def process_column(self) -> str:
        """The name of the column that holds the recording process."""
        return "engine_id" if self.scope == "engine" else "process_id"

    @property
    def process_doc(self) -> str:
        """The meaning of that column."""
        return f"The recording {'engine' if self.scope == 'engine' else 'process'} (`process.process_id`)."


def _members(field: Field) -> str:
    members = field.enum or ()
    return f"({','.join(f'{member.name}={member.value}' for member in members)})" if members else ""


def enum_type(enum: EnumType) -> str:
    """The DuckDB type of an enumeration."""
    return f"e_{snake(enum.__name__)}"


def snake(name: str) -> str:
    """The name of a class as that of a column."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


STEP = Field("step", I32, "Scheduler step, counted from 1 in each engine.")
REQ = Field("request", REQUEST, "Request (key of table `request`).")

STEP_SCHEDULE = Event(
    "step_schedule",
    "engine",
    "A call of `Scheduler.schedule`: what it chose to run, what was left, and why the rest has to wait.",
    (
        Field("start_ns", TIME, "When `schedule` was entered."),
        Field("scheduled_ns", TIME, "When `schedule` returned."),
        STEP,
        Field("running", I32, "Requests in the running queue after the call."),
        Field("waiting", I32, "Requests in all waiting queues after the call."),
        Field("prefill_requests", I32, "Scheduled requests that compute their whole remaining prompt."),
        Field("prefill_tokens", I32, "Tokens scheduled for them."),
        Field("chunked_prefill_requests", I32, "Scheduled requests that compute a part of their prompt."),
        Field("chunked_prefill_tokens", I32, "Tokens scheduled for them."),
        Field("decode_requests", I32, "Scheduled requests that generate."),
        Field("decode_tokens", I32, "Tokens scheduled for them, drafts included."),
        Field("resumed_requests", I32, "Scheduled requests that compute tokens again after a preemption."),
        Field("resumed_tokens", I32, "Tokens scheduled for them."),
        Field("budget_tokens", I32, "Most tokens the scheduler may schedule in a step."),
        Field("budget_left_tokens", I32, "Tokens of that budget left unused."),
        Field("free_blocks", I32, "Blocks in the GPU pool's free queue after the call (cached ones included)."),
        Field("used_blocks", I32, "Blocks referenced by a request, a connector or a pin after the call."),
        Field("cached_blocks", I32, "Blocks findable by hash after the call, in use or free."),
        Field("preempted_requests", I32, "Requests preempted by the call."),
        Field(
            "admission_limit",
            ENUM,
            "Why the head of the waiting queue was not admitted (inferred, see the docs).",
            Limit,
        ),
        Field("limit_request", REQUEST, "The request at the head of the waiting queue."),
        Field(
            "limit_need_blocks",
            I32,
            "Blocks that the refused allocation asked for. NULL unless the limit is kv_insufficient.",
        ),
        Field("limit_free_blocks", I32, "Blocks free at that moment. NULL unless the limit is kv_insufficient."),
        Field(
            "limit_kept_blocks",
            I32,
            "Of these, blocks that the allocation had to leave free: the watermark, and what requests in flight have "
            "reserved. NULL unless the limit is kv_insufficient.",
        ),
    ),
)

REFUSAL_GROUP = Event(
    "refusal_group",
    "engine",
    "What a refused admission asked for of one KV cache group, in engines with several. limit_need_blocks of the step "
    "is their sum.",
    (
        STEP,
        REQ,
        Field("kv_group", U8, "KV cache group."),
        Field(
            "need_blocks",
            I32,
            "Blocks asked for. A group of a sliding window or chunk asks for no more than it holds at a time. NULL "
            "with state_pending: vLLM then asks for more than there are.",
        ),
    ),
)

STEP_UPDATE = Event(
    "step_update",
    "engine",
    "A call of `Scheduler.update_from_output`: a step's results came back. Steps overlap under async scheduling.",
    (
        Field("update_ns", TIME, "When `update_from_output` was entered: the model's output is there."),
        Field("end_ns", TIME, "When `update_from_output` returned."),
        STEP,
        Field("output_tokens", I32, "Tokens the model returned in this step."),
        Field("finished_requests", I32, "Requests that ended in this call."),
    ),
)

STEP_REQUEST = Event(
    "step_request",
    "engine",
    "A request's share of a step.",
    (
        STEP,
        REQ,
        Field("phase", ENUM, "What the tokens are for.", Phase),
        Field("scheduled_tokens", I32, "Tokens scheduled for the request in this step."),
        Field("computed_tokens", I32, "Tokens of the request whose KV exists before this step."),
        Field("new_blocks", I32, "Blocks added to its block table in this step, over all KV cache groups."),
    ),
)

DRAFT = Event(
    "draft",
    "engine",
    "Draft tokens of a request that the model verified in a step (speculative decoding). Each had a KV slot in every "
    "group of pages; the slots of rejected tokens are written again by the next step.",
    (
        Field("time_ns", TIME, "When the step's results were processed."),
        STEP,
        REQ,
        Field("drafted_tokens", I32, "Draft tokens that were scheduled."),
        Field("accepted_tokens", I32, "Of them, those that the model accepted; it adds one token of its own."),
        Field("invalid_tokens", I32, "Of them, those that a grammar ruled out before: vLLM does not count them."),
    ),
)

REQUEST_ARRIVAL = Event(
    "request_arrival",
    "frontend",
    "A request got its internal id in the API process (or in the offline `LLM`).",
    (
        Field("time_ns", TIME, "When the id was assigned."),
        REQ,
        Field("external_id", STRING, "The id the client knows."),
    ),
)

REQUEST_OWNER = Event(
    "request_owner",
    "frontend",
    "A request with a tenant or a LoRA adapter got its internal id. Requests with neither have no row; samples of a "
    "request with n > 1 belong to their client.",
    (
        Field("time_ns", TIME, "When the id was assigned."),
        REQ,
        Field(
            "tenant",
            STRING,
            "Tenant: extra_args['kvtrace_tenant'], else a header of the HTTP request, else OpenAI's `user`. A keyed "
            "hash unless recorded with `--tenants names`.",
        ),
        Field("lora", STRING, "Name of its LoRA adapter."),
    ),
)

REQUEST_DELIVERY = Event(
    "request_delivery",
    "frontend",
    "The API process had handed on a request's last output, or its client had gone.",
    (
        Field("time_ns", TIME, "When whoever sends outputs to the client asked for one after the last, or left."),
        REQ,
        Field("first_ns", TIME, "When it asked for one after the first; NULL with one output, as without streaming."),
    ),
)

REQUEST_QUEUED = Event(
    "request_queued",
    "engine",
    "A request entered the scheduler's waiting queue.",
    (
        Field("time_ns", TIME, "When it was queued."),
        REQ,
        Field("arrival_ns", I64, "vLLM's own arrival time of the request, UNIX nanoseconds."),
        Field("prompt_tokens", I32, "Prompt length."),
        Field("max_tokens", I32, "Most output tokens asked for."),
        Field("priority", I64, "Priority (lower runs first) under the priority policy."),
        Field("session", STRING, "Session tag: extra_args['kvtrace_session'], else vLLM's session_id."),
        Field("turn", I32, "Turn tag: extra_args['kvtrace_turn']."),
        Field("tool", STRING, "Tool tag: extra_args['kvtrace_tool'], the tool that the turn is to end with."),
    ),
)

REQUEST_REMOTE = Event(
    "request_remote",
    "engine",
    "A request was queued with `kv_transfer_params` that make it one half of a prefill/decode pair.",
    (
        Field("time_ns", TIME, "When it was queued."),
        REQ,
        Field("part", ENUM, "Which half.", RemotePart),
        Field("remote_request", STRING, "With decode: `remote_request_id`, the other engine's internal id."),
        Field("transfer", STRING, "`transfer_id`, which some connectors give to both halves."),
    ),
)

REQUEST_EVENT = Event(
    "request_event",
    "engine",
    "A turn in a request's life in the scheduler.",
    (
        Field("time_ns", TIME, "When it happened."),
        STEP,
        REQ,
        Field("op", ENUM, "What happened.", RequestOp),
        Field("reason", ENUM, "With finish: why.", FinishReason),
        Field("computed_tokens", I32, "Tokens whose KV existed. A preemption discards them."),
        Field("output_tokens", I32, "Output tokens so far."),
        Field(
            "local_cached_tokens", I32, "Tokens found in the GPU prefix cache. NULL unless `op` is schedule or resume."
        ),
        Field("external_cached_tokens", I32, "Tokens found by a KV connector. NULL unless `op` is schedule or resume."),
        Field("blocks", I32, "Blocks in its block table; for preempt and finish, before they are released."),
    ),
)

BLOCK_EVENT = Event(
    "block_event",
    "engine",
    "A change of one KV cache block, in the order of the block manager's own calls.",
    (
        Field("time_ns", TIME, "Time of the change. Blocks changed by one call share it."),
        STEP,
        Field("block_id", I32, "The block manager's id. Block 0 is vLLM's null block."),
        Field("op", ENUM, "What happened.", BlockOp),
        Field("ref_count", I32, "References to the block after the change."),
        REQ,
        Field(
            "block_hash",
            HASH,
            "Low 64 bits of the content hash, as in vLLM's KV events. NULL unless `op` is cache or evict.",
        ),
        Field("kv_group", U8, "KV cache group of the hash, for cache and evict."),
        Field("pool", U8, "0: the scheduler's GPU pool; others in the order they were first seen."),
    ),
)

PREFIX_LOOKUP = Event(
    "prefix_lookup",
    "engine",
    "A prefix-cache lookup of a waiting request. A blocked head of the queue repeats its lookup every step.",
    (
        Field("time_ns", TIME, "When the lookup returned."),
        STEP,
        REQ,
        Field("queried_tokens", I32, "Tokens of the request (prompt, and outputs after a preemption)."),
        Field("local_hit_tokens", I32, "Tokens found in the GPU prefix cache."),
        Field("external_hit_tokens", I32, "Tokens a KV connector will supply beyond those; NULL if not asked."),
        Field("first_missing_block", I32, "Position in the block table of the first block not found."),
        Field("admitted", BOOL, "The allocation that followed succeeded: this lookup's hits were used."),
        Field("repeat", I32, "Earlier lookups since the request was last queued or preempted."),
        Field("resumed", BOOL, "The request had been preempted before."),
        Field("enabled", BOOL, "Prefix caching was on for this request."),
        Field("cap_tokens", I32, "Most tokens that the scheduler let it find; NULL: it set no limit of its own."),
    ),
)

GROUP_LOOKUP = Event(
    "group_lookup",
    "engine",
    "An answer of KV cache groups of one kind to an admitted prefix lookup, in the order in which vLLM asked them. "
    "Recorded where a hit has other limits than missing blocks: engines with several groups, without full attention or "
    "with a draft model that shares the cache (EAGLE, MTP).",
    (
        Field("time_ns", TIME, "When the lookup returned: with the request, its key in prefix_lookup."),
        STEP,
        REQ,
        Field("place", U8, "Place of the answer in the lookup, from 0. A group may be asked more than once."),
        Field("kv_group", U8, "First of the groups that were asked."),
        Field("kv_groups", U8, "How many were asked at once: they are alike, and a hit must be in all of them."),
        Field("kind", ENUM, "Their kind.", GroupKind),
        Field("bound_tokens", I32, "Length that the groups asked before had agreed on."),
        Field("hit_tokens", I32, "Longest hit up to there, by vLLM: the bound of the next answer."),
        Field(
            "stored_tokens",
            I32,
            "What it would have been without alignment and EAGLE's drop (derived: vLLM was asked again at admission).",
        ),
        Field("kept_tokens", I32, "What it would have been without alignment (derived, as stored_tokens)."),
        Field(
            "own_tokens",
            I32,
            "Longest hit of these groups alone (derived, as stored_tokens); NULL when they are asked once more.",
        ),
        Field("unit_tokens", I32, "Tokens of the groups' blocks, or of a hash where parts of blocks can be found."),
        Field("alignment_tokens", I32, "Every hit of the engine is a multiple of so many tokens."),
        Field("eagle", BOOL, "The last block or hash of the hit was dropped, for a draft model to compute."),
    ),
)

REQUEST_HASH = Event(
    "request_hash",
    "engine",
    "The hash chain of an admitted request from the first block that the GPU prefix cache did not supply. A hash "
    "stands for its block's tokens and for all before it, so equal hashes are equal prefixes.",
    (
        Field("step", I32, "The step that admitted it: with the request, the key of its admitted prefix_lookup."),
        REQ,
        Field("position", I32, "Index of the block in the request, counted in engine.hash_block_tokens."),
        Field("block_hash", HASH, "Low 64 bits of vLLM's content hash, as in block_event."),
        Field(
            "token_hash",
            HASH,
            "For a request with a row in request_key: what block_hash would be without those keys; NULL otherwise.",
        ),
    ),
)

REQUEST_HEAD = Event(
    "request_head",
    "engine",
    "The beginning of a request that found nothing in the GPU prefix cache, where blocks have 128 tokens or more: "
    "hashes of its first 32, 64, 128 tokens and so on, below a block. What requests share there is in no block hash.",
    (
        STEP,
        REQ,
        Field("tokens", I32, "First tokens that the hash stands for."),
        Field("head_hash", HASH, "Equal for equal tokens under equal keys within one engine."),
    ),
)

REQUEST_KEY = Event(
    "request_key",
    "engine",
    "What keeps an admitted request's blocks apart from those of equal tokens. Requests without such keys have no row.",
    (
        STEP,
        REQ,
        Field("lora", STRING, "Name of its LoRA adapter."),
        Field("lora_key", HASH, "Equal for equal adapters (name and path); NULL without one."),
        Field("salt_key", HASH, "Equal for equal cache salts within one engine; NULL without one."),
        Field("multimodal_key", HASH, "Equal for equal multimodal items at equal places; NULL without any."),
        Field("prompt_embeds", BOOL, "Its prompt is given as embeddings: it has no token hashes."),
    ),
)

FORWARD = Event(
    "forward",
    "worker",
    "A call of the model runner's `execute_model`, host side.",
    (
        Field("start_ns", TIME, "When it was entered."),
        Field("end_ns", TIME, "When the call returned. A GPU may still be at work then."),
        Field("engine_id", PROCESS, "The engine that scheduled it."),
        STEP,
        Field("tokens", I32, "Tokens in the batch, without padding."),
        Field("requests", I32, "Requests in the batch."),
        Field("graph_mode", ENUM, "How it ran, where vLLM tells.", GraphMode),
    ),
)

BLOCK_TABLE = Event(
    "block_table",
    "engine",
    "Changes of the block tables sent to the workers with a step; everything else stays as it was.",
    (
        STEP,
        REQ,
        Field("kv_group", U8, "KV cache group."),
        Field("op", ENUM, "How the table changes.", TableOp),
        Field("position", I32, "Index in the request's block table."),
        Field("block_id", I32, "The block at that position."),
    ),
)

KV_WINDOW = Event(
    "kv_window",
    "worker",
    "A layer's KV write or attention, timed on the GPU: by the kernels' own programs, the first to start and the last "
    "to end (`kv_layer.in_kernel`), or by stamps around it on its own stream. Of a layer that has no stamps with CUDA "
    "graphs (`kv_layer.timed`) its windows there are derived at ingest. Outside full CUDA graphs the host launches "
    "what is between stamps: where the GPU waits for it, the wait is in the window, too.",
    (
        Field("start_ns", TIME, "GPU global timer before the first kernel of the window."),
        Field("end_ns", TIME, "GPU global timer after the last."),
        Field("engine_id", PROCESS, "The engine that scheduled it."),
        STEP,
        Field("layer", I32, "Index of the layer among those that own a KV cache, in the order of the model."),
        Field("kind", ENUM, "What the layer did.", WindowKind),
        Field("observed", BOOL, "The window was timed. false: it is laid evenly between the layers that were."),
    ),
)

BATCH_ROW = Event(
    "batch_row",
    "worker",
    "The requests of a worker's batch in its order, written when it changes (`--kv-level tile`): it holds until the "
    "next step that has rows here.",
    (
        Field("engine_id", PROCESS, "The engine that scheduled it."),
        STEP,
        Field("row", I32, "Place in the batch."),
        REQ,
    ),
)

CONNECTOR_LOOKUP = Event(
    "connector_lookup",
    "engine",
    "A KV connector was asked how many more tokens of a waiting request it can supply. A blocked head of the queue "
    "repeats its lookup every step.",
    (
        Field("time_ns", TIME, "When the answer came."),
        STEP,
        REQ,
        Field("part", U8, "0: the engine's connector; from 1: the parts of a MultiConnector, in order."),
        Field("connector", STRING, "The connector's class."),
        Field("local_tokens", I32, "Tokens already found in the GPU prefix cache."),
        Field("matched_tokens", I32, "Tokens beyond those that it can supply; NULL: it does not know yet."),
        Field("asynchronous", BOOL, "It will load them while other requests run."),
        Field("asked_ns", TIME, "Time of the call; the scheduler waits for the answer. NULL in older recordings."),
    ),
)

CONNECTOR_NEWS = Event(
    "connector_news",
    "engine",
    "The scheduler's side of a KV connector was told that a request or its load had ended. vLLM tells of several at "
    "once by a set, whose order is another one in each process. The connector acts in it, and the rows have it.",
    (
        Field("time_ns", TIME, "When it was told."),
        STEP,
        REQ,
        Field("op", ENUM, "What it was told.", ConnectorNews),
    ),
)

CONNECTOR_CALL = Event(
    "connector_call",
    "worker",
    "A call of the worker into its KV connector, host side; steps in which it does nothing included.",
    (
        Field("start_ns", TIME, "When it was entered."),
        Field("end_ns", TIME, "When it returned."),
        Field("engine_id", PROCESS, "The engine that scheduled the step."),
        STEP,
        Field("part", U8, "0: the engine's connector; from 1: the parts of a MultiConnector, in order."),
        Field("connector", STRING, "The connector's class."),
        Field("call", ENUM, "Which call.", ConnectorCall),
        Field("sent_requests", I32, "Requests whose saving it reports as finished, for poll."),
        Field("received_requests", I32, "Requests whose loading it reports as finished, for poll."),
    ),
)

TRANSFER_SUBMIT = Event(
    "transfer_submit",
    "worker",
    "A transfer of KV between two tiers was handed to what copies it.",
    (
        Field("submitted_ns", TIME, "When."),
        Field("engine_id", PROCESS, "The engine that scheduled it."),
        Field("step", I32, "The step in which it was submitted."),
        Field("transfer", I64, "Key within the engine, the same on all its workers."),
        Field("connector", STRING, "The connector's class."),
        Field("direction", ENUM, "store: away from the GPU's side; load: towards it.", Direction),
        Field("from_tier", ENUM, "Where the KV is.", Tier),
        Field("to_tier", ENUM, "Where it is copied to.", Tier),
        Field("blocks", I32, "GPU blocks it covers (between other tiers: their blocks)."),
        Field("bytes", COUNT, "Bytes on this worker, if known by then."),
    ),
)

TRANSFER_END = Event(
    "transfer_end",
    "worker",
    "A transfer of KV finished.",
    (
        Field(
            "finished_ns", TIME, "When the worker noticed. An asynchronous copy may have finished up to a step before."
        ),
        Field("transfer", I64, "Key within the engine."),
        Field("started_ns", TIME, "When work on it began on the host; NULL if that cannot be seen."),
        Field("bytes", COUNT, "Bytes on this worker, as the connector reports or its tensors say."),
        Field("device_ns", COUNT, "Time the copy took on the GPU, by CUDA events around it."),
        Field("reported_ns", COUNT, "Time it took as the connector itself reports."),
        Field("success", BOOL, "It succeeded."),
    ),
)

TRANSFER_BLOCK = Event(
    "transfer_block",
    "engine",
    "A GPU block of a planned transfer, as the scheduler's side of the connector decided it.",
    (
        Field("time_ns", TIME, "When it was decided."),
        Field("step", I32, "The step it goes with; stores may be submitted a step later."),
        Field("transfer", I64, "Key within the engine, as in transfer_submit."),
        Field("direction", ENUM, "store: away from the GPU's side; load: towards it.", Direction),
        Field("request", REQUEST, "The request it is for; NULL if the connector does not keep that."),
        Field("gpu_block_id", I32, "The GPU block; NULL between other tiers."),
        Field("other_block_id", I32, "The block or chunk of the other tier, if it numbers them."),
        Field("block_hash", HASH, "Low 64 bits of the content hash, where known."),
        Field("kv_group", U8, "KV cache group of the hash."),
    ),
)

HANDOVER_READ = Event(
    "handover_read",
    "worker",
    "A worker of a decode engine read a part of a request's KV from a worker of the prefill engine: one transfer "
    "handle of NIXL, recorded when it was released.",
    (
        Field(
            "begin_ns", TIME, "When the worker first took the request up; a handshake with the other engine may follow."
        ),
        Field("engine_id", PROCESS, "The engine that scheduled it."),
        Field("step", I32, "The step in which it was posted."),
        REQ,
        Field("transfer", I64, "Key within the engine, as in transfer_submit."),
        Field("remote_engine", STRING, "vLLM's id of the other engine (`remote_engine_id`)."),
        Field("remote_request", STRING, "The other engine's internal id of the request."),
        Field("prepare_ns", TIME, "When the worker began to prepare its descriptors (`make_prepped_xfer`)."),
        Field("prepared_ns", TIME, "When they were prepared."),
        Field("posted_ns", TIME, "When NIXL had taken them (`transfer` returned). NULL: it failed before."),
        Field(
            "wire_start_ns",
            TIME,
            "When NIXL began to post them, by its own telemetry. NULL: it does not tell, or not by CLOCK_MONOTONIC.",
        ),
        Field("post_ns", COUNT, "Time it took to post them, by NIXL's telemetry."),
        Field(
            "wire_ns",
            COUNT,
            "Time from wire_start_ns until NIXL knew that the last byte was here, by its telemetry. NIXL learns it "
            "when the worker asks, once a step.",
        ),
        Field("running_ns", TIME, "When the worker last asked and it had not ended. NULL: it had at the first time."),
        Field("seen_ns", TIME, "When the worker asked and it had ended. NIXL notifies the other worker then."),
        Field("descriptors", I32, "Descriptors that vLLM asked for: a block of a region each."),
        Field("posted_descriptors", I32, "Descriptors after NIXL joined adjacent ones, by its telemetry."),
        Field("bytes", COUNT, "Bytes read, by NIXL's telemetry."),
        Field("success", BOOL, "It ended without an error."),
    ),
)

HANDOVER_NOTICE = Event(
    "handover_notice",
    "worker",
    "A worker of a prefill engine found the notification that a request's KV has been read by all that read it here. "
    "It looks for them once a step.",
    (
        Field("time_ns", TIME, "When."),
        Field("engine_id", PROCESS, "The engine that scheduled the step."),
        STEP,
        REQ,
    ),
)

TIER_BLOCK = Event(
    "tier_block",
    "engine",
    "A change of one block of an offload tier, as its manager in the scheduler makes it.",
    (
        Field("time_ns", TIME, "When it happened."),
        STEP,
        Field("connector", STRING, "The connector's class."),
        Field("tier", ENUM, "The tier.", Tier),
        Field("op", ENUM, "What happened.", TierOp),
        Field("tier_block_id", I32, "The tier's own block or chunk number; NULL if it is not told."),
        Field("request", REQUEST, "With hit: the request it is for, where known."),
        Field("block_hash", HASH, "Low 64 bits of the content hash (of the last block of a chunk)."),
        Field("kv_group", U8, "KV cache group of the hash."),
    ),
)

PIN_START = Event(
    "pin_start",
    "engine",
    "A block began to be held by something else than a running request.",
    (
        Field("time_ns", TIME, "When."),
        STEP,
        Field("pin", I32, "Key within the engine; blocks pinned together share it."),
        Field("block_id", I32, "The block."),
        Field("cause", ENUM, "By what.", PinCause),
        Field("request", REQUEST, "The request whose KV it is, where known."),
        Field("requested_ttl_ns", COUNT, "Time that was asked for. NULL unless the cause is ttl."),
    ),
)

PIN_END = Event(
    "pin_end",
    "engine",
    "A block is no longer held by a pin.",
    (
        Field("time_ns", TIME, "When."),
        STEP,
        Field("pin", I32, "Key within the engine."),
        Field("block_id", I32, "The block."),
        Field("reason", ENUM, "Why.", PinEnd),
    ),
)

EVENTS: dict[str, Event] = {event.name: event for event in list(globals().values()) if isinstance(event, Event)}
"""All that are declared above, by name."""

ENUMS: tuple[EnumType, ...] = (
    *dict.fromkeys(field.enum for event in EVENTS.values() for field in event.fields if field.enum),
    AccessKind,
)
