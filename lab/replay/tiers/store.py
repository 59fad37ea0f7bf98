"""Content of a tier: chunks by hash, with a capacity and an eviction policy."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from kvtrace.events import TierOp


class Store:
    """Chunks of a tier. A chunk takes its room from the start of its copy, and can be loaded after its end.

    Args:
        capacity: Chunks that fit.
        evict: `lru`: least recently stored or used first, and of chunks that are used together the last one, as without
            a prefix's beginning the rest is worth nothing; `fifo`: in the order of storing.
        changed: Is told what becomes of which chunk.

    Attributes:
        evictions: Chunks that made room for others.
        refused: Chunks that found no room, as all others were being copied.
    """

    def __init__(
        self, capacity: int, evict: str = "lru", changed: Callable[[TierOp, bytes], None] | None = None
    ) -> None:
        self._capacity, self._lru, self._changed = capacity, evict == "lru", changed
        self._chunks: OrderedDict[bytes, bool] = OrderedDict()  # True once it can be loaded
        self._loading: Counter[bytes] = Counter()
        self.evictions = self.refused = 0

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def share(self) -> float:
        """Share of the capacity in use."""
        return len(self._chunks) / self._capacity if self._capacity else 1.0

    def known(self, chunk: bytes) -> bool:
        """Return True if the chunk is here or on its way."""
        return chunk in self._chunks

    def use(self, chunks: Sequence[bytes]) -> None:
        """Count chunks of one prefix, which are here or on their way, as used."""
        for chunk in reversed(chunks):
            self._use(chunk)

    def holds(self, chunk: bytes) -> bool:
        """Return True if the chunk can be loaded."""
        return self._chunks.get(chunk, False)

    def reserve(self, chunk: bytes) -> bool:
        """Take room for a new chunk. Return False if there is none."""
        if len(self._chunks) >= self._capacity and not self._evict():
            return False
        self._add(chunk)
        return True

    def reserve_again(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Take room for chunks without a look at which of them are here: those give it back when all have theirs.

        Returns those that found room: all, or the ones before the first that did not.
        """
        found: list[bytes] = []
        for chunk in chunks:
            if len(self._chunks) + len(found) >= self._capacity and not self._evict():
                break
            found.append(chunk)
        for chunk in found:
            if chunk not in self._chunks:
                self._add(chunk)
        return found

    def commit(self, chunk: bytes) -> None:
        """Make a reserved chunk loadable, if it is not."""
        if not self._chunks.get(chunk, False):
            self._chunks[chunk] = True
            self._tell(TierOp.store, chunk)

    def load(self, chunks: list[bytes]) -> None:
        """Keep chunks until `loaded`."""
        self.use(chunks)
        for chunk in chunks:
            self._loading[chunk] += 1

    def loaded(self, chunks: list[bytes]) -> None:
        """End what `load` began."""
        for chunk in chunks:
            self._loading[chunk] -= 1
            if not self._loading[chunk]:
                del self._loading[chunk]

    def _add(self, chunk: bytes) -> None:
        self._chunks[chunk] = False
        self._tell(TierOp.write, chunk)

    def _evict(self) -> bool:
        victim = next((c for c, ready in self._chunks.items() if ready and not self._loading[c]), None)
        if victim is None:
            self.refused += 1
            return False
        del self._chunks[victim]
        self.evictions += 1
        self._tell(TierOp.evict, victim)
        return True

    def _tell(self, op: TierOp, chunk: bytes) -> None:
        if self._changed is not None:
            self._changed(op, chunk)

    def _use(self, chunk: bytes) -> None:
        if self._lru:
            self._chunks.move_to_end(chunk)
