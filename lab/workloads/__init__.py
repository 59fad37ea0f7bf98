"""Workloads: seeded, deterministic, made of token ids. One file a family; `make` finds them by their kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads import agents, arrivals, chats, families, lengths, replay
from kvtrace.lab.workloads.model import Job, Turn, Workload

__all__ = ["KINDS", "Job", "Turn", "Workload", "make", "parameters_of"]

KINDS: dict[str, Callable[..., Any]] = {
    "fixed": lengths.fixed,
    "listed": lengths.listed,
    "zipf": lengths.zipf,
    "sharegpt-like": lengths.sharegpt_like,
    "sharegpt": chats.sharegpt,
    "shared-prefix": families.shared_prefix,
    "evict-pair": families.evict_pair,
    "agent": agents.agent,
    "eight-turns": agents.eight_turns,
    "trajectories": chats.trajectories,
    "mooncake": replay.mooncake,
    "bailian": replay.bailian,
}

_USUAL = {"evict-pair": ("closed", 1), "mooncake": ("recorded", None), "bailian": ("recorded", None)}
_ARRIVAL: dict[str, Any] = {"arrival": None, "rate": None, "concurrency": None, "speed": 1.0, "seed": 1}


def parameters_of(kind: str) -> dict[str, Any]:
    """The parameters of a kind and their defaults; `...` where one must be given.

    Raises:
        KvtraceError: There is no such kind.
    """
    if kind not in KINDS:
        raise KvtraceError(f"no workload {kind!r}; there are {', '.join(KINDS)}")
    return {**_own_parameters(kind), **_ARRIVAL}


@cache
def _own_parameters(kind: str) -> dict[str, Any]:
    return {
        name: ... if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(KINDS[kind]).parameters.items()
        if name != "seed"
    }


def make(name: str, parameters: Mapping[str, Any]) -> Workload:
    """Make a workload.

    Args:
        name: What to call it.
        parameters: `kind`; `arrival` (all, batch, poisson, closed, recorded) with `rate`, `concurrency` or `speed`;
            `seed`; and the kind's own. A `rate` alone means Poisson arrivals, a `concurrency` alone a closed loop.

    Raises:
        KvtraceError: A parameter is unknown, missing or impossible, or a file cannot be read.
    """
    given = dict(parameters)
    kind = str(given.pop("kind", ""))
    known = parameters_of(kind)
    if unknown := sorted(set(given) - set(known)):
        raise KvtraceError(f"workload {name}: {kind} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    if missing := [key for key, default in known.items() if default is ... and key not in given]:
        raise KvtraceError(f"workload {name}: {kind} needs {', '.join(missing)}")
    how = {key: given.pop(key, default) for key, default in _ARRIVAL.items()}
    usual, concurrency = _USUAL.get(kind, ("all", None))
    if how["arrival"] is None:
        how["arrival"] = "poisson" if how["rate"] else "closed" if how["concurrency"] else usual
    how["concurrency"] = how["concurrency"] or concurrency
    seed = int(how["seed"])
    takes_seed = "seed" in inspect.signature(KINDS[kind]).parameters
    try:
        made = KINDS[kind](*([seed] if takes_seed else []), **given)
    except (TypeError, ValueError) as error:
        raise KvtraceError(f"workload {name}: {kind} cannot be made of {given}: {error}") from error
    jobs, notes = made if isinstance(made, tuple) else (made, [])
    if not jobs:
        raise KvtraceError(f"workload {name}: it has no jobs")
    times, most = arrivals.arrivals(jobs, how["arrival"], seed, how["rate"], how["concurrency"], float(how["speed"]))
    return Workload(name, {"kind": kind, **given, **how}, jobs, times, most, notes)
