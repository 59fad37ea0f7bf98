"""A matrix of experiments, as TOML says it, and the cells it stands for."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.policies import capacity_tokens, policy_label, policy_of
from kvtrace.lab.shapes import shape_path
from kvtrace.lab.workloads import Workload, make, parameters_of
from kvtrace.queries.text import inert

MOST_CELLS = 2000
"""Of a matrix. At a minute each that is more than a day."""

_LONGEST_MESSAGE = 600
IN_WORKLOAD = ("rate", "jobs", "concurrency")
"""Parameters of workloads that a matrix sets as if they were a cell's own; others are `workload.NAME`."""


def workload_in_cell(given: Mapping[str, Any], common: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Parameters of a workload: its own, the cell's where it has such, and the cell's seed if it has none."""
    known = parameters_of(str(given.get("kind", "")))
    return {"seed": seed, **given, **{key: value for key, value in common.items() if key in known}}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: an engine, and the workloads it gets one after another.

    Attributes:
        study: The matrix it belongs to.
        axes: Its place in the matrix: the value of each axis.
        model: A shape.
        policy: See `policies`.
        kv_tokens: Tokens of KV the GPU has room for.
        max_model_len: None: as long as the workloads need.
        phases: Names of workloads, in order. One that comes twice is the same requests, cold and warm.
        reset_between: Empty the prefix cache before each phase but the first.
        workloads: Their parameters.
        workload: Parameters that go into all of them, where they have such.
        seed: Of the workloads that have none; repeat number n gets `seed` + n.
        engine: Further arguments of vLLM.
        kv_level: How deep kvtrace looks.
        timeout_s: When to give up.
    """

    study: str
    axes: dict[str, Any]
    model: str = "tiny"
    policy: dict[str, Any] = field(default_factory=lambda: {"name": "fcfs"})
    kv_tokens: int = 0
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    chunked_prefill: bool = True
    prefix_caching: bool = True
    enforce_eager: bool = True
    phases: tuple[str, ...] = ()
    reset_between: bool = False
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    repeat: int = 0
    engine: dict[str, Any] = field(default_factory=dict)
    kv_level: str = "host"
    timeout_s: float = 1800

    @property
    def id(self) -> str:
        """A name that follows from everything above: equal cells have equal ids."""
        text = json.dumps(asdict(self), sort_keys=True)
        place = "-".join(f"{text_of(value)}" for value in self.axes.values()) or "cell"
        return (
            f"{re.sub(r'[^A-Za-z0-9.]+', '-', place)[:60].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        )

    @property
    def label(self) -> str:
        """Its place in the matrix, to read."""
        return ", ".join(f"{axis} {text_of(value)}" for axis, value in self.axes.items()) or self.study

    def make_workloads(self) -> list[Workload]:
        """The workload of each phase.

        Raises:
            KvtraceError: One cannot be made.
        """
        made: dict[str, Workload] = {}
        for name in self.phases:
            if name not in made:
                given = workload_in_cell(self.workloads[name], self.workload, self.seed + self.repeat)
                if given["kind"] == "evict-pair":
                    given = {
                        "pool": self.kv_tokens // self.block_size * self.block_size,
                        "block": self.block_size,
                    } | given
                made[name] = make(name, given)
        return [made[name] for name in self.phases]


@dataclass(frozen=True)
class Matrix:
    """A study: its axes, what is compared along which of them, and its cells in the order to run them in."""

    name: str
    axes: dict[str, list[Any]]
    compare: str | None
    cells: list[Cell]
    estimate_s: float | None = None


def read_matrix(path: Path) -> Matrix:
    """Read a TOML file, or a JSON file of the same form.

    Raises:
        KvtraceError: It cannot be read, or what it says cannot be run.
    """
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
        given = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise KvtraceError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of either parser, or of the encoding
        raise KvtraceError(f"{path} is no {kind}: {inert(str(error))[:_LONGEST_MESSAGE]}") from error
    try:
        return _expand(given, path.stem)
    except KvtraceError as error:
        raise KvtraceError(f"{path}: {inert(str(error))[:_LONGEST_MESSAGE]}") from error
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise KvtraceError(
            f"{path}: a value is of another kind than its entry takes: {inert(str(error))[:_LONGEST_MESSAGE]}"
        ) from error


def _expand(given: Any, stem: str) -> Matrix:
    if not isinstance(given, dict):
        raise KvtraceError("expected entries with names, such as axes, cell and workloads")
    known = {"name", "order_seed", "repeats", "compare", "estimate_s", "cell", "axes", "workloads"}
    if unknown := sorted(set(given) - known):
        raise KvtraceError(f"unknown entry {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    name, axes, workloads = str(given.get("name", stem)), dict(given.get("axes", {})), given.get("workloads", {})
    if not workloads:
        raise KvtraceError("it has no [workloads.NAME]")
    if wrong := [axis for axis, values in axes.items() if not isinstance(values, list) or not values]:
        raise KvtraceError(f"axis {', '.join(wrong)}: expected a list of values")
    repeats = int(given.get("repeats", 1))
    count = repeats * math.prod(map(len, axes.values()))
    if not 1 <= count <= MOST_CELLS:
        raise KvtraceError(f"axes and repeats make {count:,} cells; expected 1 to {MOST_CELLS:,}")
    cells = {}
    for values in itertools.product(*axes.values()):
        for repeat in range(repeats):
            place = dict(zip(axes, values, strict=True))
            cell = _cell(name, given.get("cell", {}), place, workloads, repeat)
            cells[cell.id] = cell
    compare = given.get("compare", "policy" if "policy" in axes else None)
    if compare is not None and compare not in axes:
        raise KvtraceError(f"compare: no axis {compare!r}; there are {', '.join(axes)}")
    seed = given.get("order_seed", 1)
    order = sorted(cells, key=lambda id_: hashlib.sha256(f"{seed}/{id_}".encode()).hexdigest())
    return Matrix(name, axes, compare, [cells[id_] for id_ in order], given.get("estimate_s"))


def _cell(study: str, common: Mapping[str, Any], place: dict[str, Any], workloads: Any, repeat: int) -> Cell:
    own = {field.name for field in fields(Cell)} - {"study", "axes", "workloads", "workload", "repeat"} | {"rounds"}
    settings: dict[str, Any] = {"workload": {}}
    for key, value in {**common, **place}.items():
        inner = key.removeprefix("workload.")
        if key in own:
            settings[key] = value
        elif key in IN_WORKLOAD or inner != key:
            settings["workload"][inner] = value
        else:
            raise KvtraceError(f"{key!r} is no setting of a cell; there are {', '.join(sorted(own))} and workload.NAME")
    policy = policy_of(settings.get("policy", "fcfs"))
    phases = list(settings.get("phases", list(workloads)[:1])) * int(settings.pop("rounds", 1))
    if not phases:
        raise KvtraceError("a cell has no phases: name some, and rounds of at least 1")
    if missing := [phase for phase in phases if phase not in workloads]:
        raise KvtraceError(f"phase {', '.join(missing)}: no such [workloads.NAME]; there are {', '.join(workloads)}")
    shape_path(settings.get("model", "tiny"))
    settings |= {
        "policy": policy,
        "kv_tokens": capacity_tokens(settings.get("kv_tokens")),
        "phases": tuple(phases),
        "workloads": {phase: dict(workloads[phase]) for phase in phases},
    }
    axes = place | ({"policy": policy_label(policy)} if "policy" in place else {})
    cell = Cell(study=study, axes=axes | ({"repeat": repeat} if repeat else {}), repeat=repeat, **settings)
    _check(cell)
    return cell


def _check(cell: Cell) -> None:
    """Find mistakes in workloads before anything runs; files of theirs are read when it does."""
    for name, parameters in cell.workloads.items():
        known = parameters_of(str(parameters.get("kind", "")))
        if unknown := sorted(set(parameters) - set(known) - {"kind"}):
            raise KvtraceError(f"workload {name}: no parameter {', '.join(unknown)}; there are {', '.join(known)}")
    lost = [key for key in cell.workload if all(key not in parameters_of(w["kind"]) for w in cell.workloads.values())]
    if lost:
        raise KvtraceError(f"no workload of phases {', '.join(cell.phases)} has a parameter {', '.join(lost)}")


def text_of(value: Any) -> str:
    """An axis's value as tables show it."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
