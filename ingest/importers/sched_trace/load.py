"""The importer of scheduler traces, a JSON object a line: step_snapshot, step_decision and prefix_cache_lookup.

Objects of one step become one row of step_schedule. Fields are taken by many names (`sched_fields`); what is not there
is NULL, what is not known is counted and left out, and a line that is no such object is counted and named.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb

from kvtrace.errors import KvtraceError
from kvtrace.format.jsonlines import parse_json
from kvtrace.ingest.append import Appender, real, whole
from kvtrace.ingest.importers.engines import add_source, count_source, new_engine, next_key
from kvtrace.ingest.importers.importer import Target
from kvtrace.ingest.importers.lines import plain_name, read_lines
from kvtrace.ingest.importers.options import say
from kvtrace.ingest.importers.sched_trace import fields as names
from kvtrace.ingest.importers.sched_trace.steps import infer_lookups, insert_steps

EXPECTED = f"expected a scheduler trace: a JSON object a line, its kind one of {', '.join(names.KINDS)}"
LARGEST_LIST = 8
_COUNTS = tuple(names.COUNTS)


def load_sched_trace(target: Target, source_id: int, path: Path) -> list[str]:
    """Read a trace, as of one engine; returns warnings.

    Raises:
        KvtraceError: The file cannot be read, or no line of it is an object of such a trace.
    """
    add_source(target.connection, source_id, "sched_trace", path.name)
    trace = _Trace(target.connection, path, source_id)
    for line in read_lines(path, EXPECTED):
        try:
            found = parse_json(line.text.encode())
        except (ValueError, RecursionError):
            found = None
        trace.take(line.number, found)
        if not line.number % 10_000:
            target.progress("scheduler trace", line.number, line.number)
    return trace.finish()


class _Trace:
    """A trace on its way into the tables."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path, source_id: int) -> None:
        self._connection = connection
        self._path = path
        self._source_id = source_id
        self._engine = new_engine(connection, plain_name(path).rpartition(".")[0] or path.name, source_id)
        self._first = next_key(connection, "request", "request")
        self._requests: dict[str, int] = {}
        self._tags: dict[int, tuple[str | None, int | None, int | None]] = {}
        self._kinds: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        self._malformed: list[int] = []
        self._malformed_count = 0
        self._step = 0
        self._admitted_told = False
        counts = ", ".join(f"{column} INTEGER" for column in _COUNTS)
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE sched_row (line BIGINT, step INTEGER, time_ns BIGINT, start_ns BIGINT, "
            f"end_ns BIGINT, duration_ns BIGINT, usage DOUBLE, admission_limit VARCHAR, limit_request INTEGER, "
            f"{counts})"
        )
        self._rows = Appender(
            connection,
            "sched_row",
            f"line step time_ns start_ns end_ns duration_ns usage admission_limit limit_request {' '.join(_COUNTS)}",
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

    def take(self, number: int, found: object) -> None:
        """Take the object of a line."""
        kind, given = names.kind_of(found) if isinstance(found, dict) else (None, {})
        if not isinstance(found, dict):
            self._malformed_count += 1
            self._malformed += [number] if len(self._malformed) < LARGEST_LIST else []
            return
        if kind is None:
            word = next((str(found[name]) for name in names.KIND_NAMES if name in found), "no kind")
            self._kinds[word[:40] if len(self._kinds) < 100 else "other kinds"] += 1
            return
        self._kinds[kind] += 1
        fields = names.Fields(given)
        step = whole(fields.take(names.STEP))
        if step is None and kind == "step_snapshot":
            step = self._step + 1
        self._step = self._step if step is None else step
        if kind == "prefix_cache_lookup":
            self._lookup(fields, step)
        else:
            self._state(number, fields, self._step)
        for name in fields.unknown():
            self._unknown[name[:60] if len(self._unknown) < 1000 else "others"] += 1

    def _state(self, number: int, fields: names.Fields, step: int) -> None:
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
        limit, head = fields.take(names.TEXTS["limit"]), fields.take(names.TEXTS["limit_request"])
        self._rows.add(
            number, step, time_ns, start_ns, end_ns, duration_ns, real(fields.take(names.USAGE)),
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
            turn = found["turn"]
            self._tags.setdefault(request, (None if session is None else str(session), turn, found["queried_tokens"]))
        self._lookups.add(
            self._engine.engine_id, fields.time_ns(names.TIME), step, request, found["queried_tokens"],
            found["local_hit_tokens"], found["external_hit_tokens"], found["first_missing_block"], known["admitted"],
            found["repeat"], known["resumed"], known["enabled"],
        )  # fmt: skip

    def finish(self) -> list[str]:
        """Fill the tables; returns warnings."""
        if not any(self._kinds[kind] for kind in names.KINDS):
            raise KvtraceError(
                f"{self._path} has {sum(self._kinds.values())} objects, and none of them is of a known kind; {EXPECTED}"
                + (f"; line {self._malformed[0]} is no JSON object" if self._malformed else "")
            )
        for rows in (self._rows, self._shares, self._events, self._lookups):
            rows.flush()
        [(blocks, budget)] = self._connection.execute(
            "SELECT max(total_blocks), max(budget_tokens) FROM sched_row"
        ).fetchall()
        self._engine.facts = {"blocks": blocks, "max_num_batched_tokens": budget}
        self._engine.insert(self._connection)
        insert_steps(self._connection, self._engine.engine_id, _COUNTS)
        if self._lookups.count:
            how = infer_lookups(self._connection, self._engine.engine_id, admitted_told=self._admitted_told)
            say(self._connection, f"sched_trace {self._engine.name}: prefix_lookup", "flags not in the trace", how)
        self._insert_requests()
        for kind, count in sorted(self._kinds.items()):
            known = kind in names.KINDS
            target = "prefix_lookup" if kind == names.KINDS[2] else "step_schedule"
            count_source(
                self._connection, self._source_id, kind, count, count if known else None, target if known else None
            )
        for name, count in sorted(self._unknown.items()):
            count_source(self._connection, self._source_id, f"field {name}", count, None, None)
        return self._warnings()

    def _insert_requests(self) -> None:
        rows = Appender(self._connection, "request", "request engine_id internal_id session turn prompt_tokens")
        for name, request in self._requests.items():
            rows.add(request, self._engine.engine_id, name, *self._tags.get(request, (None, None, None)))
        rows.flush()
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
        found, name = [], self._path.name
        if self._malformed_count:
            which = ", ".join(map(str, self._malformed)) + (
                ", ..." if self._malformed_count > len(self._malformed) else ""
            )
            found.append(f"{name}: {self._malformed_count} lines are no JSON object and were left out: line {which}")
        if others := sum(count for kind, count in self._kinds.items() if kind not in names.KINDS):
            found.append(f"{name}: {others} objects of other kinds were left out; table source_table counts them")
        if self._unknown:
            most = ", ".join(field for field, _ in self._unknown.most_common(6))
            found.append(
                f"{name}: {len(self._unknown)} fields mean nothing here ({most}); table source_table counts them"
            )
        if self._wrong:
            which = ", ".join(f"{field} {count} times" for field, count in self._wrong.most_common(6))
            found.append(f"{name}: values that are no count became NULL: {which}")
        return found
