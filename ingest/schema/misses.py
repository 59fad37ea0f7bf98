"""The tables of misses and costs: what ingest works out beyond the events. `docs/misses.md` explains them."""

from __future__ import annotations

from kvtrace.events import BOOL, HASH, U8
from kvtrace.ingest.schema.declare import BIGINT, DOUBLE, INTEGER, TEXT, Table, column

COST_MODEL = Table(
    "cost_model",
    "What computing tokens costs in this run (derived): a least-squares fit of the steps' own wall time, own_ns = "
    "intercept_ns + ns_per_token * tokens + ns_per_token_context * token_contexts. A token that attends to c tokens, "
    "itself included, adds c to token_contexts.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("composition", TEXT, "The steps in the fit: all, decode_only or with_prefill."),
        column("steps", BIGINT, "Steps in the fit."),
        column("left_out_steps", BIGINT, "Steps left out as outliers of a first fit (6 scaled median deviations)."),
        column("intercept_ns", DOUBLE, "Wall time of a step before its first token; NULL without a fit."),
        column("ns_per_token", DOUBLE, "What a further token adds; NULL without a fit."),
        column("ns_per_token_context", DOUBLE, "What a further token of context adds to a token; 0 where not found."),
        column("r2", DOUBLE, "Share of the variance of wall time that the fit explains."),
        column("rmse_ns", DOUBLE, "Root of the mean squared residual."),
        column("min_tokens", BIGINT, "Fewest tokens of a step in the fit."),
        column("max_tokens", BIGINT, "Most tokens of a step in the fit."),
        column("used", BOOL, "The fit that this trace's prices come from: at most one an engine."),
    ),
)

TRANSFER_RATE = Table(
    "transfer_rate",
    "What moving KV to and from offload tiers achieved in this run (derived from table `transfer`); empty without any.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("direction", TEXT, "load or store."),
        column("basis", TEXT, "What their time is: device, GPU time of the copies; reported, by the connector; host, "
                              "wall time in which at least one was under way."),
        column("transfers", BIGINT, "Finished transfers between the GPU and a tier with known bytes and that time."),
        column("bytes", BIGINT, "Bytes they moved, over all workers."),
        column("busy_ns", BIGINT, "Their time, over all workers."),
        column("bytes_per_s", DOUBLE, "bytes over busy_ns: the rate of one worker."),
    ),
)  # fmt: skip

PREFIX_MISS = Table(
    "prefix_miss",
    "Why each admitted prefix lookup ended where it did (derived): a verdict on the first block not found.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("time_ns", BIGINT, "When the lookup returned."),
        column("step", INTEGER, "The step that admitted the request."),
        column("request", INTEGER, "The request."),
        column("resumed", BOOL, "It had been preempted before."),
        column("verdict", TEXT, "never_stored, not_finished_storing, different_key, evicted, evicted_from_tier, "
                                 "reset, shorter_than_block, part_of_block, last_token, not_used, caching_off, "
                                 "reading_skipped or unknown."),
        column("queried_tokens", INTEGER, "Tokens of the request."),
        column("local_hit_tokens", INTEGER, "Of them, found in the GPU prefix cache."),
        column("external_hit_tokens", INTEGER, "Of them, supplied by a KV connector; NULL if none was asked."),
        column("block_position", BIGINT, "Index in the block table of the first block that had to be computed."),
        column("block_hash", HASH, "Its hash; NULL if it is not full or was not recorded."),
        column("known_tokens", BIGINT, "Longest prefix, in whole blocks, that an earlier request had too (with "
                                         "different_key: under another key; with part_of_block: at least so many "
                                         "tokens); NULL if the cache was not read."),
        column("recomputed_tokens", BIGINT, "Tokens that had to be computed."),
        column("avoidable_tokens", BIGINT, "Of them, those an earlier request had too and vLLM could have reused."),
        column("recompute_ns", BIGINT, "Price of recomputed_tokens by cost_model; NULL without one."),
        column("avoidable_ns", BIGINT, "Price of avoidable_tokens by cost_model; NULL without one."),
        column("stored_ns", BIGINT, "With evicted and reset: when the block was last stored; with "
                                     "not_finished_storing: when it was stored in the end."),
        column("released_ns", BIGINT, "With evicted: when its last user before the eviction released it."),
        column("lost_ns", BIGINT, "With evicted and reset: when it was lost."),
        column("other_request", INTEGER, "With evicted: the request whose allocation took the block; with "
                                          "not_finished_storing: the one computing it; with different_key: the one "
                                          "that had the same tokens; with part_of_block: the first that had them."),
        column("key_difference", TEXT, "With different_key: cache_salt, lora, multimodal, or several of them."),
        column("gate_rule", TEXT, "The rule that ended the hit where it did, as in prefix_loss; NULL if the cache was "
                                    "not read."),
        column("gate_group", U8, "The KV cache group that it held for; NULL for rules of the request."),
        column("gate_tokens", BIGINT, "Tokens that this rule and group cut off."),
        column("gate_ns", BIGINT, "Price of those of them that had to be computed, by cost_model; NULL without one."),
        column("why", TEXT, "The verdict in a sentence."),
    ),
)  # fmt: skip

PREFIX_LOSS = Table(
    "prefix_loss",
    "The tokens that each admitted prefix lookup did not find, divided by the rule that cut them off (derived). The "
    "intervals of a lookup go from the request's end down to its hit, in the order of vLLM's own lookup.",
    (
        column("engine_id", INTEGER, "The engine."),
        column("time_ns", BIGINT, "When the lookup returned."),
        column("step", INTEGER, "The step that admitted the request."),
        column("request", INTEGER, "The request."),
        column("resumed", BOOL, "It had been preempted before."),
        column("place", INTEGER, "Place of the interval in the lookup, from 0 at the request's end."),
        column("rule", TEXT, "partial_block, last_token, lookahead, cap and dropped, for the request; absent, "
                              "window_gap, no_state, alignment and eagle_drop, for a KV cache group; unknown: not "
                              "recorded."),
        column("kv_group", U8, "The KV cache group, the first if several were asked at once; NULL: none."),
        column("kv_groups", U8, "Groups that were asked at once; NULL as kv_group, or one."),
        column("kind", TEXT, "Their kind: full, window, chunk, state or other; NULL if not recorded."),
        column("start_tokens", BIGINT, "Tokens of the request before the interval."),
        column("lost_tokens", BIGINT, "Tokens in the interval."),
        column("known_tokens", BIGINT, "Of them, in blocks that an earlier request had too (prefix_miss)."),
        column("computed_tokens", BIGINT, "Of them, computed: no KV connector supplied them."),
        column("compute_ns", BIGINT, "Price of computed_tokens by cost_model; NULL without one."),
    ),
)  # fmt: skip

VERDICTS: tuple[Table, ...] = (COST_MODEL, TRANSFER_RATE, PREFIX_MISS, PREFIX_LOSS)
