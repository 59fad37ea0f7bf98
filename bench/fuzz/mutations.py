"""Changes inputs where it hurts: values of JSON, fields of records, pages and columns of SQLite, tokens of text."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import sqlite3
import struct
from collections.abc import Callable
from typing import Any

from kvtrace.format import layout

INTEGERS = [0, 1, -1, 127, 255, 256, 32_767, 65_535, 65_536, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 32]
INTEGERS += [(1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, (1 << 64) - 1, 1 << 64]
INTEGERS += [10**30, 10**400, 4096, 1_000_000, 10_000_000, 1_790_000_000 * 10**9]
REALS = [0.5, -0.0, 1e-320, 1e308, -1e308, 1e18, 9.3e18, float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    " ",
    "\0",
    "x",
    "1",
    "-1",
    "1e999",
    "--1",
    "0x10",
    "²",
    "\u0661",
    "1_0",
    "NaN",
    "true",
    "null",
    "\ud800",
    "\x1b[31m",
]
TEXTS += ["\u202egnp", "line\nbreak", "'; DROP TABLE run; --", '"', "\\", "../../x", "é" * 300, "a" * 5000, "%s{0}"]
TEXTS += ["<script>", "=1+1", "\U0001f9e8", "ﬀ", "0" * 5000, "9" * 400, "kvtrace", "HtoD", "\u2028", "+", "-", "."]
NOTHING: list[Any] = [None, True, False, [], {}, [[]], [None], {"": None}, [1, "a", None], [[1, 2], [3]]]
RAW = [b"[" * 5000, b'{"a":' * 5000, b"\xff", b"\xef\xbb\xbf", b"\0", b"-", b"1e", b"NaN", b"Infinity", b"\r", b"\n\n"]
RAW += [
    b'"\\ud800"',
    b'"\\uDC00\\ud800"',
    b"9" * 5000,
    b"1" + b"0" * 400,
    b",",
    b"]",
    b"}",
    b'"',
    b"\\",
    b"\xed\xa0\x80",
]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")

Change = Callable[[bytes, random.Random], bytes]


def mutate(path: str, data: bytes, rng: random.Random, largest: int) -> bytes:
    """One change or a few, of the kind that the file's name asks for; at most `largest` bytes come of each."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        changes = _changes(path)
        data = rng.choice(changes)(data, rng)[:largest]
    return data


def _changes(path: str) -> list[Change]:
    name = path.rpartition("/")[2]
    if name.endswith(".gz"):
        return [_bytes, _packed(gzip)]
    if name.endswith(".xz"):
        return [_bytes, _packed(lzma)]
    if name.endswith(".seg"):
        return [_bytes, _fields, _fields, _segment_header]
    if name.endswith((".kvt", ".bin")):
        return [_bytes, _fields, _fields]
    if name.endswith(".sqlite"):
        return [_fields, _sqlite, _sqlite, _sqlite]
    if name.endswith(".json"):
        return [_bytes, _numbers, _json, _json, _json]
    if name.endswith(".jsonl"):
        return [_bytes, _lines, _numbers, _json_line, _json_line, _json_line]
    return [_bytes, _lines, _numbers, _numbers]


def value(rng: random.Random) -> Any:
    """A value that nobody expects."""
    return rng.choice(rng.choice((INTEGERS, REALS, TEXTS, NOTHING)))


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + 1 :]
        case 2:
            return data[:at] + rng.choice(RAW) + data[at:]
        case 3:
            return data[:at] + data[at + rng.randint(1, 64) :]
        case 4:
            other = rng.randint(0, len(data))
            return data[:at] + data[other : other + rng.randint(1, 256)] + data[at:]
        case _:
            flipped = bytearray(data)
            if flipped:
                flipped[at % len(flipped)] ^= 1 << rng.randrange(8)
            return bytes(flipped)


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    match rng.randrange(4):
        case 0:
            rng.shuffle(lines)
        case 1:
            lines.insert(rng.randint(0, len(lines)), rng.choice(lines))
        case 2:
            del lines[rng.randrange(len(lines))]
        case _:
            lines = lines * rng.choice((2, 50))
    return b"".join(lines)


