"""Attributes of vLLM's that a probe can do without. The summary names a missing one, with what the trace lacks.

Every vLLM that kvtrace knows has them, in the same place; `tests/compatibility` looks each of them up as a `Need`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

from kvtrace.capture.recorder import Recorder

ABSENT: Any = object()
"""A default that tells a missing attribute from None."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class OptionalAttributes:
    """Notes missing attributes in the journal, each once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: set[str] = set()

    def read(self, target: object, name: str, lost: str, default: object = None) -> Any:
        """Read an attribute that a version of vLLM may lack.

        Args:
            target: One of vLLM's objects.
            name: The attribute.
            lost: What a trace lacks without it, for the summary.
            default: The result if there is no such attribute.
        """
        found = getattr(target, name, ABSENT)
        if found is not ABSENT:
            return found
        self.tell(target, name, lost)
        return default

    def read_all(self, targets: Sequence[object], name: str, lost: str) -> list[Any]:
        """Read an attribute of several objects, as `read` does."""
        try:
            return list(map(attrgetter(name), targets))
        except AttributeError:
            return [self.read(target, name, lost) for target in targets]

    def tell(self, target: object, name: str, lost: str) -> None:
        """Note that an object's class gives it no such attribute."""
        kind = target.__class__  # a weak proxy's is its object's
        place = f"{kind.__module__}:{kind.__qualname__}.{name}"
        if place not in self._told:
            self._told.add(place)
            self._recorder.note("hook", inherited=True, hook=place, state="absent", detail=lost)


class Followed(dict[_Key, _Value]):
    """Facts of jobs or blocks in flight, for as long as a hook sees their ends."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = True

    def __setitem__(self, key: _Key, known: _Value) -> None:
        if self._seen:
            super().__setitem__(key, known)

    def off(self) -> None:
        """Forget all, and take up no more: the hook is off."""
        self._seen = False
        self.clear()
