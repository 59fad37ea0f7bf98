// Generated from viewer/contract.py by `make page`; not edited by hand.

export const FORMAT = "kvtrace-page";
export const VERSION = 2;

export const REQUEST_STATES = ["queued", "prefill", "decode", "preempted", "resumed"] as const;
export const BLOCK_STATES = ["empty", "cached", "used", "shared"] as const;

export type Limit =
  | "none"
  | "token_budget"
  | "kv_insufficient"
  | "max_num_seqs"
  | "preempted"
  | "paused"
  | "other"
  | "prefill_interval"
  | "state_pending"
  | "remote_kv"
  | "connector_deferred"
  | "grammar"
  | "streaming_input"
  | "max_loras";
export type Phase = "prefill" | "chunked_prefill" | "decode" | "resumed";
export type FinishReason = "stop" | "length" | "abort" | "ignored" | "error" | "other";
export type PinCause = "delayed_free" | "in_flight" | "async_load" | "connector" | "ttl" | "streaming";
export type PinEnd = "used" | "expired" | "forced" | "saved" | "loaded" | "drained" | "failed" | "aborted" | "released";
export type Tier = "gpu" | "cpu" | "disk" | "remote" | "other";
export type Direction = "store" | "load";
export type AccessKind = "write" | "attention" | "k_read" | "v_read" | "k_write" | "v_write";

// Tables that an engine has as one list of chunks.
export type LaneTable = "pins" | "tiers" | "transfers" | "prefixes" | "prefix_levels" | "prefix_users";

