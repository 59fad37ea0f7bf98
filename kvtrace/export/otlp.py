"""Requests and steps as OpenTelemetry spans: OTLP in JSON, a message a line, as a collector's file receiver reads it.

A job (the requests of one session) is a trace, a request without a session is one, and so is a step. A request's
stretches (queued, prefill, decode, preempted, resumed) are its children and link to the steps that computed for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kvtrace import __version__
from kvtrace.export.otlp_spans import GEN_AI, SERVER, Key, Span, attribute_list, key, span
from kvtrace.export.place import whole_file
from kvtrace.export.tables import run_id
from kvtrace.queries import Trace, find
from kvtrace.queries.facts import run_facts
from kvtrace.queries.writers import Limited

MOST_LINKS = 128
"""Links of a span; more are counted as dropped, as OpenTelemetry's own libraries do."""

_LINE_SPANS = 512
_BATCH_ROWS = 2048
_OPERATION = "text_completion"
"""An engine's operation, by the conventions: it does not know whether a client called it a chat."""

_JOBS = """
    SELECT session, min(coalesce(arrival_ns, queued_ns)) AS start_ns, count(*) AS requests,
        CASE WHEN NOT bool_or(finished_ns IS NULL) THEN max(finished_ns) END AS end_ns
    FROM request WHERE session IS NOT NULL AND coalesce(arrival_ns, queued_ns) IS NOT NULL AND engine_id IS NOT NULL
    GROUP BY session ORDER BY start_ns, session
"""

_REQUESTS = f"""
    WITH state AS ({find("request-states").sql({})}),
    share AS (
        SELECT q.request, q.step, s.scheduled_ns FROM step_request q JOIN step_schedule s USING (engine_id, step)
    ),
    linked AS (
        SELECT t.request, t.start_ns, count(*) AS steps, list(h.step ORDER BY h.step)[:{MOST_LINKS}] AS links
        FROM share h ASOF JOIN state t ON h.request = t.request AND h.scheduled_ns >= t.start_ns
        GROUP BY t.request, t.start_ns
    ),
    stretch AS (
        SELECT t.request, min(t.start_ns) AS start_ns, max(t.end_ns) AS end_ns, bool_or(t.end_ns IS NULL) AS open,
            list({{'state': t.state, 'start_ns': t.start_ns, 'end_ns': t.end_ns, 'steps': l.steps, 'links': l.links}}
                ORDER BY t.start_ns) AS stretches
        FROM state t LEFT JOIN linked l ON l.request = t.request AND l.start_ns = t.start_ns GROUP BY t.request
    ),
    held AS (SELECT request, max(blocks) AS blocks FROM request_event GROUP BY request),
    miss AS (
        SELECT request, arg_min(verdict, time_ns) AS miss_verdict,
            arg_min(avoidable_tokens, time_ns) AS avoidable_tokens
        FROM prefix_miss WHERE NOT resumed GROUP BY request
    )
    SELECT r.* EXCLUDE (finish_reason), r.finish_reason::VARCHAR AS finish_reason, t.stretches, t.open,
        least(r.arrival_ns, t.start_ns) AS start_ns, t.end_ns, h.blocks AS most_blocks, e.model,
        m.miss_verdict, m.avoidable_tokens
    FROM request r JOIN stretch t USING (request) LEFT JOIN held h USING (request)
        LEFT JOIN miss m USING (request) LEFT JOIN engine e ON e.engine_id = r.engine_id
    WHERE r.engine_id IS NOT NULL ORDER BY start_ns, r.request
"""

_STEPS = """
    SELECT * REPLACE (admission_limit::VARCHAR AS admission_limit) FROM step ORDER BY start_ns, engine_id
"""

_FORWARDS = """
    SELECT f.* REPLACE (f.graph_mode::VARCHAR AS graph_mode)
    FROM forward f SEMI JOIN step_schedule s USING (engine_id, step) ORDER BY start_ns, process_id
"""


def export_otlp(path: Path, output: Path, *, run: str | None = None, force: bool = False) -> dict[str, int]:
    """Write a trace as OTLP spans.

    Args:
        path: The trace.
        output: The file to write.
        run: What tells the run from others; by default when it started and its process.
        force: Replace the file.

    Returns:
        Spans by what they are.

    Raises:
        KvtraceError: the trace cannot be read, or the file not be written.
    """
    with Trace(path) as trace, whole_file(output, force=force) as file:
        return _Export(trace, run_id(trace, run), file).write()


