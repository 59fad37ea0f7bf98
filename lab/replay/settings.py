"""Settings of a replayed engine: those of the recording, and the changes of `--set`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kvtrace.errors import KvtraceError
from kvtrace.lab.policies import TTL_PIN
from kvtrace.lab.replay.policies import prefetch_class
from kvtrace.lab.replay.recording import EngineFacts, Recording, default_graph_tokens
from kvtrace.lab.replay.timing import FEWEST_LAUNCHES, TimeModel

_DRAFTS = "num_speculative_tokens"
_GRAPHS = "max_cudagraph_capture_size"
_SIZES = ("num_gpu_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs", _GRAPHS, _DRAFTS)
_SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "lazy_offload")
SCHEDULER: dict[str, type] = {
    "watermark": float,
    "long_prefill_token_threshold": int,
    "scheduler_reserve_full_isl": bool,
}
"""Further options of vLLM's scheduler that may be changed, under its names, and their kinds."""
_PIN_OPTIONS = ("ttl_s", "threshold_s", "unseen_tool_s", "tool_s")
_POLICIES = ("fcfs", "priority", "ttl-pin")
_ORDERS = ("requests", "jobs")
_OFFLOAD = (
    "cpu_bytes_to_use", "connector", "offload_gb_per_s", "load_gb_per_s", "store_gb_per_s", "copy_begin_us",
    "connector_lookup_us",
)  # fmt: skip
CONNECTORS = {"offloading": "OffloadingConnector", "simple-cpu-offload": "SimpleCPUOffloadConnector"}
_WORDS = {"order": _ORDERS, "connector": tuple(CONNECTORS)}
TIERS: dict[str, dict[str, Any]] = {
    "none": {},
    "host": {"chunk_tokens": 0, "evict": "lru", "write": "through"},
    "lmcache": {
        "chunk_tokens": 256,
        "evict": "lru",
        "write": "through",
        "generated": False,
        "blocking": True,
        "load_gb_per_s": 60.0,
        "store_gb_per_s": 25.0,
    },
    "disk": {"load_gb_per_s": 5.0, "store_gb_per_s": 3.0, "latency_us": 100.0},
}
"""Models of tiers; what they leave out is as `_TIER_DEFAULTS`. Bandwidths of `lmcache` are rounded ones of LMCache
0.5.6 on H100s and H200s, those of `disk` our choice."""


class Assumed(NamedTuple):
    """Figures of a connector where no recording has any; of vLLM 0.33 on H100s, 32 layers.

    Attributes:
        load_gb_per_s: Bandwidth of copies from the host, GB/s.
        store_gb_per_s: Bandwidth of copies to the host, GB/s.
        copy_begin_us: Host time that copying a block adds to a step, us.
        connector_lookup_us: Host time for each block of a request that the connector is asked about, us.
    """

    load_gb_per_s: float
    store_gb_per_s: float
    copy_begin_us: float
    connector_lookup_us: float


_COPIES = Assumed._fields
"""Of an engine and of settings: bandwidths of copies, and the host times of the connector that made them."""
ASSUMED = {"offloading": Assumed(50.0, 38.0, 37.0, 12.0), "simple-cpu-offload": Assumed(34.0, 40.0, 6.0, 5.0)}
"""By connector. Lookups of the first took 4 to 21 us on H100s and H200s, most where its tier was full, those of the
second 4 to 10; 3 of them are the GPU's own prefix cache."""
ASSUMED_TIER_LOOKUP_US = 2.0
"""Of a model of a tier; LMCache 0.5.6 took as long in five cells on H200s, once a request."""
_OF_LMCACHE = {"copy_begin_us": 14.0, "connector_lookup_us": None}
"""Of LMCache 0.5.6 in three cells on H200s, that loaded."""
_TIER_DEFAULTS: dict[str, Any] = {
    "bytes": 16 << 30,
    "latency_us": 10.0,
    "chunk_tokens": 0,  # a block
    "evict": "lru",
    "write": "through",
    "generated": True,  # what was generated is stored, too
    "blocking": False,
}
_TIER_WORDS = {"tier_evict": ("lru", "fifo"), "tier_write": ("through", "lazy", "turn")}
_TIER_NUMBERS = ("tier_load_gb_per_s", "tier_store_gb_per_s", "tier_latency_us", "tier_chunk_tokens")
_PREFETCH_NUMBERS = ("prefetch_seconds", "prefetch_spread", "prefetch_lead_s", "prefetch_seed")
_TIER_SWITCHES = ("tier_blocking", "tier_generated")
_TIER = ("tier", "tier_bytes", *_TIER_SWITCHES, *_TIER_NUMBERS, *_TIER_WORDS, "prefetch", *_PREFETCH_NUMBERS)
NAMES = (*_SIZES, *_SWITCHES, *SCHEDULER, "policy", "order", "scheduler_cls", *_PIN_OPTIONS, *_OFFLOAD, *_TIER)
_FACTOR = re.compile(r"(\d+(?:\.\d*)?|\.\d+)x", re.ASCII)
_BYTES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


