/* Generated from kvtrace/events.py by `make docs`: records as they lie in segment files, and enumerations.
 *
 * A hook fills a record by its fields' names and gives it to packer_store with a packer that packer_accepts its layout.
 */
/* clang-format off */

#ifndef KVTRACE_EVENTS_H
#define KVTRACE_EVENTS_H

#include <stddef.h>
#include <stdint.h>

enum { /* Limit */
    LIMIT_NONE = 1,
    LIMIT_TOKEN_BUDGET = 2,
    LIMIT_KV_INSUFFICIENT = 3,
    LIMIT_MAX_NUM_SEQS = 4,
    LIMIT_PREEMPTED = 5,
    LIMIT_PAUSED = 6,
    LIMIT_OTHER = 7,
    LIMIT_PREFILL_INTERVAL = 8,
    LIMIT_STATE_PENDING = 9,
    LIMIT_REMOTE_KV = 10,
    LIMIT_CONNECTOR_DEFERRED = 11,
    LIMIT_GRAMMAR = 12,
    LIMIT_STREAMING_INPUT = 13,
    LIMIT_MAX_LORAS = 14,
};

enum { /* Phase */
    PHASE_PREFILL = 1,
    PHASE_CHUNKED_PREFILL = 2,
    PHASE_DECODE = 3,
    PHASE_RESUMED = 4,
};

enum { /* RemotePart */
    REMOTE_PART_PREFILL = 1,
    REMOTE_PART_DECODE = 2,
};

enum { /* RequestOp */
    REQUEST_OP_SCHEDULE = 1,
    REQUEST_OP_FIRST_TOKEN = 2,
    REQUEST_OP_PREEMPT = 3,
    REQUEST_OP_RESUME = 4,
    REQUEST_OP_FINISH = 5,
};

enum { /* FinishReason */
    FINISH_REASON_STOP = 1,
    FINISH_REASON_LENGTH = 2,
    FINISH_REASON_ABORT = 3,
    FINISH_REASON_IGNORED = 4,
    FINISH_REASON_ERROR = 5,
    FINISH_REASON_OTHER = 6,
};

enum { /* BlockOp */
    BLOCK_OP_ALLOCATE = 1,
    BLOCK_OP_HIT = 2,
    BLOCK_OP_CACHE = 3,
    BLOCK_OP_EVICT = 4,
    BLOCK_OP_FREE = 5,
    BLOCK_OP_RESET = 6,
};

enum { /* GroupKind */
    GROUP_KIND_FULL = 1,
    GROUP_KIND_WINDOW = 2,
    GROUP_KIND_CHUNK = 3,
    GROUP_KIND_STATE = 4,
    GROUP_KIND_OTHER = 5,
};

enum { /* GraphMode */
    GRAPH_MODE_EAGER = 1,
    GRAPH_MODE_PIECEWISE = 2,
    GRAPH_MODE_FULL = 3,
};

enum { /* TableOp */
    TABLE_OP_SET = 1,
    TABLE_OP_APPEND = 2,
};

enum { /* WindowKind */
    WINDOW_KIND_WRITE = 1,
    WINDOW_KIND_ATTENTION = 2,
};

enum { /* ConnectorNews */
    CONNECTOR_NEWS_ENDED = 1,
    CONNECTOR_NEWS_LOADED = 2,
};

enum { /* ConnectorCall */
    CONNECTOR_CALL_LOAD = 1,
    CONNECTOR_CALL_SAVE = 2,
    CONNECTOR_CALL_POLL = 3,
};

enum { /* Direction */
    DIRECTION_STORE = 1,
    DIRECTION_LOAD = 2,
};

enum { /* Tier */
    TIER_GPU = 1,
    TIER_CPU = 2,
    TIER_DISK = 3,
    TIER_REMOTE = 4,
    TIER_OTHER = 5,
};

