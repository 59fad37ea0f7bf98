"""Converts text to token ids: with a tokenizer if there is one, else by pieces of four characters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.format.jsonlines import read_json_lines
from kvtrace.lab.workloads.model import LOWEST_TOKEN, VOCABULARY

PIECE_CHARACTERS = 4

Tokenize = Callable[[str], list[int]]


def tokenizer(path: str | None) -> tuple[Tokenize, str]:
    """A function from text to token ids, and a note on how it counts.

    Args:
        path: A `tokenizer.json`, or a folder that has one; None to do without. Then every four characters are a token
            whose id follows from them, so that texts that begin alike have tokens that begin alike.

    Raises:
        KvtraceError: The tokenizer cannot be read.
    """
    if path is None:
        return _pieces, f"token counts are estimated at {PIECE_CHARACTERS} characters a token: no tokenizer was given"
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise KvtraceError(f"{file}: reading it needs the package tokenizers, which comes with vLLM") from None
    if not file.is_file():
        raise KvtraceError(f"{file} does not exist; name a tokenizer.json or a folder that has one")
    try:
        loaded = Tokenizer.from_file(str(file))
    except Exception as error:  # what the package raises has no class of its own
        raise KvtraceError(f"{file} is no tokenizer: {error}") from error
    return lambda text: list(loaded.encode(text, add_special_tokens=False).ids), f"tokens of {file.name}"


def _pieces(text: str) -> list[int]:
    found = []
    for start in range(0, len(text), PIECE_CHARACTERS):
        piece = text[start : start + PIECE_CHARACTERS].encode("utf-8", "replace")
        number = int.from_bytes(hashlib.blake2b(piece, digest_size=8).digest(), "big")
        found.append(LOWEST_TOKEN + number % (VOCABULARY - LOWEST_TOKEN))
    return found


def read_objects(path: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list, or of a file with one a line.

    Raises:
        KvtraceError: The file cannot be read, or holds something else.
    """
    file = Path(path)
    if not file.is_file():
        raise KvtraceError(f"{file} does not exist")
    with file.open("rb") as opened:
        is_list = opened.read(64).lstrip().startswith(b"[")
    try:
        values = json.loads(file.read_bytes()) if is_list else read_json_lines(file, [])
    except (ValueError, RecursionError) as error:
        raise KvtraceError(f"{file} is no JSON: {error}") from error
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise KvtraceError(f"{file}: entry {number} is {str(value)[:40]!r}; expected an object")
        yield value