class _Export:
    """One export: what its spans have in common, and what was written."""

    def __init__(self, trace: Trace, run: str, file: BinaryIO) -> None:
        self._trace = trace
        self._run = run
        self._file = file
        self._resources = self._described()
        self._last_ns = self._end_of_recording()
        self._spans: Counter[str] = Counter()

    def write(self) -> dict[str, int]:
        """Write all spans, jobs first."""
        for rows, spans in ((_JOBS, self._job), (_REQUESTS, self._request), (_STEPS, self._step)):
            self._lines(rows, spans)
        self._lines(_FORWARDS, self._forward)
        return dict(self._spans)

    def _lines(self, sql: str, spans: Any) -> None:
        """Write a message a line, each of spans of one engine."""
        held: dict[int | None, list[Span]] = {}
        for batch in Limited(self._trace.sql(sql, "batches", batch_rows=_BATCH_ROWS)):
            for row in batch.to_pylist():
                engine = row.get("engine_id")
                held.setdefault(engine, []).extend(spans(row))
                if len(held[engine]) >= _LINE_SPANS:
                    self._line(engine, held.pop(engine))
        for engine, rest in held.items():
            self._line(engine, rest)

    def _line(self, engine: int | None, spans: list[Span]) -> None:
        scope = {"scope": {"name": "kvtrace", "version": __version__}, "spans": spans}
        message = {"resourceSpans": [{"resource": self._resource(engine), "scopeSpans": [scope]}]}
        self._file.write(json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def _resource(self, engine: int | None) -> dict[str, Any]:
        return self._resources.get(engine) or self._resources[None]

    def _job(self, row: dict[str, Any]) -> Iterator[Span]:
        attributes = {GEN_AI["session"]: row["session"], "kvtrace.requests": row["requests"]}
        yield self._span("job", self._job_key(row["session"]), "job", row, attributes)

    def _request(self, row: dict[str, Any]) -> Iterator[Span]:
        if row["session"] is None:
            root, parent = ("request", row["request"]), None
            identity = key((self._run, *root))
        else:
            root, parent = ("job", row["session"]), self._job_key(row["session"])
            identity = key((self._run, *root), ("request", row["request"]))
        attributes = _request_attributes(row)
        name = f"{_OPERATION} {row['model']}" if row["model"] else _OPERATION
        ends = {"start_ns": row["start_ns"], "end_ns": None if row["open"] else row["end_ns"]}
        yield self._span("request", identity, name, ends, attributes, parent=parent, kind=SERVER)
        for number, stretch in enumerate(row["stretches"]):
            links = stretch["links"] or []
            yield self._span(
                stretch["state"],
                key((self._run, *root), ("request", row["request"], number)),
                stretch["state"],
                stretch,
                {"kvtrace.request": row["request"], "kvtrace.steps": stretch["steps"]},
                parent=identity,
                links=(self._step_key(row["engine_id"], step) for step in links),
                dropped_links=(stretch["steps"] or 0) - len(links),
            )

    def _step(self, row: dict[str, Any]) -> Iterator[Span]:
        identity = self._step_key(row["engine_id"], row["step"])
        yield self._span("step", identity, "step", row, _named(row, "start_ns", "end_ns", "engine_id"))

    def _forward(self, row: dict[str, Any]) -> Iterator[Span]:
        step = self._step_key(row["engine_id"], row["step"])
        identity = key((self._run, "step", row["engine_id"], row["step"]), ("forward", row["process_id"]))
        attributes = _named(row, "start_ns", "end_ns", "engine_id")
        yield self._span("forward", identity, "forward", row, attributes, parent=step)

    def _span(
        self, what: str, identity: Key, name: str, row: dict[str, Any], attributes: dict[str, Any], **more: Any
    ) -> Span:
        """A span; what had not ended when the recording did ends there, and says so."""
        self._spans[what] += 1
        if row["end_ns"] is None:
            attributes = {**attributes, "kvtrace.unfinished": True}
        return span(identity, name, row["start_ns"], row["end_ns"] or self._last_ns, attributes, **more)

    def _job_key(self, session: str) -> Key:
        return key((self._run, "job", session))

    def _step_key(self, engine: int, step: int) -> Key:
        return key((self._run, "step", engine, step))

    def _end_of_recording(self) -> int:
        sql = """
            SELECT greatest(max(end_ns), max(scheduled_ns), (SELECT max(time_ns) FROM request_event),
                (SELECT max(end_ns) FROM forward)) AS ns FROM step
        """
        return int(self._trace.sql(sql, "arrow")["ns"][0].as_py() or 0)

    def _described(self) -> dict[int | None, dict[str, Any]]:
        """The run, and the run with each of its engines, as OpenTelemetry's resources."""
        facts = run_facts(self._trace)
        run = {
            "service.name": "vllm",
            "service.version": facts.get("vllm_version"),
            "service.instance.id": self._run,
            "kvtrace.run.id": self._run,
            "kvtrace.version": facts.get("kvtrace_version"),
            "kvtrace.command": facts.get("command"),
        }
        described: dict[int | None, dict[str, Any]] = {None: {"attributes": attribute_list(run)}}
        sql = "SELECT e.*, p.host, p.pid FROM engine e LEFT JOIN process p ON p.process_id = e.engine_id"
        for row in self._trace.sql(sql, "arrow").to_pylist():
            engine = {
                **run,
                "service.instance.id": f"{self._run}/{row['engine_id']}",
                "host.name": row["host"],
                "process.pid": row["pid"],
                **{f"kvtrace.engine.{name}": value for name, value in row.items() if name not in ("host", "pid")},
            }
            described[row["engine_id"]] = {"attributes": attribute_list(engine)}
        return described


def _request_attributes(row: dict[str, Any]) -> dict[str, Any]:
    local, external = row["local_cached_tokens"], row["external_cached_tokens"]
    reason = row["finish_reason"]
    standard = {
        "gen_ai.operation.name": _OPERATION,
        "gen_ai.provider.name": "vllm",
        GEN_AI["cached_tokens"]: None if local is None else local + (external or 0),
        GEN_AI["finish_reasons"]: [reason] if reason else None,
        **{GEN_AI[name]: row[name] for name in GEN_AI if name in row},
    }
    drawn = ("start_ns", "end_ns", "stretches", "open", "engine_id", *GEN_AI)
    return {**standard, **_named(row, *drawn)}


def _named(row: dict[str, Any], *without: str) -> dict[str, Any]:
    return {f"kvtrace.{name}": value for name, value in row.items() if name not in without}