enum { /* TierOp */
    TIER_OP_WRITE = 1,
    TIER_OP_STORE = 2,
    TIER_OP_HIT = 3,
    TIER_OP_EVICT = 4,
    TIER_OP_DROP = 5,
    TIER_OP_RESET = 6,
};

enum { /* PinCause */
    PIN_CAUSE_DELAYED_FREE = 1,
    PIN_CAUSE_IN_FLIGHT = 2,
    PIN_CAUSE_ASYNC_LOAD = 3,
    PIN_CAUSE_CONNECTOR = 4,
    PIN_CAUSE_TTL = 5,
    PIN_CAUSE_STREAMING = 6,
};

enum { /* PinEnd */
    PIN_END_USED = 1,
    PIN_END_EXPIRED = 2,
    PIN_END_FORCED = 3,
    PIN_END_SAVED = 4,
    PIN_END_LOADED = 5,
    PIN_END_DRAINED = 6,
    PIN_END_FAILED = 7,
    PIN_END_ABORTED = 8,
    PIN_END_RELEASED = 9,
};

enum { /* AccessKind */
    ACCESS_KIND_WRITE = 1,
    ACCESS_KIND_ATTENTION = 2,
    ACCESS_KIND_K_READ = 3,
    ACCESS_KIND_V_READ = 4,
    ACCESS_KIND_K_WRITE = 5,
    ACCESS_KIND_V_WRITE = 6,
};

#pragma pack(push, 1)

typedef struct {
    int64_t start_ns;
    int64_t scheduled_ns;
    int32_t step;
    int32_t running;
    int32_t waiting;
    int32_t prefill_requests;
    int32_t prefill_tokens;
    int32_t chunked_prefill_requests;
    int32_t chunked_prefill_tokens;
    int32_t decode_requests;
    int32_t decode_tokens;
    int32_t resumed_requests;
    int32_t resumed_tokens;
    int32_t budget_tokens;
    int32_t budget_left_tokens;
    int32_t free_blocks;
    int32_t used_blocks;
    int32_t cached_blocks;
    int32_t preempted_requests;
    uint8_t admission_limit;
    uint32_t limit_request;
    int32_t limit_need_blocks;
    int32_t limit_free_blocks;
    int32_t limit_kept_blocks;
    uint8_t whole; /* 1 once all of it is written */
} StepScheduleRecord;
#define STEP_SCHEDULE_LAYOUT \
    "start_ns:q " \
    "scheduled_ns:q " \
    "step:i " \
    "running:i " \
    "waiting:i " \
    "prefill_requests:i " \
    "prefill_tokens:i " \
    "chunked_prefill_requests:i " \
    "chunked_prefill_tokens:i " \
    "decode_requests:i " \
    "decode_tokens:i " \
    "resumed_requests:i " \
    "resumed_tokens:i " \
    "budget_tokens:i " \
    "budget_left_tokens:i " \
    "free_blocks:i " \
    "used_blocks:i " \
    "cached_blocks:i " \
    "preempted_requests:i " \
    "admission_limit:B(none=1,token_budget=2,kv_insufficient=3,max_num_seqs=4,preempted=5,paused=6,other=7,prefill_interval=8,state_pending=9,remote_kv=10,connector_deferred=11,grammar=12,streaming_input=13,max_loras=14) " \
    "limit_request:I " \
    "limit_need_blocks:i " \
    "limit_free_blocks:i " \
    "limit_kept_blocks:i"

typedef struct {
    int32_t step;
    uint32_t request;
    uint8_t kv_group;
    int32_t need_blocks;
    uint8_t whole; /* 1 once all of it is written */
} RefusalGroupRecord;
#define REFUSAL_GROUP_LAYOUT \
    "step:i " \
    "request:I " \
    "kv_group:B " \
    "need_blocks:i"