@dataclass(frozen=True)
class Settings:
    """Settings of the replayed scheduler, under vLLM's names. `num_gpu_blocks` includes the null block.

    Attributes:
        order: `jobs` gives requests priorities by their job's arrival; `requests` leaves them as they were recorded.
        scheduler_cls: As vLLM's `--scheduler-cls`; None for vLLM's own.
        pins: Options of the lab's TTL-pin scheduler.
        cpu_bytes_to_use: Host memory of vLLM's offload connector; None without one.
        connector: Which one, by name in `CONNECTORS`.
        lazy_offload: As the SimpleCPUOffloadConnector's option.
        load_gb_per_s: Bandwidth of copies from the host, GB/s; what the recording's own achieved, if it has any.
        store_gb_per_s: Bandwidth of copies to the host, GB/s, likewise.
        copy_begin_us: Host time that copying a block adds to a step, us; as recorded, too.
        connector_lookup_us: Host time that asking the connector about a waiting request adds to a step for each block
            of that request, us, likewise; None: what is assumed.
        tier: A model of a tier: `name` and the `tier_...` settings without the prefix; empty without one.
        prefetch: `name` of a prefetch policy and its options; empty without one.
        num_speculative_tokens: Most draft tokens of a request in a step; 0 without speculation.
        max_cudagraph_capture_size: Steps with prefill of at most so many tokens are launched with CUDA graphs.
        scheduler: Further options of vLLM's scheduler that differ from the recorded ones.
    """

    num_gpu_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    policy: str
    order: str = "requests"
    scheduler_cls: str | None = None
    pins: dict[str, Any] = field(default_factory=dict)
    cpu_bytes_to_use: int | None = None
    load_gb_per_s: float = ASSUMED["offloading"].load_gb_per_s
    store_gb_per_s: float = ASSUMED["offloading"].store_gb_per_s
    copy_begin_us: float = ASSUMED["offloading"].copy_begin_us
    connector_lookup_us: float | None = None
    connector: str = "offloading"
    lazy_offload: bool = False
    tier: dict[str, Any] = field(default_factory=dict)
    prefetch: dict[str, Any] = field(default_factory=dict)
    num_speculative_tokens: int = 0
    max_cudagraph_capture_size: int = 0
    scheduler: dict[str, Any] = field(default_factory=dict)


def recorded_settings(engine: EngineFacts) -> Settings:
    """The settings that the recorded engine had."""
    own = engine.scheduler is None or engine.scheduler.startswith("vllm.")
    # A TTL-pin scheduler makes its asynchronous variant itself.
    pins = not own and (engine.scheduler or "").startswith("kvtrace.lab.ttl_pin.")
    connector = next((name for name, known in CONNECTORS.items() if known == engine.connector), Settings.connector)
    settings = Settings(
        num_gpu_blocks=engine.blocks + 1,
        block_size=engine.block_size,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        enable_prefix_caching=engine.prefix_caching,
        enable_chunked_prefill=engine.chunked_prefill,
        async_scheduling=engine.async_scheduling,
        policy=engine.policy,
        scheduler_cls=None if own else TTL_PIN if pins else engine.scheduler,
        pins=engine.told.get("ttl_pin") or {},
        cpu_bytes_to_use=_told_host_bytes(engine),
        connector=connector,
        lazy_offload=bool(_connector_options(engine).get("lazy_offload")),
        num_speculative_tokens=engine.num_speculative_tokens,
        max_cudagraph_capture_size=engine.graph_tokens,
    )
    recorded = {name: value for name in _COPIES if (value := getattr(engine, name)) is not None}
    return replace(settings, **(ASSUMED[connector]._asdict() | {"connector_lookup_us": None} | recorded))


