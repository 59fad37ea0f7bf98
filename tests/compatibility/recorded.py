"""Facts about the hooks from recordings of one vLLM: which were put in place, which fired, which failed."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvtrace.doctor.declared import all_declared
from kvtrace.format.layout import PROCESSES
from kvtrace.format.reader import ProcessRecording, open_recording


def facts(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """By vLLM version, all run directories in the folders taken together.

    A hook is `failed: ...` if it failed anywhere, else `fired`, `placed` (and never called) or `absent`. One that is
    not named was in no module that vLLM imported.
    """
    processes: dict[str, list[ProcessRecording]] = defaultdict(list)
    devices: dict[str, set[str]] = defaultdict(set)
    runs: dict[str, set[Path]] = defaultdict(set)
    for run in sorted({path.parent for folder in folders for path in folder.rglob(PROCESSES) if path.is_dir()}):
        for process in open_recording(run).processes:
            version = (process.vllm_version or "unknown").partition("+")[0]
            processes[version].append(process)
            runs[version].add(run)
            if "worker" in process.roles:
                devices[version].add(process.gpu or _cell_device(run))
    return {
        version: {
            "devices": sorted(devices[version]),
            "runs": len(runs[version]),
            "hooks": dict(sorted(_states(found).items())),
        }
        for version, found in processes.items()
    }


def _cell_device(run: Path) -> str:
    """The device a cell of the lab says it ran on. Early recordings at `host` do not tell; others are made on a CPU."""
    facts = run.parent / "facts.json"
    return json.loads(facts.read_text()).get("device") or "CPU" if facts.is_file() else "CPU"


def _states(processes: Iterable[ProcessRecording]) -> dict[str, str]:
    order = ("absent", "placed", "fired")
    states: dict[str, str] = {}
    for process in processes:
        for hook, (state, detail) in process.hooks.items():
            now = {"installed": "fired" if hook in process.fired else "placed", "absent": "absent"}.get(state)
            for target in _declared(hook, state, detail):
                before = states.get(target, "absent")
                if now is None:
                    states[target] = "failed: " + re.sub(r"; lost: .*| \(line \d+ of .*?\)", "", detail)
                elif not before.startswith("failed"):
                    states[target] = max(before, now, key=order.index)
    return states


_TARGETS = {declared.target for declared in all_declared()}


def _declared(hook: str, state: str, detail: str) -> Iterator[str]:
    """The declaration behind a hook in a journal: an object's method says it itself, unless it failed or was absent."""
    if state == "installed" and detail in _TARGETS:
        yield detail
    elif hook in _TARGETS:
        yield hook
    else:
        name = hook.rpartition(".")[2]
        yield from (target for target in _TARGETS if target.rpartition(".")[2] == name)


def checks(reports: Iterable[Path]) -> dict[str, Any]:
    """Read pytest's `--junit-xml` reports: how many tests passed, which failed, which were skipped and why."""
    found: dict[str, Any] = {"passed": 0, "failed": {}, "skipped": {}}
    for case in (case for report in reports for case in ElementTree.parse(report).iter("testcase")):
        name = f"{str(case.get('classname')).removeprefix('tests.vllm.')}.{case.get('name')}"
        for outcome, key in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if (said := case.find(outcome)) is not None:
                found[key][name] = str(said.get("message")).splitlines()[0][:160]
                break
        else:
            found["passed"] += 1
    return found