typedef struct {
    int64_t update_ns;
    int64_t end_ns;
    int32_t step;
    int32_t output_tokens;
    int32_t finished_requests;
    uint8_t whole; /* 1 once all of it is written */
} StepUpdateRecord;
#define STEP_UPDATE_LAYOUT \
    "update_ns:q " \
    "end_ns:q " \
    "step:i " \
    "output_tokens:i " \
    "finished_requests:i"

typedef struct {
    int32_t step;
    uint32_t request;
    uint8_t phase;
    int32_t scheduled_tokens;
    int32_t computed_tokens;
    int32_t new_blocks;
    uint8_t whole; /* 1 once all of it is written */
} StepRequestRecord;
#define STEP_REQUEST_LAYOUT \
    "step:i " \
    "request:I " \
    "phase:B(prefill=1,chunked_prefill=2,decode=3,resumed=4) " \
    "scheduled_tokens:i " \
    "computed_tokens:i " \
    "new_blocks:i"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t request;
    int32_t drafted_tokens;
    int32_t accepted_tokens;
    int32_t invalid_tokens;
    uint8_t whole; /* 1 once all of it is written */
} DraftRecord;
#define DRAFT_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "request:I " \
    "drafted_tokens:i " \
    "accepted_tokens:i " \
    "invalid_tokens:i"

typedef struct {
    int64_t time_ns;
    uint32_t request;
    uint32_t external_id;
    uint8_t whole; /* 1 once all of it is written */
} RequestArrivalRecord;
#define REQUEST_ARRIVAL_LAYOUT \
    "time_ns:q " \
    "request:I " \
    "external_id:I"

typedef struct {
    int64_t time_ns;
    uint32_t request;
    uint32_t tenant;
    uint32_t lora;
    uint8_t whole; /* 1 once all of it is written */
} RequestOwnerRecord;
#define REQUEST_OWNER_LAYOUT \
    "time_ns:q " \
    "request:I " \
    "tenant:I " \
    "lora:I"

typedef struct {
    int64_t time_ns;
    uint32_t request;
    int64_t first_ns;
    uint8_t whole; /* 1 once all of it is written */
} RequestDeliveryRecord;
#define REQUEST_DELIVERY_LAYOUT \
    "time_ns:q " \
    "request:I " \
    "first_ns:q"

typedef struct {
    int64_t time_ns;
    uint32_t request;
    int64_t arrival_ns;
    int32_t prompt_tokens;
    int32_t max_tokens;
    int64_t priority;
    uint32_t session;
    int32_t turn;
    uint32_t tool;
    uint8_t whole; /* 1 once all of it is written */
} RequestQueuedRecord;
#define REQUEST_QUEUED_LAYOUT \
    "time_ns:q " \
    "request:I " \
    "arrival_ns:q " \
    "prompt_tokens:i " \
    "max_tokens:i " \
    "priority:q " \
    "session:I " \
    "turn:i " \
    "tool:I"

typedef struct {
    int64_t time_ns;
    uint32_t request;
    uint8_t part;
    uint32_t remote_request;
    uint32_t transfer;
    uint8_t whole; /* 1 once all of it is written */
} RequestRemoteRecord;
#define REQUEST_REMOTE_LAYOUT \
    "time_ns:q " \
    "request:I " \
    "part:B(prefill=1,decode=2) " \
    "remote_request:I " \
    "transfer:I"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t request;
    uint8_t op;
    uint8_t reason;
    int32_t computed_tokens;
    int32_t output_tokens;
    int32_t local_cached_tokens;
    int32_t external_cached_tokens;
    int32_t blocks;
    uint8_t whole; /* 1 once all of it is written */
} RequestEventRecord;
#define REQUEST_EVENT_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "request:I " \
    "op:B(schedule=1,first_token=2,preempt=3,resume=4,finish=5) " \
    "reason:B(stop=1,length=2,abort=3,ignored=4,error=5,other=6) " \
    "computed_tokens:i " \
    "output_tokens:i " \
    "local_cached_tokens:i " \
    "external_cached_tokens:i " \
    "blocks:i"

