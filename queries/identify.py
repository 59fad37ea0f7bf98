"""The request, step or block that a user means by an id."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from kvtrace.errors import KvtraceError
from kvtrace.queries.text import inert
from kvtrace.queries.trace import Trace

KINDS = ("request", "step", "block")
_MOST = 8
"""Candidates that a message lists."""


@dataclass(frozen=True)
class Subject:
    """A request by its key, a step by its number or a block by its id."""

    kind: str
    number: int


def identify(trace: Trace, text: str) -> Subject:
    """Find what an id means.

    Args:
        trace: An open trace.
        text: `step:N`, `block:N`, `request:ID`, an address of the page (`...#request=ID`), or a request's id: external,
            internal, the trace's number, SESSION/TURN, or the beginning of one of these.

    Raises:
        KvtraceError: nothing or more than one request has that id; the message lists candidates.
    """
    kind, value = _kind_and_value(text.strip())
    if kind == "request":
        return Subject(kind, _request(trace, value))
    if not value.isdigit():
        raise KvtraceError(f"{kind}:{inert(value)}: expected a number, as in {kind}:12", 2)
    return Subject(kind, int(value))


def label(row: dict[str, Any]) -> str:
    """A request's name for people: its session and turn, or else the id that its client knows."""
    if row.get("session") is not None:
        return inert(str(row["session"])) + ("" if row.get("turn") is None else f"/{row['turn']}")
    return inert(str(row.get("external_id") or row.get("internal_id") or row["request"]))


def _kind_and_value(text: str) -> tuple[str, str]:
    address = parse_qs(text.partition("#")[2])
    for kind in KINDS:
        if kind in address:
            return kind, address[kind][-1].removeprefix("#")
        if text.startswith(f"{kind}:"):
            return kind, text[len(kind) + 1 :]
    return "request", text.removeprefix("#")


def _request(trace: Trace, text: str) -> int:
    rows: list[dict[str, Any]] = trace.sql(
        "SELECT request, internal_id, external_id, session, turn, parent "
        "FROM request LEFT JOIN request_sample USING (request) ORDER BY request",
        format="arrow",
    ).to_pylist()
    wanted = text.rstrip("…")
    ways: Sequence[Callable[[dict[str, Any]], bool]] = (
        lambda row: wanted in (row["external_id"], row["internal_id"]),
        lambda row: wanted == str(row["request"]),
        lambda row: wanted == f"{row['session']}/{row['turn']}",
        lambda row: wanted == row["session"],
        lambda row: any(str(row[name] or "").startswith(wanted) for name in ("external_id", "internal_id")),
        lambda row: re.sub(r"^\d+_", "", row["internal_id"] or "").startswith(wanted),
        lambda row: label(row).startswith(wanted),
    )
    for matches in ways if wanted else ():
        found = [row for row in rows if matches(row)]
        if len(found) == 1:
            return int(found[0]["request"])
        parents = {row["parent"] for row in found}
        if len(parents) == 1 and None not in parents:  # all samples of one client's request
            return int(parents.pop())
        if found:
            raise KvtraceError(_ambiguous(wanted, found), 2)
    raise KvtraceError(
        f"no request, session or turn is {inert(text)!r} or begins so; `kvtrace query request-latency {trace.path}` "
        "lists them"
    )


def _ambiguous(text: str, found: Sequence[dict[str, Any]]) -> str:
    named = [(str(row["request"]), label(row), inert(str(row["internal_id"]))) for row in found[:_MOST]]
    width, longest = (max(len(row[place]) for row in named) for place in (0, 1))
    lines = [f"  {number:>{width}}  {name:{longest}}  {internal}" for number, name, internal in named]
    more = [f"  and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return "\n".join([f"{len(found)} requests are meant by {inert(text)!r}; name one by its number:", *lines, *more])
