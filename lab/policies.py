"""Policies of cells as arguments of vLLM: scheduling and offload policies, and the GPU's KV budget."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.agents import TOOL_S

CAPACITIES = {"90k": 90_000, "200k": 200_000, "458k": 458_000, "825k": 825_000}
"""Tokens of KV that a GPU has room for. Sizes of other GPUs are emulated by the number of blocks."""

_CONNECTORS = {
    "simple-cpu-offload": "SimpleCPUOffloadConnector",
    "offloading": "OffloadingConnector",
    "lmcache": "LMCacheConnectorV1",
    "lmcache-mp": "LMCacheMPConnector",
}
_LMCACHE = ("lmcache", "lmcache-mp")
_CHUNK_TOKENS = 256
_LMCACHE_GAVE_UP = {
    "degraded mode (recompute)": "LMCache did not start, and the engine recomputed everything",
    "LMCache server is unhealthy": "LMCache's server did not answer, and the engine went on without it",
    "Something went wrong when processing the": "LMCache's server failed to store or to load",
    "cuda_ops compiled extension not found": "LMCache ran without its CUDA kernels, on operations of torch",
}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "fcfs": (),
    "priority": (),
    "ttl-pin": ("ttl_s", "threshold_s", "unseen_tool_s", "tool_s", "order"),
    "simple-cpu-offload": ("host_gib", "lazy_offload", "order"),
    "offloading": ("host_gib", "order"),
    "lmcache": ("host_gib", "chunk_tokens", "store_gb_per_s", "order"),
    "lmcache-mp": ("host_gib", "chunk_tokens", "order"),
    "hf-generate": ("batch",),
}
POLICIES = tuple(_OPTIONS)
TTL_PIN = "kvtrace.lab.ttl_pin.TTLPinScheduler"
"""The scheduler of policy `ttl-pin`, as vLLM takes it."""

Policy = dict[str, Any]
"""`name`, and options of it."""


def policy_of(value: object) -> Policy:
    """A policy as a matrix gives it: a name, or a table with `name` and options.

    Raises:
        KvtraceError: There is no such policy, or it lacks an option or has no such one.
    """
    policy = {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    name = policy.get("name")
    if name not in _OPTIONS:
        raise KvtraceError(f"no policy {value!r}; there are {', '.join(POLICIES)}")
    if unknown := sorted(set(policy) - {"name", *_OPTIONS[name]}):
        raise KvtraceError(f"policy {name} has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS[name])}")
    if "host_gib" in _OPTIONS[name] and not float(policy.get("host_gib") or 0) > 0:
        raise KvtraceError(f"policy {name} needs host_gib, the host memory in GiB")
    if policy.get("order", "requests") not in ("requests", "jobs"):
        raise KvtraceError(f'policy {name}: order is "requests" or "jobs", not {policy["order"]!r}')
    return policy


def jobs_go_in_order(policy: Mapping[str, Any]) -> bool:
    """Turns of earlier jobs go before those of later ones, whichever came first themselves."""
    return policy["name"] == "priority" or policy.get("order") == "jobs"


def policy_label(policy: Mapping[str, Any]) -> str:
    """Return a policy's name in tables, such as `offloading 16 GiB`."""
    rest = [f"{key}={value}" for key, value in policy.items() if key not in {"name", "host_gib"}]
    size = [f"{policy['host_gib']:g} GiB"] if "host_gib" in policy else []
    return " ".join([str(policy["name"]), *size, *rest])


def engine_arguments(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of vLLM that make the policy."""
    name = policy["name"]
    order = {"scheduling_policy": "priority"} if jobs_go_in_order(policy) else {}
    if name == "ttl-pin":
        options = {"tool_s": TOOL_S, **{key: value for key, value in policy.items() if key not in {"name", "order"}}}
        return {"scheduler_cls": TTL_PIN, "additional_config": {"kvtrace_ttl_pin": options}, **order}
    if name not in _CONNECTORS:
        return order
    extra: dict[str, Any] = _lmcache_server(policy) if name == "lmcache-mp" else {}
    if name not in _LMCACHE:
        extra["cpu_bytes_to_use"] = int(float(policy["host_gib"]) * (1 << 30))
    if "lazy_offload" in policy:
        extra["lazy_offload"] = bool(policy["lazy_offload"])
    config = {"kv_connector": _CONNECTORS[name], "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {"kv_transfer_config": config, **order}


def _lmcache_server(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The connector starts the server itself, and ends it with the engine."""
    port, web_port = _free_ports(2)
    host_gib = float(policy["host_gib"])
    server = {
        "l1-size-gb": f"{host_gib:g}",
        "l1-init-size-gb": str(max(1, min(20, int(host_gib)))),
        "chunk-size": str(policy.get("chunk_tokens", _CHUNK_TOKENS)),
        "eviction-policy": "LRU",
        "supported-transfer-mode": "auto",  # CUDA IPC on a GPU; an engine on a CPU has only the other
        "http-port": str(web_port),
    }
    return {
        "lmcache.mp.host": "tcp://localhost",
        "lmcache.mp.port": port,
        "lmcache.mp.autostart": True,
        "lmcache.mp.autostart.server_args": " ".join(f"--{key} {value}" for key, value in server.items()),
        "lmcache.mp.autostart.wait_timeout": 300,
    }


def _free_ports(count: int) -> list[int]:
    """Ports that no one listens on now; cells of several shares run side by side."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def environment(policy: Mapping[str, Any]) -> dict[str, str]:
    """The environment that an engine with the policy needs.

    Raises:
        KvtraceError: It also needs a package that is not installed.
    """
    if policy["name"] not in _LMCACHE:
        return {}
    if importlib.util.find_spec("lmcache") is None:
        raise KvtraceError(f"policy {policy['name']}: the package lmcache is not installed in this environment")
    common = {
        "LMCACHE_TRACK_USAGE": "false",  # it would report to its makers
        "LMCACHE_LOG_LEVEL": "WARNING",  # a line for each lookup, store and load would be timed, too
        "LMCACHE_DISABLE_BANNER": "1",
        "PYTHONHASHSEED": "0",  # scheduler and workers hash chunks of tokens in processes of their own
    }
    if policy["name"] == "lmcache-mp":
        return common
    return common | {
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": f"{float(policy['host_gib']):g}",
        "LMCACHE_CHUNK_SIZE": str(policy.get("chunk_tokens", _CHUNK_TOKENS)),
    }


def gave_up(policy: Mapping[str, Any], log: str) -> str | None:
    """Why the policy was not in force, by what the engine printed. LMCache goes on without its tier if that fails."""
    if policy["name"] not in _LMCACHE:
        return None
    return next((f"policy {policy['name']}: {why}" for text, why in _LMCACHE_GAVE_UP.items() if text in log), None)


def capacity_tokens(value: object) -> int:
    """Tokens of KV: a number, or one of `CAPACITIES`.

    Raises:
        KvtraceError: It is neither.
    """
    if isinstance(value, str) and value in CAPACITIES:
        return CAPACITIES[value]
    if isinstance(value, int) and value > 0:
        return value
    raise KvtraceError(f"kv_tokens: expected a number of tokens or {', '.join(CAPACITIES)}, found {value!r}")