typedef struct {
    int64_t time_ns;
    int32_t step;
    int32_t block_id;
    uint8_t op;
    int32_t ref_count;
    uint32_t request;
    uint64_t block_hash;
    uint8_t kv_group;
    uint8_t pool;
    uint8_t whole; /* 1 once all of it is written */
} BlockEventRecord;
#define BLOCK_EVENT_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "block_id:i " \
    "op:B(allocate=1,hit=2,cache=3,evict=4,free=5,reset=6) " \
    "ref_count:i " \
    "request:I " \
    "block_hash:Q " \
    "kv_group:B " \
    "pool:B"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t request;
    int32_t queried_tokens;
    int32_t local_hit_tokens;
    int32_t external_hit_tokens;
    int32_t first_missing_block;
    uint8_t admitted;
    int32_t repeat;
    uint8_t resumed;
    uint8_t enabled;
    int32_t cap_tokens;
    uint8_t whole; /* 1 once all of it is written */
} PrefixLookupRecord;
#define PREFIX_LOOKUP_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "request:I " \
    "queried_tokens:i " \
    "local_hit_tokens:i " \
    "external_hit_tokens:i " \
    "first_missing_block:i " \
    "admitted:? " \
    "repeat:i " \
    "resumed:? " \
    "enabled:? " \
    "cap_tokens:i"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t request;
    uint8_t place;
    uint8_t kv_group;
    uint8_t kv_groups;
    uint8_t kind;
    int32_t bound_tokens;
    int32_t hit_tokens;
    int32_t stored_tokens;
    int32_t kept_tokens;
    int32_t own_tokens;
    int32_t unit_tokens;
    int32_t alignment_tokens;
    uint8_t eagle;
    uint8_t whole; /* 1 once all of it is written */
} GroupLookupRecord;
#define GROUP_LOOKUP_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "request:I " \
    "place:B " \
    "kv_group:B " \
    "kv_groups:B " \
    "kind:B(full=1,window=2,chunk=3,state=4,other=5) " \
    "bound_tokens:i " \
    "hit_tokens:i " \
    "stored_tokens:i " \
    "kept_tokens:i " \
    "own_tokens:i " \
    "unit_tokens:i " \
    "alignment_tokens:i " \
    "eagle:?"

typedef struct {
    int32_t step;
    uint32_t request;
    int32_t position;
    uint64_t block_hash;
    uint64_t token_hash;
    uint8_t whole; /* 1 once all of it is written */
} RequestHashRecord;
#define REQUEST_HASH_LAYOUT \
    "step:i " \
    "request:I " \
    "position:i " \
    "block_hash:Q " \
    "token_hash:Q"

typedef struct {
    int32_t step;
    uint32_t request;
    int32_t tokens;
    uint64_t head_hash;
    uint8_t whole; /* 1 once all of it is written */
} RequestHeadRecord;
#define REQUEST_HEAD_LAYOUT \
    "step:i " \
    "request:I " \
    "tokens:i " \
    "head_hash:Q"

typedef struct {
    int32_t step;
    uint32_t request;
    uint32_t lora;
    uint64_t lora_key;
    uint64_t salt_key;
    uint64_t multimodal_key;
    uint8_t prompt_embeds;
    uint8_t whole; /* 1 once all of it is written */
} RequestKeyRecord;
#define REQUEST_KEY_LAYOUT \
    "step:i " \
    "request:I " \
    "lora:I " \
    "lora_key:Q " \
    "salt_key:Q " \
    "multimodal_key:Q " \
    "prompt_embeds:?"