def _numbers(data: bytes, rng: random.Random) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return _bytes(data, rng)
    one, new = rng.choice(found), rng.choice((*INTEGERS, *REALS, *TEXTS))
    return data[: one.start()] + str(new).encode("utf-8", "replace") + data[one.end() :]


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, rng)
    return json.dumps(_changed(whole, rng), ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")


def _json_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines() or [b"{}"]
    at = rng.randrange(len(lines))
    lines[at] = _json(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def _changed(whole: Any, rng: random.Random) -> Any:
    """The value with one place in it changed."""
    if not isinstance(whole, (dict, list)) or not whole or rng.random() < 0.1:
        return value(rng)
    keys: list[Any] = list(whole) if isinstance(whole, dict) else list(range(len(whole)))
    key = rng.choice(keys)
    match rng.randrange(8):
        case 0:
            del whole[key]
        case 1:
            whole[key] = value(rng)
        case 2:
            whole[key] = [whole[key]] if rng.random() < 0.5 else {"name": whole[key]}
        case 3:
            whole[key] = whole[rng.choice(keys)]
        case 4 if isinstance(whole, dict):
            whole[rng.choice(TEXTS)] = whole.pop(key)
        case 4:
            whole.append(whole[key])
        case _:
            whole[key] = _changed(whole[key], rng)
    return whole


def _fields(data: bytes, rng: random.Random) -> bytes:
    """A number of 1 to 8 bytes in place of what is there; more often where the file has something."""
    size = rng.choice((1, 2, 4, 8))
    if len(data) < 16:
        return _bytes(data, rng)
    at = rng.randrange(len(data) - size)
    for _ in range(4):
        if data[at]:
            break
        at = rng.randrange(len(data) - size)
    order = rng.choice("<<>")
    new = struct.pack(f"{order}{dict(zip((1, 2, 4, 8), 'BHIQ', strict=True))[size]}", _unsigned(rng, size))
    return data[:at] + new + data[at + size :]


def _unsigned(rng: random.Random, size: int) -> int:
    return int(rng.choice(INTEGERS) if rng.random() < 0.7 else rng.getrandbits(64)) & ((1 << 8 * size) - 1)


def _segment_header(data: bytes, rng: random.Random) -> bytes:
    """The header's JSON changed and its length put right."""
    if len(data) < layout.SEGMENT_HEADER_BYTES:
        return _bytes(data, rng)
    magic, version, record, length = layout.SEGMENT_HEADER.unpack_from(data)
    start = layout.SEGMENT_HEADER.size
    header = _json(data[start : start + min(length, 1 << 16)], rng)[: layout.SEGMENT_HEADER_BYTES - start]
    head = layout.SEGMENT_HEADER.pack(magic, version, record, len(header)) + header
    return head.ljust(layout.SEGMENT_HEADER_BYTES, b"\0") + data[layout.SEGMENT_HEADER_BYTES :]


def _packed(packer: Any) -> Change:
    def change(data: bytes, rng: random.Random) -> bytes:
        try:
            inside = packer.decompress(data)
        except Exception:  # whatever the packer says of damage
            return _bytes(data, rng)
        return bytes(packer.compress(rng.choice((_json_line, _lines, _bytes))(inside, rng)))

    return change


def _sqlite(data: bytes, rng: random.Random) -> bytes:
    """A statement that changes a table's rows, columns or name."""
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(data)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice(tables)
        column = rng.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
        new = value(rng)
        if isinstance(new, (list, dict)) or (isinstance(new, int) and abs(new) >= 1 << 63):
            new = b"\xff\0"
        if isinstance(new, str):
            new = new.encode("utf-8", "replace").decode()
        statements: list[tuple[str, list[Any]]] = [
            (f'UPDATE "{table}" SET "{column}" = ?', [new]),
            (f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = (SELECT min(rowid) FROM "{table}")', [new]),
            (f'UPDATE "{table}" SET "{column}" = CAST("{column}" AS {rng.choice(("TEXT", "BLOB", "REAL"))})', []),
            (f'INSERT INTO "{table}" SELECT * FROM "{table}"', []),
            (f'INSERT INTO "{table}" ("{column}") VALUES (?)', [new]),
            (f'UPDATE "{table}" SET rowid = {rng.choice((-(1 << 63), (1 << 63) - 1, 1 << 40))} WHERE rowid = 1', []),
            (f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{rng.choice(("x", "start", "END", "a b"))}"', []),
            (f'ALTER TABLE "{table}" DROP COLUMN "{column}"', []),
            (f'DELETE FROM "{table}"', []),
            (f'DROP TABLE "{table}"', []),
            (f'ALTER TABLE "{table}" RENAME TO "{rng.choice(tables)}2"', []),
            (f'CREATE TABLE "{table}2" AS SELECT * FROM "{table}"; ', []),
        ]
        statement, parameters = rng.choice(statements)
        database.execute(statement, parameters)
        database.commit()
        return database.serialize()
    except (sqlite3.Error, IndexError, MemoryError, UnicodeError, OverflowError):
        return _fields(data, rng)
    finally:
        database.close()
