"""The tables of merged recordings: the recordings, their hosts' clocks, and requests handed from engine to engine."""

from __future__ import annotations

from kvtrace.ingest.schema.declare import BIGINT, INTEGER, TEXT, Table, column

RECORDING = Table(
    "recording",
    "The run directories that the trace was made of. Nothing here for a trace of other tools' files alone.",
    (
        column("recording", INTEGER, "Key (from 1, in the order they were given)."),
        column("name", TEXT, "The run directory's name."),
        column("command", TEXT, "What was launched, a JSON list; NULL without a manifest."),
        column("started_ns", BIGINT, "When it was launched, as its host's clock was corrected."),
        column("ended_ns", BIGINT, "When it ended, likewise."),
        column("exit_code", INTEGER, "Its exit code."),
        column("kvtrace_version", TEXT, "The kvtrace that recorded it."),
    ),
)

HOST_CLOCK = Table(
    "host_clock",
    "The clocks of the recorded hosts, and what was added to each to put all on one time base (derived). Processes of "
    "one boot of one host share a clock, whichever recording they are in, so times between them are exact.",
    (
        column("host_clock", INTEGER, "Key (from 1)."),
        column("host", TEXT, "Host name; NULL for a client that only left what it saw."),
        column("recording", INTEGER, "The first recording with this clock (`recording.recording`)."),
        column("correction_ns", BIGINT, "Added to the host's own UNIX time. The first host's is 0."),
        column("uncertainty_ns", BIGINT, "How far the true one may be from that, either way; NULL if unbounded."),
        column("earliest_ns", BIGINT, "With a smaller one a message would arrive before it was sent; NULL if none."),
        column("latest_ns", BIGINT, "With a larger one, likewise. Below earliest_ns: clocks drifted or were set."),
        column("messages", BIGINT, "Messages between it and others: hand-overs and clients' requests."),
        column("method", TEXT, "reference: the first host; given: --clock-offset; hand_overs: bounded from both sides; "
                               "one_direction: its own time, moved if a bound asked for it; own_clock: its own time."),
    ),
)  # fmt: skip