typedef struct {
    int64_t start_ns;
    int64_t end_ns;
    int32_t engine_id;
    int32_t step;
    int32_t tokens;
    int32_t requests;
    uint8_t graph_mode;
    uint8_t whole; /* 1 once all of it is written */
} ForwardRecord;
#define FORWARD_LAYOUT \
    "start_ns:q " \
    "end_ns:q " \
    "engine_id:i " \
    "step:i " \
    "tokens:i " \
    "requests:i " \
    "graph_mode:B(eager=1,piecewise=2,full=3)"

typedef struct {
    int32_t step;
    uint32_t request;
    uint8_t kv_group;
    uint8_t op;
    int32_t position;
    int32_t block_id;
    uint8_t whole; /* 1 once all of it is written */
} BlockTableRecord;
#define BLOCK_TABLE_LAYOUT \
    "step:i " \
    "request:I " \
    "kv_group:B " \
    "op:B(set=1,append=2) " \
    "position:i " \
    "block_id:i"

typedef struct {
    int64_t start_ns;
    int64_t end_ns;
    int32_t engine_id;
    int32_t step;
    int32_t layer;
    uint8_t kind;
    uint8_t observed;
    uint8_t whole; /* 1 once all of it is written */
} KvWindowRecord;
#define KV_WINDOW_LAYOUT \
    "start_ns:q " \
    "end_ns:q " \
    "engine_id:i " \
    "step:i " \
    "layer:i " \
    "kind:B(write=1,attention=2) " \
    "observed:?"

typedef struct {
    int32_t engine_id;
    int32_t step;
    int32_t row;
    uint32_t request;
    uint8_t whole; /* 1 once all of it is written */
} BatchRowRecord;
#define BATCH_ROW_LAYOUT \
    "engine_id:i " \
    "step:i " \
    "row:i " \
    "request:I"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t request;
    uint8_t part;
    uint32_t connector;
    int32_t local_tokens;
    int32_t matched_tokens;
    uint8_t asynchronous;
    int64_t asked_ns;
    uint8_t whole; /* 1 once all of it is written */
} ConnectorLookupRecord;
#define CONNECTOR_LOOKUP_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "request:I " \
    "part:B " \
    "connector:I " \
    "local_tokens:i " \
    "matched_tokens:i " \
    "asynchronous:? " \
    "asked_ns:q"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t request;
    uint8_t op;
    uint8_t whole; /* 1 once all of it is written */
} ConnectorNewsRecord;
#define CONNECTOR_NEWS_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "request:I " \
    "op:B(ended=1,loaded=2)"

typedef struct {
    int64_t start_ns;
    int64_t end_ns;
    int32_t engine_id;
    int32_t step;
    uint8_t part;
    uint32_t connector;
    uint8_t call;
    int32_t sent_requests;
    int32_t received_requests;
    uint8_t whole; /* 1 once all of it is written */
} ConnectorCallRecord;
#define CONNECTOR_CALL_LAYOUT \
    "start_ns:q " \
    "end_ns:q " \
    "engine_id:i " \
    "step:i " \
    "part:B " \
    "connector:I " \
    "call:B(load=1,save=2,poll=3) " \
    "sent_requests:i " \
    "received_requests:i"

typedef struct {
    int64_t submitted_ns;
    int32_t engine_id;
    int32_t step;
    int64_t transfer;
    uint32_t connector;
    uint8_t direction;
    uint8_t from_tier;
    uint8_t to_tier;
    int32_t blocks;
    int64_t bytes;
    uint8_t whole; /* 1 once all of it is written */
} TransferSubmitRecord;
#define TRANSFER_SUBMIT_LAYOUT \
    "submitted_ns:q " \
    "engine_id:i " \
    "step:i " \
    "transfer:q " \
    "connector:I " \
    "direction:B(store=1,load=2) " \
    "from_tier:B(gpu=1,cpu=2,disk=3,remote=4,other=5) " \
    "to_tier:B(gpu=1,cpu=2,disk=3,remote=4,other=5) " \
    "blocks:i " \
    "bytes:q"

