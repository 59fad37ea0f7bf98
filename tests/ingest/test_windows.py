"""Windows of layers without stamps in CUDA graphs: which have stamps, and what ingest lays between them."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.ingest.derive.requests import insert_windows_between, insert_writes_before_attention
from kvtrace.probes.device.model import alike, timing
from tests.ingest.traces import Events

SPACINGS = st.integers(1, 16)
WINDOWS = "SELECT step, layer, kind::VARCHAR, start_ns, end_ns, observed FROM kv_window ORDER BY step, layer, kind"


@pytest.mark.parametrize(
    ("layers", "in_graphs"),
    [(1, [0]), (2, [0, 1]), (5, [0, 4]), (17, [0, 16]), (18, [0, 16, 17]), (32, [0, 16, 31])],
)
def test_of_layers_that_are_alike_some_have_stamps_in_graphs(layers: int, in_graphs: list[int]) -> None:
    when = timing(layers, (), alike=True)
    assert [layer for layer in range(layers) if when[layer] == "always"] == in_graphs
    assert set(when) <= {"always", "outside_graphs"}


def test_layers_that_differ_all_have_stamps_and_named_ones_alone() -> None:
    assert timing(6, (), alike=False) == ["always"] * 6
    assert timing(4, (1, 3, 9), alike=True) == ["never", "always", "never", "always"]


class Tensor:
    """Stand-in for a KV tensor."""

    dtype = "torch.bfloat16"

    def __init__(self, heads: int) -> None:
        self.shape = (2, 100, 16, heads, 128)

    def data_ptr(self) -> int:
        return id(self)

    def stride(self) -> tuple[int, ...]:
        return (1,)


@pytest.mark.parametrize(
    ("last", "layers", "same"),
    [
        ({}, 4, True),
        ({"sliding_window": 512}, 4, False),
        ({"kv_sharing_target_layer_name": "model.layers.0.attn"}, 4, False),
        ({"kv_cache": Tensor(4)}, 4, False),
        ({"impl": "of another class"}, 4, False),
        ({"mlp": (64, 32)}, 4, False),
        ({"mlp": None}, 4, False),
        ({}, 6, False),  # two layers keep no KV: something else goes on between attentions
        ({}, 3, False),  # one belongs to a draft model
    ],
)
def test_layers_are_alike_if_they_do_the_same_with_all_there_are(last: dict[str, Any], layers: int, same: bool) -> None:
    common = {"impl": object(), "kv_cache": Tensor(8), "sliding_window": None, "kv_sharing_target_layer_name": None}
    owners: list[tuple[str, Any]] = [
        (f"model.layers.{layer}.self_attn.attn", SimpleNamespace(**common | (last if layer == 3 else {})))
        for layer in range(4)
    ]

    def get_submodule(name: str) -> Any:
        shape = last.get("mlp", (32, 32)) if name == "model.layers.3" else (32, 32)
        if shape is None:
            raise AttributeError(name)
        return SimpleNamespace(named_parameters=lambda: [("mlp.up.weight", SimpleNamespace(shape=shape))])

    runner = SimpleNamespace(
        model_config=SimpleNamespace(get_num_layers=lambda _: layers),
        parallel_config=None,
        get_model=lambda: SimpleNamespace(get_submodule=get_submodule),
    )
    assert alike(runner, owners) is same


@functools.cache
def shared() -> Events:
    """Most of a property's time would be the schema's."""
    return Events()


def trace(when: list[str], in_kernel: str | None = None) -> Events:
    events = shared()
    for table in ("kv_layer", "kv_window"):
        events.connection.execute(f"DELETE FROM {table}")
    for layer, timed in enumerate(when):
        events.add("kv_layer", process_id=2, layer=layer, timed=timed, in_kernel=in_kernel)
    return events


def derive(events: Events) -> None:
    """Derive windows as ingest does."""
    insert_windows_between(events.connection)
    insert_writes_before_attention(events.connection)


def window(events: Events, step: int, layer: int, kind: str, start: int, end: int) -> None:
    more: dict[str, Any] = {"kind": kind, "start_ns": start, "end_ns": end, "observed": True}
    events.add("kv_window", process_id=2, engine_id=1, step=step, layer=layer, **more)


def test_in_a_graph_they_lie_evenly_between_the_layers_that_have_some() -> None:
    events = trace(timing(5, (), alike=True))
    for step, layers in ((1, (0, 4)), (2, range(5))):
        for layer in layers:
            window(events, step, layer, "write", 1000 + 100 * layer, 1010 + 100 * layer)
            window(events, step, layer, "attention", 1010 + 100 * layer, 1050 + 100 * layer)
    derive(events)
    assert events.rows(WINDOWS) == [
        (step, layer, kind, start + 100 * layer, end + 100 * layer, step == 2 or layer in (0, 4))
        for step in (1, 2)
        for layer in range(5)
        for kind, start, end in (("write", 1000, 1010), ("attention", 1010, 1050))
    ]


def test_a_layer_that_was_held_up_moves_no_window() -> None:
    """Another process had the GPU during the first layer's attention."""
    events = trace(timing(17, (), alike=True, spacing=8))
    for layer in (0, 8, 16):
        held_up = 5000 * (layer == 0)
        start = 100 * layer + 5000 * (layer > 0)
        window(events, 1, layer, "write", start, start + 10)
        window(events, 1, layer, "attention", start + 10, start + 50 + held_up)
    derive(events)
    assert [row[2:] for row in events.rows(WINDOWS) if not row[-1]] == [
        (kind, start + 5000 + 100 * layer, end + 5000 + 100 * layer, False)
        for layer in (*range(1, 8), *range(9, 16))
        for kind, start, end in (("write", 0, 10), ("attention", 10, 50))
    ]


