"""The importer of request traces with block hashes: Mooncake's (times in ms) and Qwen-Bailian's (times in s, chats).

A hash id stands for a block and all before it, as vLLM's own hashes do, so equal ids are equal prefixes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.format.jsonlines import parse_json
from kvtrace.ingest.append import Appender, nanoseconds, whole
from kvtrace.ingest.importers.engines import add_source, count_source, new_engine, next_key
from kvtrace.ingest.importers.importer import Importer, Target, first_object
from kvtrace.ingest.importers.lines import Line, plain_name, read_lines
from kvtrace.ingest.importers.options import say

EXPECTED = "expected a request trace: a JSON object a line with timestamp, input_length, output_length and hash_ids"
MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
_KNOWN = {
    "timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "turn", "type",
}  # fmt: skip


def load(target: Target, source_id: int, path: Path) -> list[str]:
    """Read a trace into `request` and `request_hash`, as of one engine; returns warnings.

    Raises:
        KvtraceError: The file cannot be read, or a line is no request.
    """
    add_source(target.connection, source_id, "requests", path.name)
    trace = _Trace(target, path, source_id)
    for line in read_lines(path, EXPECTED):
        if not trace.take(line):
            break
        if not line.number % 10_000:
            target.progress("requests", line.number, line.number)
    return trace.finish()


class _Trace:
    """A trace on its way into the tables."""

    def __init__(self, target: Target, path: Path, source_id: int) -> None:
        connection = self._connection = target.connection
        self._path = path
        self._source_id = source_id
        self._options = target.options
        self._engine = new_engine(connection, plain_name(path).rpartition(".")[0] or path.name, source_id)
        self._first = next_key(connection, "request", "request")
        self._chats = False
        self._roots: dict[Any, Any] = {}
        self._unknown: dict[str, int] = {}
        self._orphans = self._uneven = 0
        self._warnings: list[str] = []
        self._requests = Appender(
            connection,
            "request",
            "request engine_id internal_id external_id session turn prompt_tokens output_tokens arrival_ns",
        )
        self._hashes = Appender(connection, "request_hash", "engine_id step request position block_hash")

    def take(self, line: Line) -> bool:
        """Read a line; False if it is the last one and cut off."""
        try:
            fields = parse_json(line.text.encode())
            if not isinstance(fields, dict):
                raise TypeError("no JSON object")
            if not self._requests.count:
                self._begin("chat_id" in fields or "parent_chat_id" in fields)
            self._add(fields)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if not line.whole and line.number > 1 and isinstance(error, json.JSONDecodeError):
                self._warnings.append(f"{self._path.name}: the last line, {line.number}, is cut off and was left out")
                return False
            text = str(error)[:120]
            raise KvtraceError(f"{self._path}, line {line.number}: {text}; {EXPECTED}") from error
        return True

    def _begin(self, chats: bool) -> None:
        self._chats = chats
        kind = "Qwen-Bailian: times in s" if chats else "Mooncake: times in ms"
        self._block_tokens = self._options.block_tokens or (BAILIAN_BLOCK_TOKENS if chats else MOONCAKE_BLOCK_TOKENS)
        name = self._engine.name
        say(self._connection, f"requests {name}: format", kind, "by its fields")
        how = "given" if self._options.block_tokens else "assumed: as its authors have it"
        say(self._connection, f"requests {name}: block_tokens", self._block_tokens, how)
        self._engine.facts = {
            "block_size_tokens": self._block_tokens, "hash_block_tokens": self._block_tokens, "kv_groups": 1,
        }  # fmt: skip
        self._engine.insert(self._connection)

    def _add(self, fields: dict[str, Any]) -> None:
        nth = self._requests.count
        request, engine_id = self._first + nth, self._engine.engine_id
        arrival_ns = nanoseconds(fields["timestamp"], 1e9 if self._chats else 1e6)
        prompt, output = (whole(fields.get(name)) for name in ("input_length", "output_length"))
        ids = fields.get("hash_ids", [])
        if arrival_ns is None or prompt is None or prompt < 0:
            raise ValueError("timestamp or input_length is no number")
        if not isinstance(ids, list):
            raise TypeError("hash_ids is no list")
        hashes = [_hash(value) for value in ids]
        for key in fields.keys() - _KNOWN:
            self._unknown[key] = self._unknown.get(key, 0) + 1
        chat = fields.get("chat_id") if self._chats else None
        session, turn = self._session(chat, fields.get("parent_chat_id")), whole(fields.get("turn"))
        external = None if chat is None else str(chat)
        self._requests.add(request, engine_id, f"line {nth + 1}", external, session, turn, prompt, output, arrival_ns)
        for position, value in enumerate(hashes):
            self._hashes.add(engine_id, None, request, position, value)
        self._uneven += bool(hashes) and len(hashes) != -(-prompt // self._block_tokens)

    def _session(self, chat: object, parent: object) -> str | None:
        """The first chat of the conversation."""
        if chat is None:
            return None
        if not isinstance(chat, (int, str)) or not isinstance(parent, (int, str, type(None))):
            raise TypeError("chat_id or parent_chat_id is neither a number nor text")
        root = chat
        if parent not in (None, -1, "-1", ""):
            root = self._roots.get(parent, parent)
            self._orphans += parent not in self._roots
        self._roots[chat] = root
        return str(root)

    def finish(self) -> list[str]:
        """Fill the tables; returns warnings."""
        if not self._requests.count:
            raise KvtraceError(f"{self._path} is empty; {EXPECTED}")
        for rows, what, target in (
            (self._requests, "requests", "request"),
            (self._hashes, "hashes", "request_hash"),
        ):
            rows.flush()
            if rows.count:
                count_source(self._connection, self._source_id, what, rows.count, rows.count, target)
        for key, count in sorted(self._unknown.items()):
            count_source(self._connection, self._source_id, f"field {key}"[:80], count, None, None)
        name = self._path.name
        if not self._hashes.count:
            self._warnings.append(
                f"{name}: no request has hash_ids: arrivals and lengths are known, but not what prompts have in common "
                "(`kvtrace reuse` and the prefix queries need it)"
            )
        if self._unknown:
            self._warnings.append(f"{name}: fields that mean nothing here: {', '.join(sorted(self._unknown))[:80]}")
        if self._orphans:
            self._warnings.append(
                f"{name}: {self._orphans} requests go on from chats not before them; the parent names the session"
            )
        if self._uneven:
            self._warnings.append(
                f"{name}: {self._uneven} requests have another number of hashes than blocks of {self._block_tokens} "
                "tokens; --block-size says what a hash covers"
            )
        return self._warnings


def _hash(value: object) -> int:
    """A hash id as 64 bits: a number, or hexadecimal text as some traces have it."""
    if isinstance(value, str):
        return int(value, 16) & 0xFFFF_FFFF_FFFF_FFFF
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"hash_ids has {value!r:.40}")
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _recognises(path: Path, head: bytes) -> bool:
    return {"timestamp", "input_length"} <= first_object(head).keys()


IMPORTER = Importer(
    kind="requests",
    option="--requests",
    help="A request trace as Mooncake's or Bailian's (.jsonl)",
    says="arrivals, prompt and output tokens, block hashes, sessions",
    lacks="what an engine did: no lookups, steps or times but the arrival",
    recognises=_recognises,
    load=load,
)