def with_copies_of(engine: EngineFacts, other: EngineFacts) -> EngineFacts:
    """The engine with what another one's copies took, if any of them were recorded."""
    if other.load_gb_per_s is None and other.store_gb_per_s is None:
        return engine
    return replace(engine, copies_by=other.copies_by, **{name: getattr(other, name) for name in _COPIES})


def _connector_options(engine: EngineFacts) -> dict[str, Any]:
    return (engine.told.get("kv_transfer") or {}).get("kv_connector_extra_config") or {}


def _told_host_bytes(engine: EngineFacts) -> int | None:
    """Host memory of a recorded connector, of all ranks."""
    options = _connector_options(engine)
    if engine.connector not in CONNECTORS.values() or options.get("kv_offload_backend", "cpu") != "cpu":
        return None
    told = options.get("cpu_bytes_to_use")
    if isinstance(a_rank := options.get("cpu_bytes_to_use_per_rank"), int | float):
        told = a_rank * engine.tp_size
    return int(told) if isinstance(told, int | float) else None


def untold_settings(engine: EngineFacts, settings: Settings) -> list[str]:
    """Warnings about settings of the recorded engine that its trace does not tell and that were not given.

    Raises:
        KvtraceError: Without them there is nothing to replay.
    """
    found = []
    extra = _connector_options(engine)
    if engine.connector and not settings.cpu_bytes_to_use and not settings.tier:
        if extra.get("kv_offload_backend", "cpu") != "cpu":
            what = f"its {extra['kv_offload_backend']} cannot be replayed"
        elif engine.connector in CONNECTORS.values():
            what = "the size of its host memory is not in the trace; --recorded cpu_bytes_to_use=16GiB gives it"
        else:
            what = (
                f"only the scheduler sides of {' and '.join(CONNECTORS.values())} can be built without their workers; "
                "--recorded tier=lmcache and --recorded tier_bytes=16GiB replace LMCache by a model of its tier"
            )
        raise KvtraceError(f"engine {engine.engine_id} had a KV connector ({engine.connector}): {what}", 2)
    if engine.connector and extra.get("spec_name") not in (None, "CPUOffloadingSpec"):
        found.append(f"the connector's spec, {extra['spec_name']}, is replayed as vLLM's CPUOffloadingSpec")
    if settings.tier and engine.connector:
        found.append(f"{engine.connector} is replaced by a model of a host tier: how well it fits, the errors say")
    if settings.scheduler_cls == TTL_PIN and not settings.pins and not engine.told:
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
    pins, tier, prefetch, scheduler = dict(base.pins), dict(base.tier), dict(base.prefetch), dict(base.scheduler)
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in NAMES:
            raise KvtraceError(f"--set {change}: expected NAME=VALUE with one of {', '.join(NAMES)}", 2)
        if name in _SIZES:
            found[name] = _size(change, value, getattr(base, name), least=name != _DRAFTS)
        elif name in _SWITCHES:
            found[name] = _switch(change, value)
        elif name in SCHEDULER:
            scheduler[name] = _scheduler_option(change, name, value)
        elif name in _TIER:
            _tier_change(change, name, value, tier, prefetch)
        elif name in _PIN_OPTIONS:
            pins[name] = _tool_times(change, value) if name == "tool_s" else _number(change, value)
        elif name == "policy":
            found.update(_policy(change, value))
        elif name in _WORDS:
            found[name] = _word(change, value, _WORDS[name])
        elif name == "cpu_bytes_to_use":
            found[name] = _bytes(change, value) or None
        elif name == "offload_gb_per_s":
            found["load_gb_per_s"] = found["store_gb_per_s"] = _number(change, value)
        else:
            found[name] = value if name == "scheduler_cls" else _number(change, value)
    tier = _whole_tier(tier, base, engine)
    found = _assumed_of(engine, base, found) | _assumed_of_lmcache(engine, base, tier) | found
    settings = replace(base, **found, pins=pins, tier=tier, prefetch=prefetch, scheduler=scheduler)
    return _checked(engine, base, settings, given=set(found))


