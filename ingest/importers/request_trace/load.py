"""Reads request traces into `request`, `request_hash` and, where a trace has latencies, `client_request`."""

from __future__ import annotations

import json
from pathlib import Path

from kvtrace.errors import KvtraceError
from kvtrace.ingest.append import Appender
from kvtrace.ingest.guard import LONGEST_NS
from kvtrace.ingest.importers.engines import add_source, count_source, new_engine, next_key
from kvtrace.ingest.importers.importer import Target
from kvtrace.ingest.importers.lines import LeftOut, Line, plain_name, read_lines
from kvtrace.ingest.importers.options import say
from kvtrace.ingest.importers.request_trace.format import Asked, Format, ShortError
from kvtrace.ingest.importers.request_trace.formats import EXPECTED, format_of


def load_requests(target: Target, source_id: int, path: Path) -> list[str]:
    """Read a trace, as of one engine; returns warnings.

    Raises:
        KvtraceError: The file cannot be read, or no line of it is a request.
    """
    add_source(target.connection, source_id, "requests", path.name)
    warnings: list[str] = []
    trace = _Trace(target, path, source_id)
    for line in read_lines(path, EXPECTED, warnings, may_be_written=True):
        trace.take(line)
        if not line.number % 10_000:
            target.progress("requests", line.number, line.number)
    return [*warnings, *trace.finish()]


class _Trace:
    """A trace on its way into the tables."""

    def __init__(self, target: Target, path: Path, source_id: int) -> None:
        connection = self._connection = target.connection
        self._path = path
        self._source_id = source_id
        self._options = target.options
        self._format: Format | None = None
        self._engine = new_engine(connection, plain_name(path).rpartition(".")[0] or path.name, source_id)
        self._first = next_key(connection, "request", "request")
        self._left_out = LeftOut(path, "no requests")
        self._warnings: list[str] = []
        self._requests = Appender(
            connection,
            "request",
            "request engine_id internal_id external_id session turn prompt_tokens output_tokens arrival_ns "
            "first_token_ns finished_ns finish_reason",
        )
        self._hashes = Appender(connection, "request_hash", "engine_id step request position block_hash")
        self._seen = Appender(
            connection,
            "client_request",
            "request request_id phase workload session turn send_ns first_token_ns last_token_ns prompt_tokens "
            "output_tokens cached_tokens token_ns",
        )
        self._uneven = self._unlike = 0

    def take(self, line: Line) -> None:
        """Read a line."""
        if self._format is None:
            self._format = format_of(line.text)
        try:
            if self._format is None:
                json.loads(line.text)
                raise ValueError("of no known format")
            asked = self._format.read(line.text)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            cut = isinstance(error, (json.JSONDecodeError, ShortError))
            if cut and not line.whole and self._requests.count:
                self._warnings.append(f"{self._path.name}: the last line, {line.number}, is cut off and was left out")
            else:
                self._left_out.add(line, error)
            return
        if asked is not None:
            self._add(asked, self._format)

    def _add(self, asked: Asked, format_: Format) -> None:
        nth = self._requests.count
        request, engine_id = self._first + nth, self._engine.engine_id
        first_ns, end_ns = (self._later(asked, time) for time in (asked.first_token_ns, asked.finished_ns))
        self._requests.add(
            request, engine_id, f"line {nth + 1}", asked.external_id, asked.session, asked.turn, asked.prompt_tokens,
            asked.output_tokens, asked.arrival_ns, first_ns, end_ns, asked.finish_reason,
        )  # fmt: skip
        for position, value in enumerate(asked.hashes):
            self._hashes.add(engine_id, None, request, position, value)
        if asked.cached_tokens is not None or first_ns is not None:
            self._seen.add(
                request, asked.external_id or f"line {nth + 1}", 0, self._engine.name, asked.session, asked.turn,
                asked.arrival_ns, first_ns, end_ns, asked.prompt_tokens, asked.output_tokens, asked.cached_tokens,
                asked.token_ns,
            )  # fmt: skip
        size = self._options.block_tokens or format_.block_tokens
        if size and asked.hashes:
            blocks = -(-asked.prompt_tokens // size) if format_.hashes_partial_blocks else asked.prompt_tokens // size
            self._uneven += len(asked.hashes) != blocks

    def _later(self, asked: Asked, time_ns: int | None) -> int | None:
        """A later time of a request; None, and counted, if it is before its arrival or more than 30 days on."""
        if asked.arrival_ns is None or time_ns is None:
            return None
        if 0 <= time_ns - asked.arrival_ns <= LONGEST_NS:
            return time_ns
        self._unlike += 1
        return None

    def finish(self) -> list[str]:
        """Fill the tables; returns warnings.

        Raises:
            KvtraceError: No line was a request.
        """
        if self._format is not None and not self._requests.count and not self._left_out.count:
            raise KvtraceError(f"{self._path} holds no request; was the capture interrupted?")
        if self._format is None or not self._requests.count:
            raise self._left_out.refusal(EXPECTED)
        self._describe(self._format)
        for rows, what, table in (
            (self._requests, "requests", "request"),
            (self._hashes, "hashes", "request_hash"),
            (self._seen, "latencies", "client_request"),
        ):
            rows.flush()
            if rows.count:
                count_source(self._connection, self._source_id, what, rows.count, rows.count, table)
        for what, count in sorted(self._format.others.items()):
            count_source(self._connection, self._source_id, what, count, None, None)
        for name, count in sorted(self._format.unknown.items()):
            count_source(self._connection, self._source_id, f"field {name}"[:80], count, None, None)
        if self._left_out.count:
            count_source(self._connection, self._source_id, "no requests", self._left_out.count, None, None)
        return [*self._warnings, *self._left_out.warnings(), *(f"{self._path.name}: {note}" for note in self._notes())]

    def _describe(self, format_: Format) -> None:
        name, given = self._engine.name, self._options.block_tokens
        say(self._connection, f"requests {name}: format", format_.says, "by its fields")
        size = (given or format_.block_tokens) if self._hashes.count else None
        if size is not None:
            how = (
                "given" if given else "in the file" if format_.block_tokens_told else "assumed: as its authors have it"
            )
            say(self._connection, f"requests {name}: block_tokens", size, how)
        self._engine.facts = {"model": format_.model, "block_size_tokens": size, "hash_block_tokens": size}
        self._engine.insert(self._connection)

    def _notes(self) -> list[str]:
        assert self._format is not None
        found = self._format.notes()
        if not self._hashes.count:
            found.append(
                "no request has hashes of its blocks (hash_ids): arrivals and lengths are known, but not what prompts "
                "have in common (`kvtrace reuse` and the prefix queries need it)"
            )
        if self._format.others:
            listed = ", ".join(f"{count} {what}" for what, count in sorted(self._format.others.items())[:6])
            found.append(f"records that are no requests were left out: {listed}")
        if self._format.unknown:
            found.append(f"fields that mean nothing here: {', '.join(sorted(self._format.unknown))[:80]}")
        if self._uneven:
            size = self._options.block_tokens or self._format.block_tokens
            found.append(
                f"{self._uneven} requests have another number of hashes than blocks of {size} tokens; --block-size "
                "says what a hash covers"
            )
        if self._unlike:
            found.append(f"{self._unlike} times cannot be (before the arrival, or over 30 days after) and became NULL")
        return found