HANDOVER = Table(
    "handover",
    "Requests whose prompt one engine computed and whose answer another (disaggregated prefill and decode), joined "
    "(derived). Times of two hosts are as sure as uncertainty_ns.",
    (
        column("prefill_request", INTEGER, "The request in the engine that computed its prompt."),
        column("decode_request", INTEGER, "The request in the engine that took over the KV."),
        column("prefill_engine_id", INTEGER, "That engine."),
        column("decode_engine_id", INTEGER, "The other."),
        column("external_id", TEXT, "The id the client knows."),
        column("matched_by", TEXT, "remote_request_id, transfer_id: by kv_transfer_params; external_id: the same "
                                   "client id, in engines with connectors: first one token, then KV from outside."),
        column("prefill_arrival_ns", BIGINT, "When it arrived at the first engine."),
        column("prefill_scheduled_ns", BIGINT, "When it was first admitted there."),
        column("prefill_end_ns", BIGINT, "When it ended there: the prompt's KV is computed."),
        column("decode_arrival_ns", BIGINT, "When it arrived at the other engine."),
        column("decode_scheduled_ns", BIGINT, "When it was first admitted there."),
        column("load_start_ns", BIGINT, "When that engine began to load its KV: to wait for it (asynchronous), or "
                                        "load calls of its first step; NULL if neither was recorded."),
        column("load_end_ns", BIGINT, "When it had it."),
        column("asynchronous", TEXT, "yes: loaded before it was admitted; no: in its first step; NULL if not known."),
        column("first_token_ns", BIGINT, "When its first output token came back from the other engine's model."),
        column("loaded_tokens", INTEGER, "Tokens whose KV came from outside."),
        column("uncertainty_ns", BIGINT, "Of one engine's times against the other's; 0 on one host, NULL: unbounded."),
    ),
    view="""
        WITH place AS (
            SELECT process_id, p.host_clock, h.uncertainty_ns FROM process p LEFT JOIN host_clock h USING (host_clock)
        ), answered AS (
            SELECT * FROM request WHERE external_cached_tokens > 0
        ), told AS (
            SELECT p.request AS prefill_request, d.request AS decode_request, 1 AS rank,
                'remote_request_id' AS matched_by
            FROM request_remote r JOIN answered d ON d.request = r.request
            JOIN request p ON p.internal_id = r.remote_request AND p.engine_id <> d.engine_id
            WHERE r.part = 'decode'
            UNION ALL
            SELECT p.request, d.request, 2, 'transfer_id'
            FROM request_remote r JOIN request_remote s ON r.transfer = s.transfer AND s.part = 'prefill'
            JOIN answered d ON d.request = r.request
            JOIN request p ON p.request = s.request AND p.engine_id <> d.engine_id
            WHERE r.part = 'decode'
            UNION ALL
            SELECT p.request, d.request, 3, 'external_id'
            FROM answered d JOIN request p ON p.external_id = d.external_id AND p.engine_id <> d.engine_id
            JOIN engine pe ON pe.engine_id = p.engine_id JOIN engine de ON de.engine_id = d.engine_id
            WHERE p.max_tokens = 1 AND (d.max_tokens <> 1 OR coalesce(p.external_cached_tokens, 0) = 0)
                AND pe.connector IS NOT NULL AND de.connector IS NOT NULL
        ), pair AS (
            SELECT DISTINCT ON (decode_request) t.*
            FROM told t JOIN request p ON p.request = t.prefill_request JOIN request d ON d.request = t.decode_request
            ORDER BY decode_request, rank, abs(d.queued_ns - p.finished_ns)
        ), waited AS (
            SELECT request, min(start_ns) AS start_ns, max(end_ns) AS end_ns
            FROM pin WHERE cause = 'async_load' AND request IN (SELECT decode_request FROM pair) GROUP BY request
        ), called AS (
            SELECT e.request, min(c.start_ns) AS start_ns, max(c.end_ns) AS end_ns
            FROM request_event e JOIN connector_call c
                ON c.engine_id = e.engine_id AND c.step = e.step AND c.call = 'load' AND c.part = 0
            WHERE e.op = 'schedule' AND e.request IN (SELECT decode_request FROM pair) GROUP BY e.request
        )
        SELECT pair.prefill_request, pair.decode_request, p.engine_id AS prefill_engine_id,
            d.engine_id AS decode_engine_id, coalesce(d.external_id, p.external_id) AS external_id, pair.matched_by,
            coalesce(p.arrival_ns, p.queued_ns) AS prefill_arrival_ns, p.scheduled_ns AS prefill_scheduled_ns,
            p.finished_ns AS prefill_end_ns,
            coalesce(d.arrival_ns, d.queued_ns) AS decode_arrival_ns, d.scheduled_ns AS decode_scheduled_ns,
            coalesce(w.start_ns, c.start_ns) AS load_start_ns,
            CASE WHEN w.request IS NULL THEN c.end_ns ELSE w.end_ns END AS load_end_ns,
            CASE WHEN w.request IS NOT NULL THEN 'yes' WHEN c.request IS NOT NULL THEN 'no' END AS asynchronous,
            d.first_token_ns, d.external_cached_tokens AS loaded_tokens,
            CASE WHEN a.host_clock IS NOT DISTINCT FROM b.host_clock THEN 0 ELSE a.uncertainty_ns + b.uncertainty_ns END
                AS uncertainty_ns
        FROM pair JOIN request p ON p.request = pair.prefill_request JOIN request d ON d.request = pair.decode_request
            LEFT JOIN place a ON a.process_id = p.engine_id LEFT JOIN place b ON b.process_id = d.engine_id
            LEFT JOIN waited w ON w.request = d.request LEFT JOIN called c ON c.request = d.request
    """,
)  # fmt: skip

HOSTS: tuple[Table, ...] = (RECORDING, HOST_CLOCK, HANDOVER)
