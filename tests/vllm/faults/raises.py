"""Hooks that raise: at a chosen call of theirs, in place of what they do or after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

PARTS = ("arguments", "before", "after", "later")


class Place(NamedTuple):
    """A function of a hook. Hooks on the same target are told apart by what is lost without them."""

    target: str
    lost: str
    part: str


class InjectedError(Exception):
    """Error that hooks raise here."""


class Raises:
    """Stands between kvtrace's hooks and what wraps them.

    Attributes:
        calls: How often each part of each hook was called; those never called are there with 0.
    """

    def __init__(self) -> None:
        from kvtrace.probes import hooks

        self.calls: Counter[Place] = Counter()
        self._armed: dict[Place, tuple[int, bool]] = {}
        self._everywhere = False
        self._wrap = hooks.wrap
        hooks.wrap = self._watched

    def arm(self, place: Place, call: int, *, works: bool) -> None:
        """Have a place raise at its `call`-th call from now on, after doing its work if it `works`."""
        self._armed[place] = self.calls[place] + call, works

    def arm_all(self) -> None:
        """Have every hook raise at its first call."""
        self._everywhere = True

    def _watched(self, original: Any, hook: Any, report: Any) -> Any:
        parts = {part: function for part in PARTS if (function := getattr(hook, part)) is not None}
        watched = {part: self._watch(Place(hook.target, hook.lost, part), parts[part]) for part in parts}
        return self._wrap(original, hook._replace(**watched), report)

    def _watch(self, place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
        self.calls.setdefault(place, 0)

        def watched(*args: Any) -> Any:
            self.calls[place] += 1
            call, works = self._armed.get(place, (0, False))
            if not self._everywhere and self.calls[place] != call:
                return function(*args)
            if works:
                function(*args)
            raise InjectedError(f"{place.part} of {place.target}")

        return watched