typedef struct {
    int64_t finished_ns;
    int64_t transfer;
    int64_t started_ns;
    int64_t bytes;
    int64_t device_ns;
    int64_t reported_ns;
    uint8_t success;
    uint8_t whole; /* 1 once all of it is written */
} TransferEndRecord;
#define TRANSFER_END_LAYOUT \
    "finished_ns:q " \
    "transfer:q " \
    "started_ns:q " \
    "bytes:q " \
    "device_ns:q " \
    "reported_ns:q " \
    "success:?"

typedef struct {
    int64_t time_ns;
    int32_t step;
    int64_t transfer;
    uint8_t direction;
    uint32_t request;
    int32_t gpu_block_id;
    int32_t other_block_id;
    uint64_t block_hash;
    uint8_t kv_group;
    uint8_t whole; /* 1 once all of it is written */
} TransferBlockRecord;
#define TRANSFER_BLOCK_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "transfer:q " \
    "direction:B(store=1,load=2) " \
    "request:I " \
    "gpu_block_id:i " \
    "other_block_id:i " \
    "block_hash:Q " \
    "kv_group:B"

typedef struct {
    int64_t begin_ns;
    int32_t engine_id;
    int32_t step;
    uint32_t request;
    int64_t transfer;
    uint32_t remote_engine;
    uint32_t remote_request;
    int64_t prepare_ns;
    int64_t prepared_ns;
    int64_t posted_ns;
    int64_t wire_start_ns;
    int64_t post_ns;
    int64_t wire_ns;
    int64_t running_ns;
    int64_t seen_ns;
    int32_t descriptors;
    int32_t posted_descriptors;
    int64_t bytes;
    uint8_t success;
    uint8_t whole; /* 1 once all of it is written */
} HandoverReadRecord;
#define HANDOVER_READ_LAYOUT \
    "begin_ns:q " \
    "engine_id:i " \
    "step:i " \
    "request:I " \
    "transfer:q " \
    "remote_engine:I " \
    "remote_request:I " \
    "prepare_ns:q " \
    "prepared_ns:q " \
    "posted_ns:q " \
    "wire_start_ns:q " \
    "post_ns:q " \
    "wire_ns:q " \
    "running_ns:q " \
    "seen_ns:q " \
    "descriptors:i " \
    "posted_descriptors:i " \
    "bytes:q " \
    "success:?"

typedef struct {
    int64_t time_ns;
    int32_t engine_id;
    int32_t step;
    uint32_t request;
    uint8_t whole; /* 1 once all of it is written */
} HandoverNoticeRecord;
#define HANDOVER_NOTICE_LAYOUT \
    "time_ns:q " \
    "engine_id:i " \
    "step:i " \
    "request:I"

typedef struct {
    int64_t time_ns;
    int32_t step;
    uint32_t connector;
    uint8_t tier;
    uint8_t op;
    int32_t tier_block_id;
    uint32_t request;
    uint64_t block_hash;
    uint8_t kv_group;
    uint8_t whole; /* 1 once all of it is written */
} TierBlockRecord;
#define TIER_BLOCK_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "connector:I " \
    "tier:B(gpu=1,cpu=2,disk=3,remote=4,other=5) " \
    "op:B(write=1,store=2,hit=3,evict=4,drop=5,reset=6) " \
    "tier_block_id:i " \
    "request:I " \
    "block_hash:Q " \
    "kv_group:B"

typedef struct {
    int64_t time_ns;
    int32_t step;
    int32_t pin;
    int32_t block_id;
    uint8_t cause;
    uint32_t request;
    int64_t requested_ttl_ns;
    uint8_t whole; /* 1 once all of it is written */
} PinStartRecord;
#define PIN_START_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "pin:i " \
    "block_id:i " \
    "cause:B(delayed_free=1,in_flight=2,async_load=3,connector=4,ttl=5,streaming=6) " \
    "request:I " \
    "requested_ttl_ns:q"

