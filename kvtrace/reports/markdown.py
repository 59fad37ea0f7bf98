"""Writes a document as Markdown. Nothing in a recorded text starts a link, a tag or emphasis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kvtrace.queries.text import cell, inert
from kvtrace.reports.document import (
    LONGEST,
    Block,
    Cards,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Figure,
    File,
    Items,
    Listing,
    Panel,
    Paragraph,
    Section,
    Table,
    Words,
    is_number,
    subsections,
)

_TICKS = re.compile(r"`([^`]+)`")
_ACTIVE = re.compile(r"([\\`*\[\]<>|~$#&@]|:(?=//)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_LEVELS = {"": "", "warning": "**Warning:** ", "info": "Note: "}


def markdown(document: Document) -> str:
    """The whole document."""
    head = [f"# {_inline(document.title)}", *([_inline(document.lead)] if document.lead else [])]
    top = [block for block in document.blocks if not isinstance(block, Section)]
    blocks = [*head, *_blocks(top, 1), *_contents(document), *_blocks(document.sections, 1), _inline(document.footer)]
    return "\n\n".join(blocks) + "\n"


def _contents(document: Document) -> Iterator[str]:
    """Links to the sections that have names; a heading's own text is its address."""
    groups = [(section, [each for each in subsections(section) if each.name]) for section in document.sections]
    if not any(named for _, named in groups):
        return
    yield "## Contents"
    for section, named in groups:
        if named:
            yield f"**{_inline(section.title)}**"
            yield "\n".join(f"- [{each.name}](#{each.name}): {_inline(each.title)}" for each in named)


def _blocks(blocks: Iterable[Block], level: int) -> Iterator[str]:
    for block in blocks:
        yield from _block(block, level)


def _block(block: Block, level: int) -> Iterator[str]:
    match block:
        case Paragraph(parts):
            yield "".join(map(_inline, parts))
        case Items(texts, kind):
            yield "\n".join(f"- {_LEVELS[kind]}{_inline(text)}" for text in texts)
        case Facts(pairs):
            yield _table(Table([Column("fact"), Column("value")], [(Words(name), value) for name, value in pairs]))
        case Cards(cards):
            rows = [(Words(f"{card.name} [{card.unit}]" if card.unit else card.name), card.value) for card in cards]
            yield _table(Table([Column("number"), Column("value", number=True)], rows))
        case Table():
            yield _table(block)
        case Figure(picture, path, text):
            yield f"![{_escaped(text)}]({path}.{picture.shown})"
        case Listing(text, language):
            yield f"```{language}\n{text.rstrip()}\n```"
        case Details(summary, blocks):
            yield from [f"<details><summary>{_inline(summary)}</summary>", *_blocks(blocks, level), "</details>"]
        case Panel(blocks):
            yield from _blocks(blocks, level)
        case Section(title, _, blocks, name):
            yield f"{'#' * (level + 1)} {name or _inline(title)}"
            yield from [f"**{_inline(title)}**"] if name else []
            yield from _blocks(blocks, level + 1)


def _table(table: Table) -> str:
    rule = "|".join("---:" if column.number else "---" for column in table.columns)
    lines = [_row(map(_head, table.columns)), f"|{rule}|", *(_row(map(_cell, row)) for row in table.rows)]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(column: Column) -> str:
    unit = f"\\[{_escaped(column.unit)}\\]" if column.unit else ""
    return " ".join(filter(None, (_escaped(column.name), unit, column.sign)))


def _cell(value: Any) -> str:
    if isinstance(value, Cell):
        text = _cell(value.value)
        return f"**{text}**" if value.mark == "best" else text
    if value is None:
        return "-"
    if isinstance(value, Words | Code | File):
        return _inline(value, table=True)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_inline(part, table=True) for part in value)
    text = cell(value, LONGEST)
    return text if is_number(value) or not text else _code(text, table=True)


def _inline(text: str, *, table: bool = False) -> str:
    if isinstance(text, Words):
        parts = _TICKS.split(inert(text))
        return "".join(_code(part, table=table) if place % 2 else _escaped(part) for place, part in enumerate(parts))
    if isinstance(text, Code):
        return _code(inert(text), table=table)
    if isinstance(text, File):
        return f"[{text}]({text})"
    return _escaped(text)


def _escaped(text: str) -> str:
    """Text that is shown as it is."""
    return _ACTIVE.sub(r"\\\1", inert(text))


def _code(text: str, *, table: bool) -> str:
    """Text as code: only its fence is active in it, and in a table `|`."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{room}{text.replace('|', chr(92) + '|') if table else text}{room}{fence}"
