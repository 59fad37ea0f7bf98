"""Which calls of an attention implementation have stamps, by how the pass runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from kvtrace.probes.device.layers import LayerRecorder


class Launches:
    """Stands for `Stamps`: notes which places get a stamp."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def stamp(self, layer: int, place: int, *, first: bool = False) -> Callable[[int], None]:
        return lambda stream: self.made.append((layer, place))


class Implementation:
    """What vLLM calls in each layer."""

    def do_kv_cache_update(self) -> str:
        return "written"

    def forward(self) -> str:
        return "attended"


@pytest.mark.parametrize(
    ("capturing", "in_pieces", "in_graphs", "places"),
    [
        (False, False, True, [0, 1, 2, 3]),
        (False, False, False, [0, 1, 2, 3]),
        (False, True, True, [0, 1, 2, 3]),
        (False, True, False, []),
        (True, False, True, [0, 1, 3]),  # the write's end is the attention's start
        (True, False, False, []),
    ],
)
def test_where_a_layer_has_stamps(capturing: bool, in_pieces: bool, in_graphs: bool, places: list[int]) -> None:
    made: Any = LayerRecorder(None, lambda: in_pieces)  # type: ignore[arg-type]
    made._stamps = launches = Launches()
    made._stream, made._capturing = lambda: 7, lambda: capturing
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=in_graphs)
    assert (implementation.do_kv_cache_update(), implementation.forward()) == ("written", "attended")
    assert launches.made == [(5, place) for place in places]
    made._detach()
    assert "forward" not in vars(implementation)
