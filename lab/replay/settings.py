"""Settings of a replayed engine: those of the recording, and the changes of `--set`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.replay.recording import EngineFacts

TTL_PIN = "kvtrace.lab.ttl_pin.TTLPinScheduler"
_SIZES = ("num_gpu_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs")
_SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
_PIN_OPTIONS = ("ttl_s", "threshold_s", "unseen_tool_s", "tool_s")
_POLICIES = ("fcfs", "priority", "ttl-pin")
_OFFLOAD = ("cpu_bytes_to_use", "offload_gb_per_s", "load_gb_per_s", "store_gb_per_s")
NAMES = (*_SIZES, *_SWITCHES, "policy", "scheduler_cls", *_PIN_OPTIONS, *_OFFLOAD)
_FACTOR = re.compile(r"(\d+(?:\.\d*)?|\.\d+)x", re.ASCII)
_BYTES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@dataclass(frozen=True)
class Settings:
    """Settings of the replayed scheduler, under vLLM's names. `num_gpu_blocks` includes the null block.

    Attributes:
        scheduler_cls: As vLLM's `--scheduler-cls`; None for vLLM's own.
        pins: Options of the lab's TTL-pin scheduler.
        cpu_bytes_to_use: Host memory of vLLM's OffloadingConnector; None without one.
        load_gb_per_s: Bandwidth of copies from the host, GB/s.
        store_gb_per_s: Bandwidth of copies to the host, GB/s.
    """

    num_gpu_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    policy: str
    scheduler_cls: str | None = None
    pins: dict[str, Any] = field(default_factory=dict)
    cpu_bytes_to_use: int | None = None
    load_gb_per_s: float = 20.0
    store_gb_per_s: float = 20.0


def recorded_settings(engine: EngineFacts) -> Settings:
    """The settings that the recorded engine had."""
    own = engine.scheduler is None or engine.scheduler.startswith("vllm.")
    # A TTL-pin scheduler makes its asynchronous variant itself.
    pins = not own and (engine.scheduler or "").startswith("kvtrace.lab.ttl_pin.")
    return Settings(
        num_gpu_blocks=engine.blocks + 1,
        block_size=engine.block_size,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        enable_prefix_caching=engine.prefix_caching,
        enable_chunked_prefill=engine.chunked_prefill,
        async_scheduling=engine.async_scheduling,
        policy=engine.policy,
        scheduler_cls=None if own else TTL_PIN if pins else engine.scheduler,
    )


def untold_settings(engine: EngineFacts, settings: Settings) -> list[str]:
    """Warnings about settings of the recorded engine that its trace does not tell and that were not given."""
    found = []
    if engine.connector and not settings.cpu_bytes_to_use:
        found.append(
            f"the engine had a KV connector ({engine.connector}), whose settings are not in the trace; the replay has "
            "none (--recorded cpu_bytes_to_use=... makes an OffloadingConnector)"
        )
    if settings.scheduler_cls == TTL_PIN and not settings.pins:
        found.append("options of TTL pins are not in the trace; --recorded ttl_s=... and threshold_s=... give them")
    return found


def changed_settings(engine: EngineFacts, base: Settings, changes: Sequence[str]) -> Settings:
    """The settings with `NAME=VALUE` changes applied.

    A size may be a factor of the recorded one, as in `num_gpu_blocks=2x`. Where the block size changes and the number
    of blocks does not, the pool keeps its bytes.

    Raises:
        KvtraceError: There is no such setting, or its value makes no engine that this trace could be replayed on.
    """
    found: dict[str, Any] = {}
    pins = dict(base.pins)
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in NAMES:
            raise KvtraceError(f"--set {change}: expected NAME=VALUE with one of {', '.join(NAMES)}", 2)
        if name in _SIZES:
            found[name] = _size(change, value, getattr(base, name))
        elif name in _SWITCHES:
            found[name] = _switch(change, value)
        elif name in _PIN_OPTIONS:
            pins[name] = _tool_times(change, value) if name == "tool_s" else _number(change, value)
        elif name == "policy":
            found.update(_policy(change, value))
        elif name == "cpu_bytes_to_use":
            found[name] = _bytes(change, value) or None
        elif name == "offload_gb_per_s":
            found["load_gb_per_s"] = found["store_gb_per_s"] = _number(change, value)
        elif name == "scheduler_cls":
            found[name] = value
        else:
            found[name] = _number(change, value)
    settings = replace(base, **found, pins=pins)
    return _checked(engine, base, settings, blocks_given="num_gpu_blocks" in found)


def _checked(engine: EngineFacts, base: Settings, settings: Settings, *, blocks_given: bool) -> Settings:
    if settings.block_size % engine.hash_block_size:
        raise KvtraceError(
            f"block_size={settings.block_size}: hashes were recorded for blocks of {engine.hash_block_size} tokens, so "
            "only multiples of that can be replayed",
            2,
        )
    if settings.enable_prefix_caching and not engine.prefix_caching:
        raise KvtraceError("enable_prefix_caching=true: the recording has no block hashes, as it ran without", 2)
    if settings.block_size != base.block_size and not blocks_given:
        usable = (base.num_gpu_blocks - 1) * base.block_size // settings.block_size
        settings = replace(settings, num_gpu_blocks=usable + 1)
    if settings.num_gpu_blocks < 2:
        raise KvtraceError("num_gpu_blocks: an engine needs the null block and at least one more", 2)
    return settings


def _size(change: str, value: str, recorded: int) -> int:
    if match := _FACTOR.fullmatch(value):
        size = round(recorded * float(match[1]))
    elif value.isascii() and value.isdigit():
        size = int(value)
    else:
        raise KvtraceError(f"--set {change}: expected a whole number, or a factor such as 2x", 2)
    if size < 1:
        raise KvtraceError(f"--set {change}: expected at least 1", 2)
    return size


def _switch(change: str, value: str) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False}
    if value.lower() not in known:
        raise KvtraceError(f"--set {change}: expected true or false", 2)
    return known[value.lower()]


def _number(change: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise KvtraceError(f"--set {change}: expected a number that is not negative", 2)
    return number


def _tool_times(change: str, value: str) -> dict[str, float]:
    """Seconds by tool, of JSON."""
    try:
        return {str(tool): float(seconds) for tool, seconds in dict(json.loads(value)).items()}
    except (ValueError, TypeError):
        raise KvtraceError(f'--set {change}: expected seconds by tool, as in {{"grep": 0.6}}', 2) from None


def _bytes(change: str, value: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMG]I?B)?", value.upper(), re.ASCII)
    if match is None:
        raise KvtraceError(f"--set {change}: expected bytes, such as 16GiB", 2)
    return int(float(match[1]) * _BYTES[match[2] or ""])


def _policy(change: str, value: str) -> dict[str, Any]:
    if value not in _POLICIES:
        raise KvtraceError(f"--set {change}: expected {', '.join(_POLICIES)}", 2)
    if value == "ttl-pin":
        return {"scheduler_cls": TTL_PIN}
    return {"policy": value, "scheduler_cls": None}


def changes_between(base: Settings, settings: Settings) -> dict[str, Any]:
    """The settings that differ from the recorded ones, by name."""
    return {name: value for name, value in vars(settings).items() if value != getattr(base, name)}
