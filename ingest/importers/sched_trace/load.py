"""The importer of scheduler traces, a JSON object a line: step_snapshot, step_decision and prefix_cache_lookup.

Objects of one step become one row of step_schedule. Fields are taken by many names (`sched_fields`); what is not there
is NULL, what is not known is counted and left out, and a line that is no such object is counted and named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.format.jsonlines import parse_json
from kvtrace.ingest.append import Appender, real, whole
from kvtrace.ingest.importers.engines import add_source, count_source, new_engine, next_key
from kvtrace.ingest.importers.importer import Target
from kvtrace.ingest.importers.lines import LeftOut, Line, plain_name, read_lines
from kvtrace.ingest.importers.options import say
from kvtrace.ingest.importers.sched_trace import fields as names
from kvtrace.ingest.importers.sched_trace.steps import (
    SAID,
    fill_events,
    infer_limits,
    infer_lookups,
    infer_phases,
    insert_steps,
)

EXPECTED = f"expected a scheduler trace: a JSON object a line, its kind one of {', '.join(names.KINDS)}"
_PART = re.compile(r"(^|[._-])(steps|requests)$")
_TURN = re.compile(r"_t(\d{1,9})$")
_STATE = (*names.STATE, *names.STATE_FLAGS)
_COUNTS = tuple(names.COUNTS)


def load_sched_traces(target: Target, files: Sequence[tuple[int, Path]]) -> list[str]:
    """Read traces, each with its source id, as of an engine a run: `X.steps.jsonl` and `X.requests.jsonl` are one.

    Raises:
        KvtraceError: A file cannot be read, or no line of it is an object of such a trace.
    """
    runs: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for source_id, path in files:
        runs.setdefault((path.parent, _run_name(path)), []).append((source_id, path))
    return [warning for (_, name), members in runs.items() for warning in _load_run(target, name, members)]


def _run_name(path: Path) -> str:
    """A file's name without what it is of and how it is packed; empty if that is all."""
    return _PART.sub("", plain_name(path).rpartition(".")[0] or path.name)


def _load_run(target: Target, name: str, files: list[tuple[int, Path]]) -> list[str]:
    trace = _Trace(target.connection, name or "scheduler", files[0][0])
    warnings: list[str] = []
    for source_id, path in files:
        add_source(target.connection, source_id, "sched_trace", path.name)
        trace.begin_file(source_id, path)
        for line in read_lines(path, EXPECTED, warnings):
            trace.take(line)
            if not line.number % 10_000:
                target.progress("scheduler trace", line.number, line.number)
        warnings += trace.end_file()
    return [*warnings, *trace.finish()]


