"""Mooncake's traces (times in ms) and Qwen-Bailian's (times in s, chats).

A hash id stands for a block and all before it, as vLLM's own hashes do, so equal ids are equal prefixes.
"""

from __future__ import annotations

from typing import Any

from kvtrace.ingest.append import nanoseconds, whole
from kvtrace.ingest.importers.request_trace.format import (
    Asked,
    Format,
    count,
    count_or_none,
    hashes,
    json_object,
    time_of,
)

_KNOWN = {
    "timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "turn", "type", "session_id",
}  # fmt: skip


class Mooncake(Format):
    """A request a line: timestamp, input_length, output_length, hash_ids."""

    says = "Mooncake: times in ms"
    block_tokens = 512
    unit_ns = 1e6

    def read(self, text: str) -> Asked | None:
        """The request of a line."""
        fields = json_object(text)
        given = fields["timestamp"]
        asked = Asked(
            time_of(given, nanoseconds(given, self.unit_ns), "timestamp"),
            count(fields, "input_length"),
            count_or_none(fields, "output_length"),
            hashes(fields.get("hash_ids"), "hash_ids"),
            turn=whole(fields.get("turn")),
        )
        asked = self._with_chat(asked, fields)
        self.unknown.update(fields.keys() - _KNOWN)
        return asked

    def _with_chat(self, asked: Asked, fields: dict[str, Any]) -> Asked:
        """With the session that files made for load generators name."""
        session = fields.get("session_id")
        return asked if session is None else asked._replace(session=str(session)[:500])


class Bailian(Mooncake):
    """The same with times in s, and the chat that a request goes on from: a session is its first chat."""

    says = "Qwen-Bailian: times in s"
    block_tokens = 16
    unit_ns = 1e9

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[int | str, int | str] = {}
        self._orphans = 0

    def _with_chat(self, asked: Asked, fields: dict[str, Any]) -> Asked:
        chat, parent = fields.get("chat_id"), fields.get("parent_chat_id")
        if chat is None:
            return asked
        if not isinstance(chat, (int, str)) or not isinstance(parent, (int, str, type(None))):
            raise TypeError("chat_id or parent_chat_id is neither a number nor text")
        root = chat
        if parent is not None and parent not in (-1, "-1", ""):
            root = self._roots.get(parent, parent)
            self._orphans += parent not in self._roots
        self._roots[chat] = root
        return asked._replace(external_id=str(chat), session=str(root))

    def notes(self) -> list[str]:
        """Chats that the trace begins amid."""
        if not self._orphans:
            return []
        return [f"{self._orphans} requests go on from chats not before them; the parent names the session"]