typedef struct {
    int64_t time_ns;
    int32_t step;
    int32_t pin;
    int32_t block_id;
    uint8_t reason;
    uint8_t whole; /* 1 once all of it is written */
} PinEndRecord;
#define PIN_END_LAYOUT \
    "time_ns:q " \
    "step:i " \
    "pin:i " \
    "block_id:i " \
    "reason:B(used=1,expired=2,forced=3,saved=4,loaded=5,drained=6,failed=7,aborted=8,released=9)"

#pragma pack(pop)

_Static_assert(sizeof(StepScheduleRecord) == 102, "StepScheduleRecord is not packed");
_Static_assert(sizeof(RefusalGroupRecord) == 14, "RefusalGroupRecord is not packed");
_Static_assert(sizeof(StepUpdateRecord) == 29, "StepUpdateRecord is not packed");
_Static_assert(sizeof(StepRequestRecord) == 22, "StepRequestRecord is not packed");
_Static_assert(sizeof(DraftRecord) == 29, "DraftRecord is not packed");
_Static_assert(sizeof(RequestArrivalRecord) == 17, "RequestArrivalRecord is not packed");
_Static_assert(sizeof(RequestOwnerRecord) == 21, "RequestOwnerRecord is not packed");
_Static_assert(sizeof(RequestDeliveryRecord) == 21, "RequestDeliveryRecord is not packed");
_Static_assert(sizeof(RequestQueuedRecord) == 49, "RequestQueuedRecord is not packed");
_Static_assert(sizeof(RequestRemoteRecord) == 22, "RequestRemoteRecord is not packed");
_Static_assert(sizeof(RequestEventRecord) == 39, "RequestEventRecord is not packed");
_Static_assert(sizeof(BlockEventRecord) == 36, "BlockEventRecord is not packed");
_Static_assert(sizeof(PrefixLookupRecord) == 44, "PrefixLookupRecord is not packed");
_Static_assert(sizeof(GroupLookupRecord) == 50, "GroupLookupRecord is not packed");
_Static_assert(sizeof(RequestHashRecord) == 29, "RequestHashRecord is not packed");
_Static_assert(sizeof(RequestHeadRecord) == 21, "RequestHeadRecord is not packed");
_Static_assert(sizeof(RequestKeyRecord) == 38, "RequestKeyRecord is not packed");
_Static_assert(sizeof(ForwardRecord) == 34, "ForwardRecord is not packed");
_Static_assert(sizeof(BlockTableRecord) == 19, "BlockTableRecord is not packed");
_Static_assert(sizeof(KvWindowRecord) == 31, "KvWindowRecord is not packed");
_Static_assert(sizeof(BatchRowRecord) == 17, "BatchRowRecord is not packed");
_Static_assert(sizeof(ConnectorLookupRecord) == 39, "ConnectorLookupRecord is not packed");
_Static_assert(sizeof(ConnectorNewsRecord) == 18, "ConnectorNewsRecord is not packed");
_Static_assert(sizeof(ConnectorCallRecord) == 39, "ConnectorCallRecord is not packed");
_Static_assert(sizeof(TransferSubmitRecord) == 44, "TransferSubmitRecord is not packed");
_Static_assert(sizeof(TransferEndRecord) == 50, "TransferEndRecord is not packed");
_Static_assert(sizeof(TransferBlockRecord) == 43, "TransferBlockRecord is not packed");
_Static_assert(sizeof(HandoverReadRecord) == 118, "HandoverReadRecord is not packed");
_Static_assert(sizeof(HandoverNoticeRecord) == 21, "HandoverNoticeRecord is not packed");
_Static_assert(sizeof(TierBlockRecord) == 36, "TierBlockRecord is not packed");
_Static_assert(sizeof(PinStartRecord) == 34, "PinStartRecord is not packed");
_Static_assert(sizeof(PinEndRecord) == 22, "PinEndRecord is not packed");

#endif