class _Trace:
    """A trace on its way into the tables."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, source_id: int) -> None:
        self._connection = connection
        self._engine = new_engine(connection, name, source_id)
        self._first = next_key(connection, "request", "request")
        self._requests: dict[str, int] = {}
        self._tags: dict[int, tuple[str | None, int | None, int | None]] = {}
        self._said: dict[str, str] = {}
        self._arrivals: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._seen: Counter[str] = Counter()
        self._step = 0
        self._admitted_told = False
        counts = ", ".join(f"{column} INTEGER" for column in _COUNTS)
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE sched_row (line BIGINT, snapshot BOOLEAN, step INTEGER, time_ns BIGINT, "
            "start_ns BIGINT, "
            f"end_ns BIGINT, duration_ns BIGINT, usage DOUBLE, admission_limit VARCHAR, limit_request INTEGER, "
            f"{counts})"
        )
        self._rows = Appender(
            connection,
            "sched_row",
            "line snapshot step time_ns start_ns end_ns duration_ns usage admission_limit limit_request "
            + " ".join(_COUNTS),
        )
        self._shares = Appender(
            connection, "step_request", "engine_id step request phase scheduled_tokens computed_tokens new_blocks"
        )
        self._events = Appender(connection, "request_event", "engine_id time_ns step request op")
        self._lookups = Appender(
            connection,
            "prefix_lookup",
            "engine_id time_ns step request queried_tokens local_hit_tokens external_hit_tokens first_missing_block "
            "admitted repeat resumed enabled",
        )

        self._beside = Appender(
            connection,
            "scheduler_lookup",
            "engine_id step time_ns request connector total_hit_tokens prompt_tokens load_kv_async",
        )
        self._snapshots = Appender(
            connection,
            "scheduler_snapshot",
            "engine_id step time_ns running waiting free_blocks total_blocks pinned_sessions admission_reason "
            + " ".join(names.SNAPSHOT),
        )
        self._states = Appender(
            connection, "request_snapshot", f"engine_id step time_ns request queue status {' '.join(_STATE)}"
        )

    def begin_file(self, source_id: int, path: Path) -> None:
        """Count anew."""
        self._path = path
        self._source_id = source_id
        self._kinds: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        self._left_out = LeftOut(path, "no JSON object")

    def take(self, line: Line) -> None:
        """Take the object of a line."""
        try:
            found = parse_json(line.text.encode())
            if not isinstance(found, dict):
                raise TypeError(f"{line.text[:20]!r} is no object")
        except (ValueError, TypeError, RecursionError) as error:
            self._left_out.add(line, error)
            return
        kind, given = names.kind_of(found)
        if kind is None:
            word = next((str(found[name]) for name in names.KIND_NAMES if name in found), "no kind")
            self._kinds[word[:40] if len(self._kinds) < 100 else "other kinds"] += 1
            return
        self._kinds[kind] += 1
        fields = names.Fields({key: value for key, value in given.items() if not _is_private(key)})
        for name in names.SAID_ONCE:
            if isinstance(said := fields.take(name), str):
                self._said.setdefault(name, said[:200])
        fields.leave(*names.REPEATED)
        step = whole(fields.take(names.STEP))
        if step is None and kind == "step_snapshot":
            step = self._step + 1
        self._step = self._step if step is None else step
        if kind == "prefix_cache_lookup":
            self._lookup(fields, step)
        elif kind == names.REQUEST_STATE:
            self._queued(fields, step)
        else:
            self._state(line.number, fields, self._step, snapshot=kind == "step_snapshot")
        self._wrong.update(fields.no_times)
        for name in fields.unknown():
            self._unknown[name[:60] if len(self._unknown) < 1000 else "others"] += 1

    def _queued(self, fields: names.Fields, step: int | None) -> None:
        """Take a request in a queue."""
        request = self._request(fields.take(names.REQUEST))
        if request is None:
            return
        time_ns, arrival_ns = fields.time_ns(names.TIME), fields.time_ns("arrival_time")
        counts = {name: self._count(name, fields.take(wanted)) for name, wanted in names.STATE.items()}
        flags = [value if isinstance(value := fields.take(name), bool) else None for name in names.STATE_FLAGS]
        queue, status, session = fields.take("queue"), fields.take("status"), fields.take(names.SESSION)
        if arrival_ns is not None:
            self._arrivals.setdefault(request, arrival_ns)
        self._tag(request, session, None, counts["prompt_tokens"])
        self._states.add(
            self._engine.engine_id, step, time_ns, request, queue, None if status is None else str(status)[:60],
            *counts.values(), *flags,
        )  # fmt: skip

    def _tag(self, request: int, session: object, turn: int | None, prompt: int | None) -> None:
        """Keep what is first said of a request."""
        before = self._tags.get(request, (None, None, None))
        new = (None if session is None else str(session), turn, prompt)
        self._tags[request] = tuple(b if b is not None else n for b, n in zip(before, new, strict=True))  # type: ignore[assignment]

    def _snapshot(self, fields: names.Fields, step: int, time_ns: int | None, row: dict[str, int | None]) -> None:
        """Take what a step's beginning says beside the columns of step_schedule."""
        counts = [self._count(name, fields.take(wanted)) for name, wanted in names.SNAPSHOT.items()]
        pinned = fields.take(names.PINNED)
        sessions = ", ".join(map(str, pinned)) if isinstance(pinned, list) else None
        for ids, jobs in names.QUEUES.values():
            named, sessions_of = fields.take(ids), fields.take(jobs)
            if isinstance(named, list) and isinstance(sessions_of, list) and len(named) == len(sessions_of):
                for name, session in zip(named, sessions_of, strict=True):
                    if (request := self._request(name)) is not None:
                        self._tag(request, session, None, None)
        kept = (row["running"], row["waiting"], row["free_blocks"], row["total_blocks"])
        self._snapshots.add(self._engine.engine_id, step, time_ns, *kept, sessions, None, *counts)

    def _state(self, number: int, fields: names.Fields, step: int, *, snapshot: bool) -> None:
        time_ns, start_ns = fields.time_ns(names.TIME), fields.time_ns(names.START)
        end_ns, duration_ns = fields.time_ns(names.END), fields.time_ns(names.DURATION)
        for op, wanted in names.LISTS.items():
            listed = fields.take(wanted)
            for request in self._listed(listed):
                self._events.add(self._engine.engine_id, time_ns if start_ns is None else start_ns, step, request, op)
        shares = fields.take(names.SHARES)
        if isinstance(shares, (dict, list)):
            self._add_shares(shares, step)
        counts = [self._count(name, fields.take(wanted)) for name, wanted in names.COUNTS.items()]
        if snapshot:
            self._snapshot(fields, step, time_ns, dict(zip(_COUNTS, counts, strict=True)))
        limit, head = fields.take(names.TEXTS["limit"]), fields.take(names.TEXTS["limit_request"])
        if limit is not None:
            self._reasons.setdefault(step, str(limit)[:200])
        self._rows.add(
            number, snapshot, step, time_ns, start_ns, end_ns, duration_ns, real(fields.take(names.USAGE)),
            None if limit is None else names.limit_of(limit), self._request(head), *counts,
        )  # fmt: skip

    def _count(self, name: str, value: object) -> int | None:
        """A count; of a list, its length; of a map of tokens by request, their sum."""
        if isinstance(value, dict):
            return whole(sum(found for each in value.values() if (found := whole(each)) is not None))
        if isinstance(value, list):
            return None if name == "total_tokens" else len(value)
        found = whole(value)
        if value is not None and found is None:
            self._wrong[name] += 1
        return found

    def _add_shares(self, shares: dict[str, Any] | list[Any], step: int) -> None:
        rows = [{"request_id": k, "tokens": v} for k, v in shares.items()] if isinstance(shares, dict) else shares
        for row in rows:
            if not isinstance(row, dict):
                continue
            share = names.Fields(row)
            values = {key: share.take(wanted) for key, wanted in names.SHARE.items()}
            request = self._request(values["request"])
            if request is not None:
                self._shares.add(
                    self._engine.engine_id, step, request, names.phase_of(values["phase"]), whole(values["tokens"]),
                    whole(values["computed"]), self._count("new_blocks", values["blocks"]),
                )  # fmt: skip

    def _listed(self, listed: object) -> list[int]:
        if not isinstance(listed, list):
            return []
        ids = [names.Fields(each).take(names.REQUEST + " id") if isinstance(each, dict) else each for each in listed]
        return [request for each in ids if (request := self._request(each)) is not None]

    def _request(self, name: object) -> int | None:
        if name is None or not isinstance(name, (str, int)):
            return None
        return self._requests.setdefault(str(name), self._first + len(self._requests))

    def _lookup(self, fields: names.Fields, step: int | None) -> None:
        request = self._request(fields.take(names.REQUEST))
        found = {name: self._count(name, fields.take(wanted)) for name, wanted in names.LOOKUP.items()}
        flags = {name: fields.take(wanted) for name, wanted in names.FLAGS.items()}
        known = {name: value if isinstance(value, bool) else None for name, value in flags.items()}
        self._admitted_told |= known["admitted"] is not None
        session = fields.take(names.SESSION)
        if request is not None:
            prompt = found["queried_tokens"] if found["prompt_tokens"] is None else found["prompt_tokens"]
            self._tag(request, session, found["turn"], prompt)
        time_ns, asynchronous = fields.time_ns(names.TIME), fields.take(names.LOADS_ASYNC)
        total = self._count("total_hit_tokens", fields.take(names.TOTAL_HITS))
        if isinstance(asynchronous, bool) or total is not None:
            connector = fields.take("connector")
            self._beside.add(
                self._engine.engine_id, step, time_ns, request, None if connector is None else str(connector)[:200],
                total, found["prompt_tokens"], asynchronous if isinstance(asynchronous, bool) else None,
            )  # fmt: skip
        self._lookups.add(
            self._engine.engine_id, time_ns, step, request, found["queried_tokens"],
            found["local_hit_tokens"], found["external_hit_tokens"], found["first_missing_block"], known["admitted"],
            found["repeat"], known["resumed"], known["enabled"],
        )  # fmt: skip

    def end_file(self) -> list[str]:
        """Count what was in the file; returns warnings.

        Raises:
            KvtraceError: Nothing of it was known.
        """
        known = (*names.KINDS, names.REQUEST_STATE)
        if not any(self._kinds[kind] for kind in known):
            raise KvtraceError(
                f"{self._path} has {sum(self._kinds.values())} objects, and none of them is of a known kind; {EXPECTED}"
                + "".join(f"; {warning}" for warning in self._left_out.warnings())
            )
        targets = dict(zip(known, ("step_schedule", "step_schedule", "prefix_lookup", "request_snapshot"), strict=True))
        for kind, count in sorted(self._kinds.items()):
            target = targets.get(kind)
            count_source(self._connection, self._source_id, kind, count, count if target else None, target)
        for name, count in sorted(self._unknown.items()):
            count_source(self._connection, self._source_id, f"field {name}", count, None, None)
        self._seen += self._kinds
        return self._warnings()

    def finish(self) -> list[str]:
        """Fill the tables; returns warnings."""
        for rows in (
            self._rows, self._shares, self._events, self._lookups, self._beside, self._snapshots, self._states,
        ):  # fmt: skip
            rows.flush()
        [(blocks, budget, most_running)] = self._connection.execute(
            "SELECT max(total_blocks), max(budget_tokens), max(max_running) FROM sched_row"
        ).fetchall()
        engine_id, name = self._engine.engine_id, self._engine.name
        self._engine.facts = {
            "blocks": blocks, "max_num_batched_tokens": budget, "max_num_seqs": most_running,
            "policy": self._said.get("policy"), "connector": self._said.get("connector"),
        }  # fmt: skip
        [(self._engine.host_blocks,)] = self._connection.execute(
            "SELECT max(host_total_blocks) FROM scheduler_snapshot WHERE engine_id = ?", [engine_id]
        ).fetchall()
        self._engine.insert(self._connection)
        decided, warnings = insert_steps(self._connection, engine_id, _COUNTS)
        for step, reason in self._reasons.items():
            self._connection.execute(
                "UPDATE scheduler_snapshot SET admission_reason = ? WHERE engine_id = ? AND step = ?",
                [reason, engine_id, step],
            )
        self._insert_requests()
        if self._lookups.count:
            how = infer_lookups(self._connection, engine_id, admitted_told=self._admitted_told, events_told=decided)
            say(self._connection, f"sched_trace {name}: prefix_lookup", "flags not in the trace", how)
        if decided:
            infer_phases(self._connection, engine_id)
            fill_events(self._connection, engine_id)
            infer_limits(self._connection, engine_id)
            for what, how in SAID.items():
                say(self._connection, f"sched_trace {name}: {what}", "not in the trace as such", how)
        self._insert_cached()
        return [f"{name}: {warning}" for warning in warnings]

    def _insert_requests(self) -> None:
        rows = Appender(
            self._connection, "request", "request engine_id internal_id session turn prompt_tokens arrival_ns"
        )
        for name, request in self._requests.items():
            session, turn, prompt = self._tags.get(request, (None, None, None))
            if turn is None and (match := _TURN.search(name)) is not None:
                turn = int(match[1])
            arrival_ns = self._arrivals.get(request)
            rows.add(request, self._engine.engine_id, name, session, turn, prompt, arrival_ns)
        rows.flush()

    def _insert_cached(self) -> None:
        self._connection.execute(
            f"""
            UPDATE request SET local_cached_tokens = l.local_hit_tokens, external_cached_tokens = l.external_hit_tokens
            FROM (SELECT request, arg_min(local_hit_tokens, rowid) AS local_hit_tokens,
                arg_min(external_hit_tokens, rowid) AS external_hit_tokens
                FROM prefix_lookup WHERE admitted AND engine_id = {self._engine.engine_id} GROUP BY request) AS l
            WHERE request.request = l.request
            """
        )

    def _warnings(self) -> list[str]:
        found, name = self._left_out.warnings(), self._path.name
        if others := sum(
            count for kind, count in self._kinds.items() if kind not in (*names.KINDS, names.REQUEST_STATE)
        ):
            found.append(f"{name}: {others} objects of other kinds were left out; table source_table counts them")
        if self._unknown:
            most = ", ".join(field for field, _ in self._unknown.most_common(6))
            found.append(
                f"{name}: {len(self._unknown)} fields mean nothing here ({most}); table source_table counts them"
            )
        if self._wrong:
            which = ", ".join(f"{field} {count} times" for field, count in self._wrong.most_common(6))
            found.append(f"{name}: values that are no count or time became NULL: {which}")
        return found


def _is_private(key: str) -> bool:
    """Say whether a field holds token ids or text."""
    return key in names.PRIVATE or key.endswith("_text")
