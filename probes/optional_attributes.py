"""Attributes of vLLM's that a probe can do without: what a trace lacks where one is gone is said, and not made up.

Only for what every vLLM that kvtrace knows has, in that place; `tests/compatibility` looks each of them up as a `Need`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from kvtrace.capture.recorder import Recorder

ABSENT: Any = object()


class Lacks:
    """Notes in the journal, once for each attribute, that it is not there."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: set[str] = set()

    def read(self, target: Any, name: str, lost: str, default: Any = None) -> Any:
        """`target.name`; the default, once it has been said what is `lost`, if there is no such attribute."""
        found = getattr(target, name, ABSENT)
        if found is not ABSENT:
            return found
        self.tell(target, name, lost)
        return default

    def read_all(self, targets: list[Any], name: str, lost: str) -> list[Any]:
        """`target.name` of each, as `read` does."""
        try:
            return list(map(attrgetter(name), targets))
        except AttributeError:
            return [self.read(target, name, lost) for target in targets]

    def tell(self, target: Any, name: str, lost: str) -> None:
        """Note that an object's class gives it no such attribute."""
        kind = target.__class__  # a weak proxy's is its object's
        place = f"{kind.__module__}:{kind.__qualname__}.{name}"
        if place not in self._told:
            self._told.add(place)
            self._recorder.note("hook", inherited=True, hook=place, state="absent", detail=lost)


class Followed(dict[Any, Any]):
    """Known jobs or blocks, as long as a hook sees what becomes of them."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = True

    def __setitem__(self, key: Any, known: Any) -> None:
        if self._seen:
            super().__setitem__(key, known)

    def off(self) -> None:
        """Nobody sees it any more."""
        self._seen = False
        self.clear()
