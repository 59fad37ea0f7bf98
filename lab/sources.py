"""Where results come from: folders of sweeps, and files that `kvtrace lab report` keeps."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.kept import read_kept
from kvtrace.lab.matrix import text_of
from kvtrace.lab.results import MADE, Result
from kvtrace.lab.summary import load_result
from kvtrace.lab.sweep import RESULT


@dataclass
class Sweeps:
    """Results of sweeps, and their matrices as DIR/studies has them, by name."""

    studies: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def add(self, study: dict[str, Any]) -> None:
        """Add a matrix; of two with the same name, the cells of both are those of one.

        Raises:
            KvtraceError: They have not the same axes.
        """
        known = self.studies.setdefault(study["name"], study)
        if known is not study:
            if known["compare"] != study["compare"] or known["axes"].keys() != study["axes"].keys():
                both = " and ".join(", ".join(each["axes"]) for each in (known, study))
                raise KvtraceError(f"two studies have the name {study['name']}, and not the same axes: {both}")
            axes = {
                axis: list(dict.fromkeys(known["axes"].get(axis, []) + study["axes"].get(axis, [])))
                for axis in {**known["axes"], **study["axes"]}
            }
            cells = list(dict.fromkeys(known["cells"] + study["cells"]))
            self.studies[study["name"]] = {**known, "axes": axes, "cells": cells}


def load_sweeps(*sources: Path) -> Sweeps:
    """All cells that have ended, with their matrices.

    A cell that several sources have ran as often: the second time is its next repeat.

    Args:
        sources: Folders of `kvtrace lab run`, whose recordings are ingested if they were not yet, and files of
            `kvtrace lab report`.

    Raises:
        KvtraceError: One has no results or cannot be read.
    """
    found = Sweeps()
    for source in sources:
        studies, results = read_kept(source) if source.is_file() else _folder(source)
        for study in studies:
            found.add(study)
        for result in results:
            known = found.studies.get(result.cell.study)
            if known is not None and result.cell.axes.keys() - {"repeat"} != known["axes"].keys():
                raise KvtraceError(f"{source}: {result.name} has not the axes of its study, {result.cell.study}")
        found.results += results
    _number_repeats(found.results)
    if any(result.made == "predicted" for result in found.results):
        for result in found.results:  # one more axis, so that nothing compares, groups or draws the two alike
            result.cell = replace(result.cell, axes={**result.cell.axes, MADE: result.made})
    return found


def load_results(*sources: Path) -> list[Result]:
    """The cells of `load_sweeps`."""
    return load_sweeps(*sources).results


def _folder(directory: Path) -> tuple[list[dict[str, Any]], list[Result]]:
    if directory.suffix == ".gz" and not directory.exists():
        raise KvtraceError(f"there is no file {directory}")
    places = sorted(path.parent for path in directory.glob(f"cells/*/{RESULT}"))
    if not places:
        raise KvtraceError(f"{directory} holds no results; `kvtrace lab run MATRIX.toml -o {directory}` makes some")
    try:
        studies = [json.loads(path.read_text()) for path in sorted(directory.glob("studies/*.json"))]
    except OSError as error:
        raise KvtraceError(f"{error.filename} cannot be read: {error.strerror}") from error
    return studies, [load_result(place) for place in places]


def _number_repeats(results: list[Result]) -> None:
    """Give a cell that ran before the first number that no repeat of its settings has."""
    taken: set[tuple[Hashable, ...]] = set()
    free: dict[tuple[Hashable, ...], int] = {}
    for result in results:
        axes = ((axis, text_of(value)) for axis, value in result.cell.axes.items() if axis != "repeat")
        place = result.cell.study, result.made, *axes
        number = result.cell.repeat
        if (*place, number) in taken:
            number = free.get(place, 0)
            while (*place, number) in taken:
                number += 1
            free[place] = number + 1
            result.cell = replace(result.cell, repeat=number)
        taken.add((*place, number))