def _assumed_of(engine: EngineFacts, base: Settings, found: dict[str, Any]) -> dict[str, Any]:
    """Figures assumed of copies, if another connector is asked for: those of one say little of another's."""
    connector = found.get("connector", base.connector)
    known = connector == base.connector or engine.copies_by == CONNECTORS[connector]
    return {} if known else ASSUMED[connector]._asdict()


def _assumed_of_lmcache(engine: EngineFacts, base: Settings, tier: Mapping[str, Any]) -> dict[str, Any]:
    """The host times of LMCache, if its model is asked for and they were not recorded."""
    if tier.get("name") != "lmcache" or base.tier.get("name") == "lmcache":
        return {}
    own = _lmcache_copied(engine)
    return {name: value for name, value in _OF_LMCACHE.items() if not own or getattr(engine, name) is None}


def _lmcache_copied(engine: EngineFacts) -> bool:
    return (engine.copies_by or "").startswith("LMCache")


def _checked(engine: EngineFacts, base: Settings, settings: Settings, given: Set[str]) -> Settings:
    if settings.block_size % engine.hash_block_size:
        raise KvtraceError(
            f"block_size={settings.block_size}: hashes were recorded for blocks of {engine.hash_block_size} tokens, so "
            "only multiples of that can be replayed",
            2,
        )
    if settings.num_speculative_tokens > engine.num_speculative_tokens:
        raise KvtraceError(
            f"num_speculative_tokens={settings.num_speculative_tokens}: {engine.num_speculative_tokens} were recorded, "
            "and what the model would accept of more is not known",
            2,
        )
    if settings.enable_prefix_caching and not engine.prefix_caching:
        raise KvtraceError("enable_prefix_caching=true: the recording has no block hashes, as it ran without", 2)
    if settings.block_size != base.block_size and "num_gpu_blocks" not in given:
        usable = (base.num_gpu_blocks - 1) * base.block_size // settings.block_size
        settings = replace(settings, num_gpu_blocks=usable + 1)
    if settings.order == "jobs":  # priorities are only looked at under this policy
        settings = replace(settings, policy="priority")
    _check_tier(engine, settings)
    settings = _with_graphs(base, settings, given=_GRAPHS in given)
    if settings.num_gpu_blocks < 2:
        raise KvtraceError("num_gpu_blocks: an engine needs the null block and at least one more", 2)
    return settings


def _with_graphs(base: Settings, settings: Settings, *, given: bool) -> Settings:
    """Check up to how many tokens steps have CUDA graphs, or give it vLLM's default if the recorded engine had it."""
    if not given:
        before, now = (
            default_graph_tokens(each.max_num_seqs, each.num_speculative_tokens) for each in (base, settings)
        )
        had_default = base.max_cudagraph_capture_size == before
        return replace(settings, max_cudagraph_capture_size=now) if had_default else settings
    if settings.max_cudagraph_capture_size < settings.max_num_seqs:
        raise KvtraceError(
            f"{_GRAPHS}={settings.max_cudagraph_capture_size}: what decoding takes without graphs is not known, and "
            f"{settings.max_num_seqs} requests may decode at a time",
            2,
        )
    return settings


def check_launches(changes: Sequence[str], model: TimeModel) -> None:
    """Refuse other CUDA graphs where no recorded launch tells what they give.

    Raises:
        KvtraceError: It is asked for.
    """
    if model.graph_launches is None and (asked := [each for each in changes if each.startswith(f"{_GRAPHS}=")]):
        raise KvtraceError(
            f"--set {asked[0]}: what launching a step with prefill takes with CUDA graphs and without is not known, as "
            f"the recording has fewer than {FEWEST_LAUNCHES} of one kind",
            2,
        )


def _scheduler_option(change: str, name: str, value: str) -> Any:
    kind = SCHEDULER[name]
    if kind is bool:
        return _switch(change, value)
    number = _number(change, value)
    if name == "watermark" and number >= 1:
        raise KvtraceError(f"--set {change}: expected a share of the blocks, below 1", 2)
    return kind(number)


