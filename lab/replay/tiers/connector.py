"""A model of a tier behind the GPU's prefix cache, as the scheduler's side of a KV connector. It has no worker.

`lmcache` has what LMCache does differently.

Copies are asynchronous. A request whose prefix is in the tier waits for its copy, and other requests run on. A block
that is being stored stays allocated until its copy has ended; with `tier_write=lazy` a block is copied as it is
evicted, through a buffer that takes no room of the pool.

With `tier_blocking` a step begins with its loads, and its stores follow its own work, of which they store the blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

from kvtrace.events import TierOp
from kvtrace.lab.replay.clock import VirtualClock
from kvtrace.lab.replay.drive import HostTime
from kvtrace.lab.replay.tiers.link import Link
from kvtrace.lab.replay.tiers.prefetch import Prefetcher
from kvtrace.lab.replay.tiers.rows import CopyRows
from kvtrace.lab.replay.tiers.store import Store

_ENDED_BY_ITSELF = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")


class TierConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """A tier of chunks. `set_up` comes after the scheduler is built."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.block_size = vllm_config.cache_config.block_size
        self._live: dict[str, Any] = {}
        self._looked_at: dict[str, int] = {}  # chunks by request
        self._matched: dict[str, tuple[int, int]] = {}  # blocks by request, first and end
        self._matched_chunks: list[bytes] = []  # kept until the step is scheduled
        self._loads: dict[str, tuple[int, list[bytes]]] = {}
        self._stores: list[tuple[int, int, bytes, list[Any]]] = []
        self._number = self._copies = 0
        # Of the next step, with copies that it waits for: before its work, and behind it (stores, if any).
        self._busy_ns = {False: 0, True: 0}
        self._held_up: dict[bool, list[tuple[int, int, int, int]]] = {False: [], True: []}
        self._blocking = False
        self._rows: CopyRows | None = None
        self.prefetcher: Prefetcher | None = None

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Take the pool."""
        self._manager, self.pool = kv_cache_manager, kv_cache_manager.block_pool

    def set_up(
        self,
        tier: Mapping[str, Any],
        block_bytes: int,
        begin_ns: int,
        clock: VirtualClock,
        rows: CopyRows | None = None,
    ) -> None:
        """Give the tier its figures.

        Args:
            tier: `Settings.tier`.
            block_bytes: Bytes of a GPU block.
            begin_ns: Host time to begin the copy of one.
            clock: The replay's.
            rows: Writes copies and changes of the tier into the trace; None without one.
        """
        self._clock, self._block_bytes, self._begin_ns, self._rows = clock, block_bytes, begin_ns, rows
        self._chunk = max(tier["chunk_tokens"] // self.block_size, 1)
        changed = rows.changed if rows is not None else None
        self.store = Store(tier["bytes"] // (block_bytes * self._chunk), tier["evict"], changed)
        self.load_link = Link(tier["load_gb_per_s"], tier["latency_us"])
        self.store_link = Link(tier["store_gb_per_s"], tier["latency_us"])
        self._write, self._blocking, self._generated = tier["write"], tier["blocking"], tier["generated"]
        if self._write == "lazy":
            self._evict_block = self.pool._maybe_evict_cached_block
            self.pool._maybe_evict_cached_block = self._evicted

    # What the scheduler calls

    def on_new_request(self, request: Any) -> None:
        """Let time pass if the engine was idle."""
        self._advance(idle=not self._live)
        self._live[request.request_id] = request
        if self.prefetcher is not None and (session := _tag(request, "kvtrace_session")):
            self.prefetcher.turn_came(session, self._clock.now_ns)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that the tier has behind those on the GPU; None while they are being prefetched."""
        if request.skip_reading_prefix_cache:
            return 0, False
        if self.prefetcher is not None and self.prefetcher.in_flight(_tag(request, "kvtrace_session")):
            return None, False
        first = num_computed_tokens // self.block_size
        usable = min((request.num_tokens - 1) // self.block_size, len(request.block_hashes))
        end = self._found(request, first, usable)
        if end <= first:
            return 0, False
        self._matched[request.request_id] = first, end
        return (end - first) * self.block_size, not self._blocking

    def _found(self, request: Any, first: int, usable: int) -> int:
        """Keep what the tier has of a request's usable blocks from `first` on. Return the end of that."""
        end = first
        while end < usable and self.store.holds(self._key(request, end // self._chunk)):
            end = (end // self._chunk + 1) * self._chunk
        end = min(end, usable)
        if end > first:
            chunks = self._chunks(request, first, end)
            self.store.load(chunks)
            self._matched_chunks += chunks
        return end

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Queue the copy of what was matched."""
        if not num_external_tokens or request.request_id in self._loads:
            return
        first, end = self._matched[request.request_id]
        self._busy_ns[False] += (end - first) * self._begin_ns
        if self._blocking:  # the step that admits the request begins with it
            before_ns = self._busy_ns[False]
            self._busy_ns[False] += self.load_link.took_ns((end - first) * self._block_bytes)
            self._tell_hits(request, self._chunks(request, first, end))
            self._tell_held_up(end - first, before_ns, is_store=False)
        else:
            load = self.start_load(request, list(range(first, end)), self._clock.now_ns)
            self._loads[request.request_id] = load
        self._tell_plan(request, blocks.get_block_ids()[0][first:end], range(first, end), is_store=False)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Store what has been computed before this step; where it ends with its stores, what it computes as well."""
        self.store.loaded(self._matched_chunks)
        self._matched_chunks = []
        self._advance(idle=False)
        if self._write == "through":
            for request_id in self._storing_order(scheduler_output):
                tokens = scheduler_output.num_scheduled_tokens[request_id]
                self._store_new(self._live[request_id], tokens if self._blocking else 0)
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Store the rest, and plan the session's return."""
        self._advance(idle=False)
        stores = self._write == "through"
        session, tool = _tag(request, "kvtrace_session"), _tag(request, "kvtrace_tool")
        if request.status.name in _ENDED_BY_ITSELF:
            stores = stores or self._write == "turn"
            if session and self.prefetcher is not None:
                tokens = self._full_blocks(request) * self.block_size
                wanted = self.prefetcher.turn_ended(request, session, tool, tokens, self._clock.now_ns)
                stores = wanted if self._write == "turn" else stores
        if stores and request.request_id not in self._loads:
            self._store_new(request)
        self._live.pop(request.request_id, None)
        self._looked_at.pop(request.request_id, None)
        self._matched.pop(request.request_id, None)
        return False, None

    # The emulated worker

    def begin(self, output: Any) -> HostTime:
        """Return how long the copies of a step hold it up."""
        busy_ns, self._busy_ns = self._busy_ns, {False: 0, True: 0}
        self._tell_held_up_from(self._clock.now_ns)
        if self._rows is not None:
            self._rows.step(output.kv_connector_metadata)
        if not busy_ns[True]:
            return HostTime(busy_ns[False])
        return HostTime(busy_ns[False], saved_ns=busy_ns[True], saved=partial(self._saved, busy_ns[True]))

    def _saved(self, took_ns: int, launched_ns: int, end_ns: int) -> None:
        """Tell when the stores of the last step took place, for which the worker had waited since its launch."""
        self._tell_held_up_from(end_ns - took_ns, launched_ns, is_store=True)
        if self._rows is not None:
            self._rows.flush()

    def __call__(self, output: Any, step: int = 0) -> Any:
        """Return the worker's report with the results of a step, or None."""
        from vllm.v1.outputs import KVConnectorOutput

        self._advance(idle=False)
        now = self._clock.now_ns
        done = {request for request, (end, _) in self._loads.items() if end <= now}
        for request in done:
            self.end_load(self._loads.pop(request)[1])
        return KVConnectorOutput(finished_recving=done) if done else None

    def _advance(self, *, idle: bool) -> None:
        now = self._clock.now_ns
        while self._stores and self._stores[0][0] <= now:
            _, _, chunk, blocks = heapq.heappop(self._stores)
            self.store.commit(chunk)
            self.pool.free_blocks(reversed(blocks))
        if self.prefetcher is not None:
            self.prefetcher.advance(now, idle=idle)

    def drain(self) -> None:
        """Let the time pass that copies under way still take."""
        self._clock.set(max(self.load_link.free_at_ns, self.store_link.free_at_ns))
        self._advance(idle=False)

    # Storing

    def _key(self, request: Any, chunk: int) -> bytes:
        """The hash of a chunk's last block, which stands for all tokens before it, too. Empty for a partial chunk."""
        last = (chunk + 1) * self._chunk - 1
        return bytes(request.block_hashes[last]) if last < len(request.block_hashes) else b""

    def _chunks(self, request: Any, first: int, end: int) -> list[bytes]:
        numbers = range(first // self._chunk, (end - 1) // self._chunk + 1)
        return [self._key(request, number) for number in numbers]

    def _full_blocks(self, request: Any, more_tokens: int = 0) -> int:
        known = request.num_tokens if self._generated else request.num_prompt_tokens
        computed = min(request.num_computed_tokens + more_tokens, known) // self.block_size
        return int(min(computed, len(request.block_hashes)))

    def _store_new(self, request: Any, more_tokens: int = 0) -> None:
        chunks = self._full_blocks(request, more_tokens) // self._chunk
        before = self._looked_at.get(request.request_id, 0)
        if chunks <= before:
            return
        self._looked_at[request.request_id] = chunks
        ids = self._manager.get_block_ids(request.request_id)[0]
        busy_ns, waited_ns = self._busy_ns[True], max(self.store_link.free_at_ns, self._clock.now_ns)
        stored: list[int] = []
        numbers = {self._key(request, number): number for number in range(before, chunks)}
        for key in self._take_room(list(numbers)):
            places = range(numbers[key] * self._chunk, (numbers[key] + 1) * self._chunk)
            blocks = [self.pool.blocks[each] for each in ids[places.start : places.stop]]
            self.pool.touch(blocks)
            self._queue_store(key, blocks, self._chunk)
            stored += places
        if stored and self._blocking:
            self._tell_held_up(len(stored), busy_ns, is_store=True)
        elif stored:
            self._tell_copy(len(stored), waited_ns, self.store_link.free_at_ns, is_store=True)
        if stored:
            self._tell_plan(request, [ids[place] for place in stored], stored, is_store=True)

    def _storing_order(self, scheduler_output: Any) -> Sequence[str]:
        return list(scheduler_output.num_scheduled_tokens)

    def _take_room(self, chunks: list[bytes]) -> list[bytes]:
        """Count what the tier has of a request's chunks as used. Return those that are to be stored."""
        self.store.use([chunk for chunk in chunks if self.store.known(chunk)])
        return [chunk for chunk in chunks if not self.store.known(chunk) and self.store.reserve(chunk)]

    def _evicted(self, block: Any) -> bool:
        from vllm.v1.core.kv_cache_utils import get_block_hash

        key = bytes(get_block_hash(block.block_hash)) if block.block_hash is not None else b""
        evicted = bool(self._evict_block(block))
        if evicted and not self.store.known(key) and self.store.reserve(key):
            busy_ns, waited_ns = self._busy_ns[True], max(self.store_link.free_at_ns, self._clock.now_ns)
            self._queue_store(key, [], 1)
            if self._blocking:
                self._tell_held_up(1, busy_ns, is_store=True)
            else:
                self._tell_copy(1, waited_ns, self.store_link.free_at_ns, is_store=True)
        return evicted

    def _queue_store(self, key: bytes, blocks: list[Any], count: int) -> None:
        if self._blocking:  # the step ends with it
            took_ns = self.store_link.took_ns(count * self._block_bytes)
            self._busy_ns[True] += took_ns
            end = self._clock.now_ns
        else:
            end = self.store_link.copy(count * self._block_bytes, self._clock.now_ns)
        self._number += 1
        heapq.heappush(self._stores, (end, self._number, key, blocks))

    # What the trace is told

    def _tell_hits(self, request: Any, chunks: list[bytes]) -> None:
        if self._rows is not None:
            for chunk in chunks:
                self._rows.changed(TierOp.hit, chunk, request.request_id)

    def _tell_copy(self, blocks: int, began_ns: int, end_ns: int, *, is_store: bool) -> None:
        self._copies += 1
        if self._rows is not None:
            size, now = blocks * self._block_bytes, self._clock.now_ns
            self._rows.copied(self._copies, blocks, size, now, began_ns, end_ns, is_store=is_store)

    def _tell_held_up(self, blocks: int, after_ns: int, *, is_store: bool) -> None:
        """A copy that the next step waits for: all that it waits for, but for the first `after_ns`."""
        self._copies += 1
        if self._rows is not None:
            took_ns = self._busy_ns[is_store] - after_ns
            self._held_up[is_store].append((self._copies, blocks, after_ns, took_ns))

    def _tell_held_up_from(self, begin_ns: int, asked_ns: int | None = None, *, is_store: bool = False) -> None:
        if self._rows is not None:
            for number, blocks, after_ns, took_ns in self._held_up[is_store]:
                start, size = begin_ns + after_ns, blocks * self._block_bytes
                asked = start if asked_ns is None else asked_ns
                self._rows.copied(number, blocks, size, asked, start, start + took_ns, is_store=is_store)
        self._held_up[is_store] = []

    def _tell_plan(self, request: Any, ids: list[int], places: Sequence[int], *, is_store: bool) -> None:
        """Blocks of the copy that was told last, and their places in the request."""
        if self._rows is not None:
            hashes = [bytes(request.block_hashes[place]) for place in places]
            self._rows.planned(self._copies, request.request_id, ids, hashes, is_store=is_store)

    # What prefetching uses

    def waits_s(self, tokens: int, now_ns: int) -> float:
        """Seconds until a copy of so many tokens from the tier would have ended; with none, could begin."""
        queue = max(self.load_link.free_at_ns - now_ns, 0)
        took = self.load_link.took_ns(tokens // self.block_size * self._block_bytes) if tokens else 0
        return (queue + took) / 1e9

    def present(self, request: Any) -> list[Any]:
        """Return the request's leading blocks that are on the GPU, or None where only the tier has one."""
        found: list[Any] = []
        for position, block_hash in enumerate(request.block_hashes):
            cached = self.pool.get_cached_block(block_hash, [0])
            if cached is None and not self.store.holds(self._key(request, position // self._chunk)):
                break
            found.append(cached[0] if cached is not None else None)
        return found

    def start_load(self, request: Any, positions: list[int], now_ns: int) -> tuple[int, list[bytes]]:
        """Queue the copy of blocks from the tier. Return when it ends, and its chunks."""
        chunks = [self._key(request, number) for number in sorted({place // self._chunk for place in positions})]
        self.store.load(chunks)
        began_ns = max(self.load_link.free_at_ns, now_ns)
        end_ns = self.load_link.copy(len(positions) * self._block_bytes, now_ns)
        self._tell_hits(request, chunks)
        self._tell_copy(len(positions), began_ns, end_ns, is_store=False)
        return end_ns, chunks

    def end_load(self, chunks: list[bytes]) -> None:
        """Let the tier evict the chunks of a load again."""
        self.store.loaded(chunks)

    def tier_share(self) -> float:
        """Share of the tier's bytes in use."""
        return self.store.share

    # What only a worker's side does

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing: there is no worker."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: there is no worker."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: there is no worker."""

    def wait_for_save(self) -> None:
        """Do nothing: there is no worker."""


def _tag(request: Any, name: str) -> str:
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    return str(extra.get(name, ""))
