"""The table of what clients saw."""

from __future__ import annotations

from kvtrace.events import Type
from kvtrace.ingest.schema.declare import BIGINT, BOOLEAN, DOUBLE, INTEGER, TEXT, Table, column

CLIENT_REQUEST = Table(
    "client_request",
    "What a client saw of each request, from `client.jsonl` in the run directory (`kvtrace lab` writes it). Times were "
    "read in the client and are observed there; only `request` is put in by ingest.",
    (
        column("request", INTEGER, "The engine's request (`request.request`), by its external id; NULL if unmatched."),
        column("request_id", TEXT, "The id the client knows."),
        column("phase", INTEGER, "Which of the workloads that ran one after another on the engine, from 0."),
        column("workload", TEXT, "That workload's name."),
        column("session", TEXT, "The job."),
        column("turn", INTEGER, "The job's turn, from 0."),
        column("last", BOOLEAN, "The job has no further turn."),
        column("tool", TEXT, "The tool that the job called when the turn had ended; NULL if none."),
        column("tool_ms", DOUBLE, "How long that call was made to take."),
        column("due_ns", BIGINT, "When it was to be sent: the job's arrival, or the end of the tool call before it."),
        column("send_ns", BIGINT, "When it was sent."),
        column("first_token_ns", BIGINT, "When its first output token was there; NULL if none came."),
        column("last_token_ns", BIGINT, "When its last output token was there; NULL if none came."),
        column("prompt_tokens", INTEGER, "Prompt tokens sent."),
        column("output_tokens", INTEGER, "Output tokens received."),
        column("cached_tokens", INTEGER, "Prompt tokens from a cache as the engine told the client; NULL if not told."),
        column("token_ns", Type("times", "", "BIGINT[]"), "When each output token was there; NULL if not noted."),
        column("error", TEXT, "Why it failed; NULL if it did not."),
    ),
)
