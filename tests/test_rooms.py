"""Imports between rooms: the table of docs/how-it-works.md, held against every import of every module."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "how-it-works.md"
FRONT = {"kvtrace", "kvtrace.__main__"}
"""`kvtrace.open` and `python -m kvtrace`: they import what they hand out, and every room imports the package itself."""


class Room(NamedTuple):
    """A row of the table."""

    folder: str
    rooms: frozenset[str]
    packages: frozenset[str]


def read_table() -> list[Room]:
    """The rooms in the table's order, which is from the lowest to the highest."""
    section = PAGE.read_text(encoding="utf-8").split("## Rooms")[1]
    rooms: list[Room] = []
    for line in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        folder, _, imports, packages = (cell.strip() for cell in line.split("|"))
        below = {room.folder for room in rooms} if imports == "all" else set(re.findall(r"`([^`]+)`", imports))
        rooms.append(Room(folder.strip("`"), frozenset(below), frozenset(re.findall(r"\w+", packages))))
    return rooms


ROOMS = read_table()


def module_name(path: Path) -> str:
    """The name that a file of the checkout is imported by."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] == "kvtrace" else ["kvtrace", *parts])


def find_modules() -> dict[str, Path]:
    """Every module of every room, once: symlinked rooms are read where they are."""
    tops = {room.folder.split("/")[0] for room in ROOMS}
    files = [path for top in tops for pattern in ("*.py", "*.pyi") for path in (ROOT / top).rglob(pattern)]
    links = [path for path in (ROOT / "kvtrace").iterdir() if path.is_symlink()]
    own = [path for path in files if not any(path.is_relative_to(link) for link in links)]
    return {module_name(path): path for path in own if "node_modules" not in path.parts}


MODULES = find_modules()


def room_of(module: str) -> Room:
    """The room a module is in: that of the longest folder that holds its file."""
    path = MODULES[module].relative_to(ROOT).as_posix()
    return max((room for room in ROOMS if path.startswith(room.folder)), key=lambda room: len(room.folder))


def imported(module: str) -> Iterator[str]:
    """Modules of kvtrace, and top-level packages, that a module imports anywhere, for types too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=base, names=names, level=0) if base is not None:
                found = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in names]
            case ast.ImportFrom():
                pytest.fail(f"{module} imports relatively, which this test does not follow")
            case _:
                continue
        yield from (name if name.startswith("kvtrace") else name.split(".")[0] for name in found)


IMPORTS = {module: set(imported(module)) - {module} for module in MODULES}


def test_the_table_goes_from_the_lowest_room_to_the_highest() -> None:
    above: set[str] = set()
    for room in ROOMS:
        assert room.rooms <= above, f"{room.folder} imports a room that is not above it in the table"
        above.add(room.folder)


def test_every_folder_of_the_table_exists() -> None:
    assert [room.folder for room in ROOMS if not (ROOT / room.folder).is_dir()] == []


@pytest.mark.parametrize("room", ROOMS, ids=[room.folder for room in ROOMS])
def test_a_room_imports_what_its_row_says_and_all_of_that(room: Room) -> None:
    modules = [name for name in MODULES if name not in FRONT and room_of(name) == room]
    rooms: dict[str, set[str]] = {}
    packages: dict[str, set[str]] = {}
    for module in modules:
        for name in IMPORTS[module] - FRONT:
            if name in MODULES:
                rooms.setdefault(room_of(name).folder, set()).add(module)
            elif name not in sys.stdlib_module_names:
                packages.setdefault(name, set()).add(module)
    rooms.pop(room.folder, None)
    assert {name: users for name, users in rooms.items() if name not in room.rooms} == {}
    assert {name: users for name, users in packages.items() if name not in room.packages} == {}
    if room.rooms != {each.folder for each in ROOMS} - {room.folder}:  # "all" need not be used up
        assert room.rooms - set(rooms) == set(), "named in the table, but not imported"
    assert room.packages - set(packages) == set(), "named in the table, but not imported"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Type-only imports count: two modules that need each other's types are one, or a third is missing."""
    done: set[str] = set()

    def follow(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module in done:
            return
        for name in sorted(IMPORTS[module] & MODULES.keys() - FRONT):
            follow(name, (*path, module))
        done.add(module)

    for module in sorted(MODULES.keys() - FRONT):
        follow(module, ())
