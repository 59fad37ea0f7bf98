"""The tables of engines that other tools recorded: where they come from, and what they said of themselves."""

from __future__ import annotations

from kvtrace.ingest.schema.declare import BIGINT, BOOLEAN, DOUBLE, INTEGER, SOURCE_ID, TEXT, Table, column

_ENGINE = column("engine_id", INTEGER, "The engine.")

ENGINE_SOURCE = Table(
    "engine_source",
    "Engines that were not recorded but imported from files of other tools.",
    (
        _ENGINE,
        column("source_id", INTEGER, "The first of its files (`source.source_id`)."),
        column("name", TEXT, "Name of the run: of its files, without what tells them apart."),
        column("preemption_mode", TEXT, "What happens to the KV of a preempted request: recompute or swap, as the file "
                                        "says; NULL if it does not."),
        column("batching", TEXT, "default (a pass is all prefill or all decode), chunked or mixed, as the file says."),
        column("host_blocks", BIGINT, "Blocks of the host tier that swapping uses (vLLM's CPU blocks)."),
    ),
)  # fmt: skip

ENGINE_SAMPLE = Table(
    "engine_sample",
    "What an imported engine said of itself at a moment (recorded): vLLM's statistics lines, or a CSV made of them.",
    (
        _ENGINE,
        SOURCE_ID,
        column("sample", INTEGER, "Its number in the file, from 1."),
        column("step", INTEGER, "The step it follows, where the file has one a step (derived: by their order)."),
        column("part", TEXT, "warmup or benchmark, where the file tells them apart."),
        column("time_ns", BIGINT, "When; counted from 0 at the first one's begin where the file has no UNIX time."),
        column("interval_ns", BIGINT, "Time since the one before, over which throughput is averaged; NULL if unknown."),
        column("running", INTEGER, "Requests running."),
        column("swapped", INTEGER, "Requests whose KV is swapped out."),
        column("waiting", INTEGER, "Requests waiting, preempted ones that are recomputed included."),
        column("gpu_usage", DOUBLE, "Share of the GPU's KV blocks in use, 0 to 1, as printed (to 0.001)."),
        column("host_usage", DOUBLE, "Share of the host's KV blocks in use, 0 to 1, as printed."),
        column("tokens_per_s", DOUBLE, "Prompt and output tokens a second."),
        column("prompt_tokens_per_s", DOUBLE, "Prompt tokens a second, where given apart."),
        column("output_tokens_per_s", DOUBLE, "Output tokens a second, where given apart."),
    ),
)

SCHEDULER_SNAPSHOT = Table(
    "scheduler_snapshot",
    "A scheduler before it admits anybody in a step (recorded): what a scheduler trace says at the top of `schedule`. "
    "step_schedule is after the call.",
    (
        _ENGINE,
        column("step", INTEGER, "The step."),
        column("time_ns", BIGINT, "When."),
        column("running", INTEGER, "Requests in the running queue."),
        column("waiting", INTEGER, "Requests in the waiting queue."),
        column("free_blocks", INTEGER, "Blocks in the free queue, cached ones that nobody uses included."),
        column("total_blocks", INTEGER, "Blocks of the pool."),
        column("cached_blocks", INTEGER, "Entries of the pool's map of hashes."),
        column("host_free_blocks", INTEGER, "Free blocks of the host pool."),
        column("host_total_blocks", INTEGER, "Blocks of the host pool."),
        column("host_cached_blocks", INTEGER, "Entries of the host pool's map of hashes."),
        column("pinned_jobs", INTEGER, "Jobs whose blocks are pinned."),
        column("pinned_blocks", INTEGER, "Blocks pinned."),
        column("pinned_sessions", TEXT, "Those jobs, with commas between."),
        column("admission_reason", TEXT, "Why the head of the queue was not admitted, in the trace's own words; "
                                         "admission_limit is made of it. Inferred if table `run` says so."),
    ),
)  # fmt: skip

REQUEST_SNAPSHOT = Table(
    "request_snapshot",
    "A request in one of the scheduler's queues before a step admits anybody (recorded).",
    (
        _ENGINE,
        column("step", INTEGER, "The step."),
        column("time_ns", BIGINT, "When."),
        column("request", INTEGER, "The request (`request.request`)."),
        column("queue", TEXT, "running or waiting."),
        column("status", TEXT, "vLLM's status of it."),
        column("priority", INTEGER, "Its priority."),
        column("max_tokens", INTEGER, "Most output tokens."),
        column("prompt_tokens", INTEGER, "Prompt tokens."),
        column("tokens", INTEGER, "Prompt and output tokens."),
        column("output_tokens", INTEGER, "Output tokens so far."),
        column("computed_tokens", INTEGER, "Tokens whose KV exists."),
        column("cached_tokens", INTEGER, "Tokens found in caches when it was admitted."),
        column("external_computed_tokens", INTEGER, "Those of them that a connector had."),
        column("preemptions", INTEGER, "How often it was preempted."),
        column("hashed_blocks", INTEGER, "Hashes of its full blocks."),
        column("is_prefill_chunk", BOOLEAN, "Its prompt is being computed in parts."),
        column("resumable", BOOLEAN, "It can be continued by a further turn."),
    ),
)

SCHEDULER_LOOKUP = Table(
    "scheduler_lookup",
    "What a scheduler trace says of a prefix lookup beside the columns of prefix_lookup (recorded).",
    (
        _ENGINE,
        column("step", INTEGER, "The step."),
        column("time_ns", BIGINT, "When."),
        column("request", INTEGER, "The request (`request.request`)."),
        column("connector", TEXT, "The class of the KV connector that was asked; NULL if none."),
        column("total_hit_tokens", INTEGER, "Tokens found in the GPU prefix cache and by the connector together."),
        column("prompt_tokens", INTEGER, "Prompt tokens of the request."),
        column("load_kv_async", BOOLEAN, "The connector loads its tokens beside the steps that follow: the "
                                         "request waits for them and is admitted later."),
    ),
)  # fmt: skip

OUTSIDE_TABLES = (ENGINE_SOURCE, ENGINE_SAMPLE, SCHEDULER_SNAPSHOT, REQUEST_SNAPSHOT, SCHEDULER_LOOKUP)
