"""Sets whose order matters: vLLM tells a KV connector by a set which requests and loads ended with one step.

The connector acts in the set's order, which follows from the hash seed of the engine's process. Released blocks and the
tier's evictions depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class InOrder(set[str]):
    """A set that is iterated in the recorded order. Members that were not recorded follow, by name."""

    def __init__(self, members: Iterable[str], recorded: Sequence[str]) -> None:
        super().__init__(members)
        self._places = {member: place for place, member in enumerate(recorded)}

    def __iter__(self) -> Iterator[str]:
        last = len(self._places)
        return iter(sorted(super().__iter__(), key=lambda member: (self._places.get(member, last), member)))
