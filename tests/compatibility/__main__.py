"""Facts about vLLM versions, and the page made of them.

python -m tests.compatibility sources FOLDER ...     folders that hold `vllm/`: facts of their version from the sources
python -m tests.compatibility recorded FOLDER ...    folders with run directories; also pytest's --junit-xml reports
python -m tests.compatibility changed FOLDER         a line for each hook that fits otherwise than in the newest before
python -m tests.compatibility page                   docs/compatibility.md, and the table in docs/offload.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kvtrace.doctor.sources import Sources
from tests.compatibility import recorded, table


def main(what: str, *arguments: str) -> None:
    paths = [Path(argument) for argument in arguments]
    match what:
        case "sources":
            for folder in paths:
                sources = Sources(folder)
                store(sources.version, sources=sources.facts())
        case "recorded":
            reports = [path for path in paths if path.suffix == ".xml"]
            more = {"checks": recorded.checks(reports)} if reports else {}
            found = recorded.facts(path for path in paths if path.is_dir())
            for version, facts in found.items():
                store(version, recorded=facts, **more)
        case "changed":
            found = [Sources(path) for path in paths]
            lines = [line for sources in found for line in table.changes(sources.version, sources.facts())]
            print("\n".join(lines) or "every hook fits as before")
            sys.exit(1 if any(line.split(" -> ")[1].startswith(("absent", "degraded")) for line in lines) else 0)
        case "page":
            table.PAGE.write_text(table.page())
            table.CONNECTORS_PAGE.write_text(table.connectors_page())
        case _:
            sys.exit(__doc__)


def store(version: str, **facts: Any) -> None:
    path = table.FACTS / f"{version}.json"
    before = json.loads(path.read_text()) if path.exists() else {"version": version}
    path.write_text(json.dumps(before | facts, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