export interface Tables {
  // A scheduler step, or a bar that stands for several; columns of view `step`.
  steps: {
    step: number;
    steps: number; // steps that the row stands for
    start_ns: number; // ns, no earlier than the end of the step before
    end_ns: number | null; // ns
    duration_ns: number | null; // ns
    schedule_ns: number | null; // ns, in `schedule`
    model_ns: number | null; // ns, from schedule's return to the output
    update_ns: number | null; // ns, in `update_from_output`
    prefill_requests: number | null; // requests
    prefill_tokens: number | null; // tokens
    chunked_prefill_requests: number | null; // requests
    chunked_prefill_tokens: number | null; // tokens
    decode_requests: number | null; // requests
    decode_tokens: number | null; // tokens
    resumed_requests: number | null; // requests
    resumed_tokens: number | null; // tokens
    scheduled_requests: number | null; // requests
    scheduled_tokens: number | null; // tokens
    budget_tokens: number | null; // tokens
    budget_left_tokens: number | null; // tokens
    cached_tokens: number; // tokens, found in the GPU's prefix cache by the step's admissions
    external_cached_tokens: number; // tokens, found by the connector
    output_tokens: number | null; // tokens
    finished_requests: number | null; // requests
    running: number | null;
    waiting: number | null;
    used_blocks: number | null; // blocks
    free_blocks: number | null; // blocks
    cached_blocks: number | null; // blocks
    free_cached_blocks: number | null; // blocks, free and findable; derived from the block events
    evicted_blocks: number; // blocks
    preempted_requests: number | null; // requests
    admission_limit: Limit | null;
    limited_steps: number | null; // steps whose head of the waiting queue was not admitted
    limit_request: number | null;
    limit_need_blocks: number | null; // blocks
    limit_free_blocks: number | null; // blocks
    gpu_busy_ns: number | null; // ns
    gpu_idle_ns: number | null; // ns
    gpu_launch_gap_ns: number | null; // ns
    gpu_kernels: number | null;
    gpu_kernel_ns: number | null; // ns
    gpu_attention_ns: number | null; // ns
    gpu_gemm_ns: number | null; // ns
    gpu_kv_write_ns: number | null; // ns
  };
  // A request's part of a step; table `step_request`.
  shares: {
    step: number;
    request: number;
    phase: Phase | null;
    scheduled_tokens: number | null; // tokens
    computed_tokens: number | null; // tokens
    new_blocks: number | null; // blocks
  };
  // A request; columns of table `request`.
  requests: {
    request: number;
    internal_id: string | null;
    external_id: string | null;
    session: string | null;
    tenant: string | null;
    lora: string | null;
    turn: number | null;
    priority: number | null;
    prompt_tokens: number | null; // tokens
    max_tokens: number | null; // tokens
    output_tokens: number | null; // tokens
    local_cached_tokens: number | null; // tokens
    external_cached_tokens: number | null; // tokens
    preemptions: number | null;
    released_tokens: number | null; // tokens
    recomputed_tokens: number | null; // tokens
    first_step: number | null;
    last_step: number | null;
    steps: number | null;
    finish_reason: FinishReason | null;
    head_steps: number | null; // steps that it was the head of the waiting queue
    wait_limit: Limit | null; // the most frequent reason then
    wait_need_blocks: number | null; // blocks
    wait_free_blocks: number | null; // blocks
    wait_step: number | null;
    miss_verdict: string | null; // of its first admission, from `prefix_miss`, as all that follow
    miss_why: string | null;
    avoidable_tokens: number | null; // tokens
    avoidable_duration_ns: number | null; // ns
    miss_request: number | null;
    miss_lost_ns: number | null; // ns
    start_ns: number; // ns
    end_ns: number; // ns, its end, or that of the recording
    arrival_ns: number | null; // ns
    queued_ns: number | null; // ns
    scheduled_ns: number | null; // ns
    first_token_ns: number | null; // ns
    finished_ns: number | null; // ns
    gap_start_ns: number | null; // ns, end of the job's turn before
  };
  // A stretch in which a request was in one state; of the chunk of requests that names it in `segments`.
  segments: {
    row: number; // the request's row in that chunk
    state: number; // index into REQUEST_STATES
    start_ns: number; // ns
    duration_ns: number; // ns
    step: number | null; // in which it began
  };
  // A preemption of a request.
  preemptions: {
    request: number;
    step: number | null;
    start_ns: number; // ns
    computed_tokens: number | null; // tokens
    blocks: number | null;
    preempted_for: number | null; // the request that needed its blocks (derived)
    taken_blocks: number | null; // blocks, of its blocks, those allocated to others in that step
    resume_step: number | null;
    resume_ns: number | null; // ns
  };
  // A change of a KV block, by block and time; a chunk begins with each block's state before it.
  blocks: {
    block: number;
    time_us: number; // us
    state: number; // index into BLOCK_STATES
    owner: number; // the request that holds or last held it, or -1
    evicted: number; // 1: this change took a cached block for something else
  };
  // A block held by something else than a running request; columns of view `pin`.
  pins: {
    pin: number | null;
    block: number;
    cause: PinCause | null;
    request: number | null;
    start_ns: number; // ns
    end_ns: number | null; // ns
    requested_ttl_ns: number | null; // ns
    end_reason: PinEnd | null;
  };
  // Blocks that an offload tier holds after a stretch in which that changed.
  tiers: {
    tier: Tier | null;
    connector: string | null;
    start_ns: number; // ns, the last change in the stretch
    occupied_blocks: number | null; // blocks
    most_blocks: number | null; // blocks
  };
  // A copy of KV between tiers; columns of view `transfer`.
  transfers: {
    transfer: number;
    process_id: number | null;
    connector: string | null;
    direction: Direction | null;
    from_tier: Tier | null;
    to_tier: Tier | null;
    bytes: number | null;
    blocks: number | null;
    requests: number | null;
    step: number | null;
    success: boolean | null;
    start_ns: number; // ns, submitted
    started_ns: number | null; // ns
    end_ns: number | null; // ns, known as ended
    device_ns: number | null; // ns, the copy's time on the GPU
    reported_ns: number | null; // ns, the copy's time as the connector reports it
  };
  // A run of blocks that the same prompts have, by place in the tree; a node of query `hot-prefixes`.
  prefixes: {
    prefix: number;
    parent: number | null; // the prefix that it goes on from
    depth: number; // prefixes above it
    before_tokens: number; // tokens, of the prompt before it
    tokens: number;
    lookups: number;
    sessions: number;
    looked_up_tokens: number; // tokens
    hit_tokens: number | null; // tokens
    repeated_tokens: number; // tokens, of those looked up, those after the first time
    start_ns: number; // ns, first lookup
    end_ns: number; // ns, last lookup
    block_hash: string | null; // its last block, which names the whole prefix, hexadecimal
    held_block_ns: number; // ns, blocks that held it, over time
    used_block_ns: number; // ns, of that, while requests used them
    most_blocks: number; // blocks, that held it at once
    evicted_blocks: number; // blocks, evictions of its blocks
  };
  // What a prefix held after a stretch in which that changed, and the lookups in it; by prefix and time.
  prefix_levels: {
    prefix: number;
    start_ns: number; // ns, the last change in the stretch
    held_blocks: number; // blocks, findable, in use or not
    used_blocks: number; // blocks, of them, in use
    lookups: number;
    looked_up_blocks: number; // blocks
    hit_blocks: number; // blocks
  };
  // A session whose prompts have a prefix, the sessions with the most requests first.
  prefix_users: {
    prefix: number;
    session: string | null;
    requests: number;
    request: number; // the last one of them
    looked_up_tokens: number; // tokens
    hit_tokens: number; // tokens
  };
  // A GPU activity of a profile: a kernel, copy or fill.
  kernels: {
    start_ns: number; // ns
    end_ns: number; // ns
    kind: string | null;
    category: string | null;
    name: string | null;
    device: number | null;
    stream: number | null;
    step: number | null;
    layer: number | null;
    bytes: number | null;
    direction: string | null;
  };
  // How long a category of GPU activities ran in a bin of time.
  kernel_bins: {
    start_ns: number; // ns
    end_ns: number; // ns
    category: string | null;
    busy_ns: number | null; // ns
    activities: number | null;
  };
  // An access of a layer to a KV block for a request in a step; view `kv_access`, heads together.
  accesses: {
    layer: number | null;
    block: number;
    request: number | null;
    kind: AccessKind | null;
    observed: boolean | null;
    start_ns: number; // ns
    end_ns: number; // ns
    accesses: number;
  };
  // A stretch in which any block of a group of neighbours was read or written.
  access_bins: {
    block: number;
    last_block: number;
    start_ns: number; // ns
    end_ns: number; // ns
    accesses: number; // that began in it
    kind: AccessKind | null;
  };
  // A block that a step accessed.
  access_blocks: {
    block: number;
  };
  // A layer's time on the GPU in a step; view `kv_window`, or from the first access of a kind to the last.
  windows: {
    layer: number | null;
    kind: AccessKind | null;
    start_ns: number; // ns
    end_ns: number | null; // ns
    observed: boolean | null;
  };
}

