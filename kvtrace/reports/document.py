"""The parts of a document: a report, a comparison or a lab report. `html` and `markdown` write it.

A plain `str` is recorded text: it may hold anything, and is shown as it is. `Words`, `Code` and `File` are kvtrace's
own.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

LONGEST = 300
"""Characters of a table's cell."""

Mark = Literal["", "better", "worse", "best"]


class Words(str):
    """Prose of kvtrace's own; what stands between backticks is code."""

    __slots__ = ()


class Code(str):
    """A command, a name or a value, shown as code."""

    __slots__ = ()


class File(str):
    """The relative address of a file beside the document, shown as a link to it."""

    __slots__ = ()


@dataclass(frozen=True)
class Picture:
    """A plot as files and as the page embeds it."""

    files: dict[str, bytes] = field(repr=False)
    """Contents by the ending of the name: svg, and png if the SVG is large."""

    @property
    def uri(self) -> str:
        """The picture as a `data:` address."""
        mime = {"png": "image/png", "svg": "image/svg+xml"}[self.shown]
        return f"data:{mime};base64,{base64.b64encode(self.files[self.shown]).decode()}"

    @property
    def shown(self) -> str:
        """The ending of the file that is shown."""
        return "png" if "png" in self.files else "svg"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of parts that follow each other; `kind` is its style."""

    parts: Sequence[str]
    kind: Literal["", "about", "caption", "hint", "problem"] = ""


@dataclass(frozen=True)
class Items:
    """A list of texts; with a level, of notes that a reader should see."""

    texts: Sequence[str]
    level: Literal["", "warning", "info"] = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    pairs: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Card:
    """A number that stands for itself."""

    value: Any
    name: str
    meaning: str


@dataclass(frozen=True)
class Cards:
    """Cards side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Column:
    """A table's column. Numbers stand to the right; `sign` marks where its values come from."""

    name: str
    number: bool = False
    unit: str = ""
    sign: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Cell:
    """A value of a table that is marked."""

    value: Any
    mark: Mark = ""


@dataclass(frozen=True)
class Table:
    """Rows of values: numbers, None, text, `Cell`s of them, or sequences of text."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Figure:
    """A picture; its files lie beside the document as `path` with their endings."""

    picture: Picture
    path: str
    text: str


@dataclass(frozen=True)
class Listing:
    """A query's SQL."""

    text: str


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Panel:
    """Blocks in a frame."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; sections among them are its subsections, each in a frame.

    Attributes:
        title: The heading.
        anchor: The section's id in the document.
        blocks: Its content.
        name: A short name to go by in the contents, such as a query's; in Markdown it is the heading.
    """

    title: str
    anchor: str
    blocks: Sequence[Block]
    name: str = ""


Block = Paragraph | Items | Facts | Cards | Table | Figure | Listing | Details | Panel | Section


@dataclass(frozen=True)
class Document:
    """A whole document.

    Attributes:
        title: The first heading.
        lead: A paragraph below it.
        blocks: The content; sections among it make the table of contents.
        footer: The last line.
        window_title: The title of the browser's window, if it is not that of the document.
    """

    title: str
    lead: str
    blocks: Sequence[Block]
    footer: str
    window_title: str = ""

    @property
    def sections(self) -> Iterator[Section]:
        """The sections of the first level."""
        return (block for block in self.blocks if isinstance(block, Section))


def subsections(section: Section) -> list[Section]:
    """The sections right below a section."""
    return [block for block in section.blocks if isinstance(block, Section)]


def text_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of the given column names; a column of nothing but numbers stands to the right."""
    bare = [[cell.value if isinstance(cell, Cell) else cell for cell in row] for row in rows]
    numbers = [all(is_number(row[place]) or row[place] is None for row in bare) for place in range(len(names))]
    return Table([Column(name, number) for name, number in zip(names, numbers, strict=True)], rows)


def is_number(value: Any) -> bool:
    """The value is a number, not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