def _tier_change(change: str, name: str, value: str, tier: dict[str, Any], prefetch: dict[str, Any]) -> None:
    """Enter a setting of the tier or of prefetching."""
    key = name.partition("_")[2]
    if name == "tier":
        tier["name"] = _word(change, value, tuple(TIERS))
    elif name in _TIER_SWITCHES:
        tier[key] = _switch(change, value)
    elif name == "tier_bytes":
        tier[key] = _bytes(change, value)
    elif name in _TIER_WORDS:
        tier[key] = _word(change, value, _TIER_WORDS[name])
    elif name == "tier_chunk_tokens":
        tier[key] = int(_number(change, value))
    elif name in _TIER_NUMBERS:
        tier[key] = _number(change, value)
    elif name == "prefetch":
        prefetch_class(value)  # a wrong one is told before the recording is replayed
        prefetch["name"] = value
    else:
        prefetch[key] = _number(change, value)


def _whole_tier(tier: dict[str, Any], base: Settings, engine: EngineFacts) -> dict[str, Any]:
    """The tier with what its name implies where nothing was given; empty without one.

    A tier in host memory copies as fast as the recording's connector did; LMCache as LMCache did, where that was
    recorded.
    """
    before = base.tier
    name = tier.get("name", "none" if not tier else None)
    if name is None:
        raise KvtraceError(f"tier_{next(iter(tier))}: of which tier? --set tier=... is one of {', '.join(TIERS)}", 2)
    if name == "none":
        return {}
    if before and before["name"] != name:  # another kind: only what was given beside it
        tier = {key: value for key, value in tier.items() if value != before.get(key)}
    rates = {"load_gb_per_s": base.load_gb_per_s, "store_gb_per_s": base.store_gb_per_s}
    by_lmcache = name == "lmcache" and _lmcache_copied(engine)
    own = {rate: rates[rate] for rate in rates if by_lmcache and getattr(engine, rate) is not None}
    return {**_TIER_DEFAULTS, **rates, **TIERS[name], **own, **tier, "name": name}


def check_sessions(settings: Settings, recording: Recording) -> None:
    """Refuse to prefetch where no turn has a next one.

    Raises:
        KvtraceError: No request has a session.
    """
    if settings.prefetch and not any(request.session for request in recording.requests):
        raise KvtraceError("prefetch: no request of this recording has a session tag, so no turn has a next one", 2)


def _check_tier(engine: EngineFacts, settings: Settings) -> None:
    tier = settings.tier
    if settings.prefetch and not tier:
        raise KvtraceError("prefetch: there is nothing to prefetch from; --set tier=host adds a tier", 2)
    if not tier:
        return
    if settings.cpu_bytes_to_use:
        raise KvtraceError("tier and cpu_bytes_to_use: a replay has one connector, so only one of them", 2)
    if not engine.block_bytes:
        raise KvtraceError("tier: the trace does not say how many bytes a block has", 2)
    if engine.kv_groups > 1:
        raise KvtraceError("tier: the model of a tier only knows one KV cache group", 2)
    for key in ("load_gb_per_s", "store_gb_per_s"):
        if not tier[key]:
            raise KvtraceError(f"tier_{key}: expected more than 0", 2)
    if tier["chunk_tokens"] % settings.block_size:
        raise KvtraceError(f"tier_chunk_tokens: expected a multiple of the block size, {settings.block_size}", 2)
    if tier["write"] == "lazy" and tier["chunk_tokens"] > settings.block_size:
        raise KvtraceError("tier_write=lazy: blocks are evicted one by one; it needs tier_chunk_tokens=0", 2)


def _word(change: str, value: str, words: Sequence[str]) -> str:
    if value not in words:
        raise KvtraceError(f"--set {change}: expected {', '.join(words)}", 2)
    return value


def _size(change: str, value: str, recorded: int, least: int) -> int:
    if match := _FACTOR.fullmatch(value):
        size = round(recorded * float(match[1]))
    elif value.isascii() and value.isdigit():
        size = int(value)
    else:
        raise KvtraceError(f"--set {change}: expected a whole number, or a factor such as 2x", 2)
    if size < least:
        raise KvtraceError(f"--set {change}: expected at least {least:d}", 2)
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
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMG]I?B|TIB)?", value.upper(), re.ASCII)
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
