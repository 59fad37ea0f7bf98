"""Common parts of the formats of request traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvtrace.format.jsonlines import parse_json
from kvtrace.ingest.append import whole


class Asked(NamedTuple):
    """A request as a trace tells of it; times in ns, None where it does not say."""

    arrival_ns: int | None
    prompt_tokens: int
    output_tokens: int | None
    hashes: Sequence[int] = ()
    external_id: str | None = None
    session: str | None = None
    turn: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    finish_reason: str | None = None
    cached_tokens: int | None = None
    token_ns: list[int] | None = None


class ShortError(ValueError):
    """A line that has less than the others: cut off, if it is the last."""


class Format:
    """Reads the lines of one file.

    Attributes:
        says: The format's name and its unit of time, for table `run`.
        block_tokens: Tokens that a hash covers; None where hashes are missing, or not yet said.
        block_tokens_told: The file says `block_tokens` itself.
        hashes_partial_blocks: The last block of a prompt has a hash, too, if it is not full.
        others: What is left out, by what it is: it is no request, or a field that means nothing here.
        model: The model, if the file names one.
    """

    says: str
    block_tokens: int | None = None
    block_tokens_told = False
    hashes_partial_blocks = True

    def __init__(self) -> None:
        self.others: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.model: str | None = None

    def read(self, text: str) -> Asked | None:
        """The request of a line; None if it has another purpose.

        Raises:
            ValueError, TypeError, KeyError, RecursionError: It is no such line.
        """
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Warnings about the whole file, without its name."""
        return []


def json_object(text: str) -> dict[str, Any]:
    """The object that a line is."""
    found = parse_json(text.encode())
    if not isinstance(found, dict):
        raise TypeError("no JSON object")
    return found


def count(fields: Mapping[str, Any], name: str) -> int:
    """A field that has to be a count."""
    found = whole(fields[name])
    if found is None or found < 0:
        raise ValueError(f"{name} is {fields[name]!r:.40}, no count")
    return found


def count_or_none(fields: Mapping[str, Any], name: str) -> int | None:
    """A field that is a count, if it is there."""
    return None if fields.get(name) is None else count(fields, name)


def time_of(value: object, time_ns: int | None, name: str) -> int:
    """A time that was read from a value, if it can be one of an arrival."""
    if time_ns is None:
        raise ValueError(f"{name} is {value!r:.40}, no time")
    if time_ns < 0:
        raise ValueError(f"{name} is {value!r:.40}, before the trace's zero")
    return time_ns


def hashes(value: object, name: str) -> list[int]:
    """Hashes of blocks as 64 bits: numbers, or hexadecimal text as some traces have it."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{name} is no list")
    return [_hash(each, name) for each in value]


def _hash(value: object, name: str) -> int:
    if isinstance(value, str):
        return int(value, 16) & 0xFFFF_FFFF_FFFF_FFFF
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} has {value!r:.40}")
    return value & 0xFFFF_FFFF_FFFF_FFFF
