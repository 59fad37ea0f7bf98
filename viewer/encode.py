"""How a document travels inside the page: JSON, deflated, base64.

Base64 has no character that could end the script element that holds it, whatever names a trace contains.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

Document = dict[str, Any]


def delta(values: Sequence[int]) -> dict[str, list[int]]:
    """A column of non-NULL integers as differences: the first value, then what each adds to the one before."""
    return {"delta": [*values[:1], *(after - before for before, after in pairwise(values))]}


def undelta(column: dict[str, list[int]]) -> list[int]:
    """The values of a `delta` column."""
    total, values = 0, []
    for step in column["delta"]:
        total += step
        values.append(total)
    return values


def shift(values: Iterable[int | None], origin_ns: int) -> list[int | None]:
    """Times relative to the page's origin, in nanoseconds; NULL stays NULL."""
    return [None if value is None else value - origin_ns for value in values]


def encode(document: Document) -> str:
    """A document as the text of the page's data element."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def decode(text: str) -> Document:
    """The document in a page's data element."""
    document: Document = json.loads(zlib.decompress(base64.b64decode(text)))
    return document