def test_nothing_is_derived_for_layers_that_were_not_asked_for() -> None:
    events = trace(timing(5, (0, 4), alike=True))
    for layer in (0, 4):
        window(events, 1, layer, "attention", 1000 * layer, 1000 * layer + 10)
    derive(events)
    assert len(events.rows(WINDOWS)) == 2


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 50), st.integers(0, 50), st.integers(0, 20), SPACINGS)
def test_derived_windows_are_the_windows_where_layers_take_equally_long(
    layers: int, write: int, attention: int, rest: int, gap: int, spacing: int
) -> None:
    events = trace(when := timing(layers, (), alike=True, spacing=spacing))
    expected = []
    for layer in range(layers):
        start = 10**18 + layer * (write + gap + attention + rest)
        for kind, begin, length in (("write", start, write), ("attention", start + write + gap, attention)):
            expected.append((1, layer, kind, begin, begin + length, when[layer] == "always"))
            if when[layer] == "always":
                window(events, 1, layer, kind, begin, begin + length)
    derive(events)
    assert events.rows(WINDOWS) == expected


@pytest.mark.parametrize("in_kernel", [None, "attention"])
@given(layers=st.integers(2, 33), spacing=SPACINGS, data=st.data())
def test_windows_never_overlap(in_kernel: str | None, layers: int, spacing: int, data: st.DataObject) -> None:
    """However long the layers with stamps took, and what was between them; also where kernels observe attention."""
    events = trace(when := timing(layers, (), alike=True, spacing=spacing), in_kernel=in_kernel)
    time = 10**18
    for layer in range(layers):
        for kind in ("write", "attention"):
            if when[layer] == "always" or kind == in_kernel:
                start = time + data.draw(st.integers(0, 1000))
                time = start + data.draw(st.integers(0, 1000))
                window(events, 1, layer, kind, start, time)
    derive(events)
    found = events.rows(WINDOWS)
    assert [row[1:3] for row in found] == [(n, kind) for n in range(layers) for kind in ("write", "attention")]
    times = [time for row in found for time in row[3:5]]
    assert times == sorted(times)


@given(st.lists(st.sampled_from([0, 1 << 30, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63)]), min_size=8, max_size=8))
def test_no_time_stops_ingest(times: list[int]) -> None:
    """A damaged record may have any."""
    events = trace(timing(9, (), alike=True))
    for number, (layer, kind) in enumerate(itertools.product((0, 8), ("write", "attention"))):
        window(events, 1, layer, kind, *times[2 * number : 2 * number + 2])
    derive(events)
    assert [row for row in events.rows(WINDOWS) if not row[-1] and not 0 <= row[3] <= row[4] <= 1 << 62] == []


def test_a_write_without_stamps_lies_ahead_of_its_observed_attention() -> None:
    """FlashAttention 4: kernels observe every attention, and stamps of layers 0 and 4 the writes, in graphs."""
    events = trace(timing(5, (), alike=True), in_kernel="attention")
    for layer in range(5):
        window(events, 1, layer, "attention", 1000 * layer + 300, 1000 * layer + 900)
        if layer in (0, 4):
            window(events, 1, layer, "write", 1000 * layer + 100, 1000 * layer + 250)
    derive(events)
    assert events.rows(WINDOWS) == [
        (1, layer, kind, 1000 * layer + start, 1000 * layer + end, kind == "attention" or layer in (0, 4))
        for layer in range(5)
        for kind, start, end in (("write", 100, 250), ("attention", 300, 900))
    ]


def test_no_writes_are_derived_where_kernels_observe_them_or_no_layer_has_any() -> None:
    for in_kernel, kinds in (("write, attention", ("write", "attention")), ("attention", ("attention",))):
        events = trace(timing(5, (), alike=True), in_kernel=in_kernel)
        for layer in range(5):
            for number, kind in enumerate(kinds):
                window(events, 1, layer, kind, 1000 * layer + 100 * number, 1000 * layer + 100 * number + 50)
        derive(events)
        assert all(row[-1] for row in events.rows(WINDOWS))
        assert len(events.rows(WINDOWS)) == 5 * len(kinds)
