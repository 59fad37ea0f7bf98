"""Cuts an export of Nsight Systems to what `kvtrace ingest` reads of a recording's steps, so that it can be given away.

python examples/recordings/cut_profile.py profile.sqlite cut.sqlite

An export holds the environment of every process (in StringIds, too), all processes of the machine, paths and a
warm-up. The cut has the tables and columns that the importer declares, activities and calls since the first step
began, processes that used a GPU, and the names that these rows refer to. Times and ids stay as they are.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kvtrace.ingest.importers.nsight.export import open_export
from kvtrace.ingest.importers.nsight.marks import read_marks
from kvtrace.ingest.importers.nsight.tables import IMPORTS, Kind

FACTS = {
    "TARGET_INFO_SESSION_START_TIME": ["utcEpochNs"],
    "META_DATA_EXPORT": ["name", "value"],
    "StringIds": ["id", "value"],
}
"""Further tables that the importer reads."""

SINCE_FIRST_STEP = ("CUPTI_ACTIVITY_KIND_", "OSRT_API")
USED_A_GPU = 'IN (SELECT DISTINCT globalPid >> 24 FROM export."CUPTI_ACTIVITY_KIND_KERNEL")'
ROWS = {
    "META_DATA_EXPORT": "name GLOB 'EXPORT_PRODUCT*' OR name GLOB 'EXPORT_SCHEMA*'",
    "PROCESSES": f"globalPid >> 24 {USED_A_GPU}",
    "ThreadNames": f"globalTid >> 24 {USED_A_GPU}",
}
"""Of these tables only some rows."""


def declared() -> Iterator[tuple[str, list[str], list[str]]]:
    """The tables that are read, their columns, and which of them hold ids of StringIds."""
    tables: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for each in IMPORTS:
        columns, names = tables.setdefault(each.table, ({}, {}))
        for read in () if each.optional else each.reads:
            columns |= dict.fromkeys(read.columns)
            names |= dict.fromkeys(read.columns) if read.kind in (Kind.name, Kind.kernel) else {}
    for table, (columns, names) in tables.items():
        yield table, [*columns], [*names]


def main(source: Path, target: Path) -> None:
    """Write the cut."""
    with open_export(source) as export:
        begin = min(each.start_ns for each in read_marks(export).ranges)
        there = export.columns
    target.unlink(missing_ok=True)
    referred = []
    with closing(sqlite3.connect(target, uri=True)) as cut:
        cut.execute("ATTACH ? AS export", [f"{source.resolve().as_uri()}?mode=ro"])
        for table, columns, names in [*declared(), *((table, columns, []) for table, columns in FACTS.items())]:
            found = [there[table][name.lower()] for name in columns if name.lower() in there.get(table, {})]
            if not found:
                continue
            rows = ROWS.get(table, "true")
            if table.startswith(SINCE_FIRST_STEP):
                rows = f'"start" >= {begin}'
            if table == "StringIds":
                rows = f"id IN ({' UNION '.join(referred)})"
            listed = ", ".join(f'"{name}"' for name in found)
            cut.execute(f'CREATE TABLE "{table}" AS SELECT {listed} FROM export."{table}" WHERE {rows}')
            referred += [f'SELECT "{name}" FROM "{table}"' for name in names if name in found]
        cut.commit()
        cut.execute("DETACH export")
        cut.execute("VACUUM")
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB of {source.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
