"""Times of tiles: programs have only the low word of the GPU's timer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.format.tile_file import Chunk
from kvtrace.ingest.derive.tile_columns import PROGRAM, WRITE, StepTiles

SECOND = 1_000_000_000


@given(
    opened_ns=st.integers(0, 1 << 50),
    pauses_ns=st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=40),
    spread_ns=st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=6),
    offset_ns=st.integers(-SECOND, SECOND),
)
def test_a_step_may_take_longer_than_the_timers_low_word_lasts(
    opened_ns: int, pauses_ns: list[int], spread_ns: list[int], offset_ns: int
) -> None:
    """Layers one after the other with pauses, as while kernels are compiled; a layer's programs side by side."""
    layers = opened_ns + np.cumsum(pauses_ns)
    times = np.sort(layers[:, None] + np.array([0, *spread_ns]), axis=1)
    layer = np.repeat(np.arange(len(layers)), times.shape[1])
    programs, writes = np.zeros(times.size, PROGRAM), np.zeros(len(layers), WRITE)
    programs["layer"], programs["start"] = layer, times.ravel() & 0xFFFFFFFF
    writes["layer"], writes["start"] = np.arange(len(layers)), layers & 0xFFFFFFFF
    chunk = Chunk(0, 0, 0, opened_ns, offset_ns, 0, len(programs), 0, len(writes), 0, 0)
    step = StepTiles(chunk, programs, np.zeros((0, 2), np.uint8), writes)
    assert np.array_equal(step.started_ns(writes), layers + offset_ns)
    assert np.array_equal(step.started_ns(programs), times.ravel() + offset_ns)


def test_layers_that_take_turns_are_not_a_round_of_the_timer_apart() -> None:
    """Two parts of a batch: the second one's first layer runs behind the first one's second."""
    programs = np.zeros(4, PROGRAM)
    programs["layer"], programs["start"] = [1, 0, 0, 1], [5_000, 1_000, 9_000, 12_000]
    programs = programs[[1, 0, 2, 3]][::-1]  # in the order in which they took their places
    step = StepTiles(Chunk(0, 0, 0, 500, 0, 0, 4, 0, 0, 0, 0), programs, np.zeros((0, 2), np.uint8), np.zeros(0, WRITE))
    assert step.started_ns(programs).tolist() == programs["start"].tolist()
