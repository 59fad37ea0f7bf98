"""Sources of slices and counters, and the tracks that sources have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtrace.export.perfetto.tracks import Names, Node, Path

Place = Callable[[Names, tuple[Any, ...]], Path]

SHARE, KERNEL, FORWARD, WINDOW, CALL = 1, 2, 3, 4, 5
"""Kinds of arrows: a request's share -> step, step -> kernel, step -> forward pass, step -> KV window, call -> kernel.

An arrow's number is a row's key times 8 plus its kind."""


@dataclass(frozen=True)
class Source:
    """Slices or counters of one SELECT, in the order of `start_ns`.

    Columns with a meaning of their own are `start_ns`, `end_ns` (NULL: it had not ended when the recording did),
    `name`, `category` (else the source's name), and arrows: `flow*` starts them and `terminate*` ends them, each a
    number or a list of numbers. Every other column is shown as an argument.

    Args:
        name: What its rows are counted under, and the category of its slices.
        sql: The SELECT.
        keys: Columns that tell tracks apart.
        place: The track of a key, from the root.
        counters: For counters: columns, their tracks' names (empty: the last key) and units. Empty for slices.
        owns_lanes: The last key has a lane for itself while it lasts: a request has one for what belongs to it.
        in_lanes: Its slices lie in the lane that the last key owns.
        gap_ns: Least time between two slices of a lane.
    """

    name: str
    sql: str
    keys: tuple[str, ...]
    place: Place
    counters: tuple[tuple[str, str, str], ...] = ()
    owns_lanes: bool = False
    in_lanes: bool = False
    gap_ns: int = 0


def process(*path: str) -> Place:
    """A track of the process that the key begins with."""
    return lambda names, key: (names.process(key[0]), *map(Node, path))


def named(*path: str) -> Place:
    """A track of the process that the key begins with; the key ends with its name."""
    return lambda names, key: (names.process(key[0]), *map(Node, path), Node(str(key[-1])))


def lane(*path: str) -> Place:
    """A request's lane; the key ends with its number."""
    return lambda names, key: (
        names.process(key[0]),
        Node("requests"),
        Node(f"lane {key[-1] + 1}", key[-1]),
        *map(Node, path),
    )