export type TableName = keyof Tables;

// Rows that a view draws at once, and the columns that a chunk may be without.
export const TABLES: Record<TableName, { drawn: number; optional: readonly string[] }> = {
  steps: {
    drawn: 20000,
    optional: [
      "gpu_busy_ns",
      "gpu_idle_ns",
      "gpu_launch_gap_ns",
      "gpu_kernels",
      "gpu_kernel_ns",
      "gpu_attention_ns",
      "gpu_gemm_ns",
      "gpu_kv_write_ns",
    ],
  },
  shares: { drawn: 20000, optional: [] },
  requests: { drawn: 12000, optional: [] },
  segments: { drawn: 0, optional: [] },
  preemptions: { drawn: 0, optional: [] },
  blocks: { drawn: 500000, optional: [] },
  pins: { drawn: 100000, optional: [] },
  tiers: { drawn: 100000, optional: [] },
  transfers: { drawn: 100000, optional: [] },
  prefixes: { drawn: 0, optional: [] },
  prefix_levels: { drawn: 100000, optional: [] },
  prefix_users: { drawn: 0, optional: [] },
  kernels: { drawn: 200000, optional: [] },
  kernel_bins: { drawn: 200000, optional: [] },
  accesses: { drawn: 100000, optional: [] },
  access_bins: { drawn: 100000, optional: [] },
  access_blocks: { drawn: 0, optional: [] },
  windows: { drawn: 0, optional: [] },
};
