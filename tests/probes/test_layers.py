"""Stamps around calls of an attention implementation, by how the pass runs; in C as in Python."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from kvtrace.probes.device import cuda, layers
from kvtrace.probes.device.cuda_events import State
from kvtrace.probes.device.layers import LayerRecorder
from kvtrace.probes.device.levels import DeviceRecorder

STREAM = (1 << 63) + 7  # handles are addresses


class Launches:
    """Stands for `GraphTimestamps` and `EventRing`: notes which places get a stamp, and how."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, int]] = []
        self.steps: list[int | str] = []
        self.broken = False
        self.marked = False
        self.state = State(stale=True)

    def stamp(self, layer: int, place: int, *, first: bool = False) -> Callable[[int], None]:
        return partial(self._launch, "first" if first else "stamp", layer, place)

    def mark(self, place: int) -> Callable[[int], None]:
        return partial(self._launch, "mark", *divmod(place, 4))

    def _launch(self, how: str, layer: int, place: int, stream: int) -> None:
        if self.broken:
            raise RuntimeError("no such kernel")
        assert stream == STREAM
        self.made.append((how, layer, place))

    def clear(self, stream: int) -> None:
        self.steps.append("clear")

    def publish(self, step: int, stream: int) -> None:
        self.steps.append(step)

    def begin(self) -> None:
        self.steps.append("begin")

    def leave(self) -> None:
        self.steps.append("leave")

    def end(self, step: int) -> bool:
        if self.marked:
            self.steps.append(f"{step} marked")
        return self.marked


class Notes:
    """Stands for a `Recorder`."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.layers: dict[int, tuple[str | None, str | None]] = {}

    def note(self, kind: str, **facts: Any) -> None:
        if kind == "layer":
            self.layers[facts["index"]] = facts["timed"], facts["in_kernel"]
        else:
            self.said.append(f"{kind} {facts['state']}: {facts['detail']}")


class Implementation:
    """Attention implementation that vLLM calls in each layer."""

    def do_kv_cache_update(self, layer: str, *, slots: int) -> str:
        return f"{layer} {slots} written"

    def forward(self, query: int) -> float:
        return 1 / query


def recorder(*, capturing: bool = False) -> tuple[Any, Launches, Notes]:
    notes, launches = Notes(), Launches()
    made: Any = LayerRecorder(notes)  # type: ignore[arg-type]
    made._timestamps, made._event_ring = launches, launches
    made._stream, made._capturing = lambda: STREAM, lambda: capturing
    return made, launches, notes


@pytest.mark.parametrize(
    ("in_graphs", "eager", "between_pieces", "captured"),
    [  # captured, the write's end is the attention's start
        (True, [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3]),
        (False, [0, 1, 2, 3], [], []),
    ],
)
def test_where_a_layer_has_stamps(
    in_graphs: bool, eager: list[int], between_pieces: list[int], captured: list[int]
) -> None:
    # The last: a full graph is captured after piecewise ones, and nothing has said so.
    for capturing, in_pieces, places in (
        (False, False, eager),
        (False, True, between_pieces),
        (True, False, captured),
        (True, True, captured),
    ):
        made, launches, _ = recorder(capturing=capturing)
        implementation = Implementation()
        made._wrap(5, implementation, in_graphs=in_graphs)
        made.turn(in_pieces)
        assert implementation.do_kv_cache_update("model.layers.5", slots=3) == "model.layers.5 3 written"
        assert implementation.forward(2) == 0.5
        assert launches.made == [("stamp" if capturing else "mark", 5, place) for place in places]
        made._detach()
        assert "forward" not in vars(implementation)


def test_between_pieces_nothing_stands_in_for_calls_that_would_be_passed_on() -> None:
    made, launches, _ = recorder()
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=False)
    for _ in range(2):
        made.turn(True)
        assert vars(implementation) == {}
        made.turn(False)
        implementation.forward(2)
    assert launches.made == [("mark", 5, 2), ("mark", 5, 3)] * 2
    made.turn(True)
    made._detach()
    assert vars(implementation) == {}


def test_stamps_of_other_runs_of_the_model_are_forgotten() -> None:
    made, launches, _ = recorder()
    made._drain = SimpleNamespace(schedule=SimpleNamespace(enqueued=lambda: None))
    for step in (1, 2):
        made.begin(step, 7)
        made.end()
    made.other()  # a dummy, so that other ranks are not alone
    made.begin(3, 7)
    made.end()
    made.begin(0, 0)  # a dummy that is a pass
    made.begin(4, 7)
    steps = [step for step in launches.steps if step not in ("begin", "leave")]
    assert steps == ["clear", 1, 2, "clear", 3, "clear"]


def test_a_pass_is_taken_from_marks_where_there_are_some_and_else_from_its_graph() -> None:
    made, launches, _ = recorder()
    made._drain = SimpleNamespace(schedule=SimpleNamespace(enqueued=lambda: None))
    for step, launches.marked in ((1, False), (2, True), (3, False)):
        made.begin(step, 7)
        made.end()
    made.begin(0, 0)  # a dummy
    assert launches.steps == ["clear", "begin", 1, "begin", "2 marked", "begin", 3, "leave"]


def test_mla_attends_in_two_calls_of_one_window() -> None:
    class Latent:
        def do_kv_cache_update(self) -> None: ...
        def forward_mha(self) -> None: ...
        def forward_mqa(self) -> None: ...

    for capturing, how in ((True, "first"), (False, "mark")):
        made, launches, _ = recorder(capturing=capturing)
        implementation = Latent()
        made._wrap(5, implementation, in_graphs=True)
        implementation.forward_mha()
        implementation.forward_mqa()
        assert launches.made == [(how, 5, 2), ("stamp" if capturing else "mark", 5, 3)] * 2


@pytest.mark.parametrize("level", ["layer", "tile"])
@pytest.mark.parametrize("option", ["enable_dbo", "use_ubatching"])
def test_microbatches_are_not_recorded_as_if_there_were_none(level: str, option: str) -> None:
    notes = Notes()
    runner = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(**{option: True})))
    recorder: Any = DeviceRecorder(notes, level)  # type: ignore[arg-type]
    assert recorder.attach(runner) is False
    assert len(notes.said) == 1
    assert "--enable-dbo" in notes.said[0]


def test_a_launch_that_fails_is_told_of_once_and_costs_the_engine_nothing() -> None:
    made, launches, notes = recorder()
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=True)
    launches.broken = True
    assert implementation.forward(2) == 0.5
    assert implementation.do_kv_cache_update("a", slots=1) == "a 1 written"
    launches.broken = False
    assert implementation.forward(4) == 0.25
    assert launches.made == []
    assert notes.said == ["device stopped: RuntimeError: no such kernel"]


def test_a_copy_of_a_layer_has_what_the_layer_has() -> None:
    made, launches, _ = recorder()
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=True)
    assert copy.deepcopy(implementation).forward(2) == 0.5
    assert launches.made == [("mark", 5, 2), ("mark", 5, 3)]


def test_the_engines_own_exceptions_are_its_own() -> None:
    made, launches, notes = recorder()
    implementation = Implementation()
    made._wrap(5, implementation, in_graphs=True)
    with pytest.raises(ZeroDivisionError):
        implementation.forward(0)
    with pytest.raises(TypeError, match="query"):
        implementation.forward()  # type: ignore[call-arg]
    assert implementation.forward(2) == 0.5
    assert launches.made == [("mark", 5, place) for place in (2, 2, 2, 3)]
    assert notes.said == []


def test_what_a_launch_tells_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    error = 0

    def launch_kernel(*given: Any) -> int:
        arguments = ctypes.cast(given[9], ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        told.append((*given[:9], arguments[0][0], arguments[1][0], given[10] or 0))
        return error

    word, handle = ctypes.c_uint, ctypes.c_void_p
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, handle, *[word] * 7, handle, handle, handle)
    entry = prototype(launch_kernel)
    monkeypatch.setattr(cuda, "entry", lambda name: ctypes.cast(entry, handle).value)
    step = cuda.word(1)
    launch = cuda.launcher(99, 128, (step, cuda.pointer(1 << 40)))
    for step.value in 1, 2:
        launch(STREAM)
    assert told == [(99, 1, 1, 1, 128, 1, 1, 0, STREAM, number, 1 << 40, 0) for number in (1, 2)]
    error = 700
    with pytest.raises(RuntimeError, match="700"):
        launch(STREAM)


class Tensor:
    """A layer's KV."""

    shape, dtype = (2, 16), "torch.bfloat16"

    def data_ptr(self) -> int:
        return 0

    def stride(self) -> tuple[int, ...]:
        return (16, 1)


class Observed:
    """A recorder of three layers. Kernels of `installed` kinds can be rewritten, those of `launches` are launched."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        installed: set[str],
        launches: set[str],
        *,
        problems: tuple[str, ...] = (),
    ) -> None:
        self.capturing = False
        self.made, self.stamps, self.notes = recorder()
        self.made._capturing = lambda: self.capturing
        self.stamps.windows = lambda: "windows"  # type: ignore[attr-defined]
        self.whats: list[tuple[str, int | None]] = []
        self.put_back = 0
        self.failed: Callable[[str], None]

        def install(
            _: Any, told: dict[int, int], current: Any, kinds: frozenset[str], failed: Callable[[str], None]
        ) -> Any:
            assert told == {0: 0, 1: 1, 2: 2}
            assert (current.control, current.windows, kinds) == (None, "windows", {"read", "write"})
            self.current, self.failed = current, failed
            unseen = {"write": "compiled"} if installed == {"read"} and not problems else {}
            return SimpleNamespace(kinds=installed, unseen=unseen, problems=problems, undo=self._undo)

        class Launching(Implementation):
            def do_kv_cache_update(_, layer: str, *, slots: int) -> str:  # noqa: N805
                self._launch("write", launches)
                return "written"

            def forward(_, query: int) -> float:  # noqa: N805
                self._launch("read", launches)
                return 1 / query

        monkeypatch.setattr(layers.kernels, "keep_windows", lambda _: True)
        monkeypatch.setattr(layers.kernels, "install", install)
        monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: self.capturing)
        self.layers = [Launching() for _ in range(3)]
        self.made._layers = [(str(n), SimpleNamespace(impl=x, kv_cache=Tensor())) for n, x in enumerate(self.layers)]
        self.made._when = ["always", "outside_graphs", "always"]
        self.made._drain = SimpleNamespace(schedule=SimpleNamespace(enqueued=lambda: None))
        self.made._observe_in_kernels()
        self.made._wrap_layers()

    def _undo(self) -> None:
        self.put_back += 1

    def _launch(self, kind: str, launches: set[str]) -> None:
        self.whats.append((kind, self.current.what))
        if kind in launches and self.current.what is not None and not self.put_back:
            self.current.launched.add(kind)

    def run(self, step: int, *, capturing: bool = False) -> list[tuple[str, int, int]]:
        """A pass; the stamps of it."""
        self.stamps.made.clear()
        self.capturing = capturing
        self.stamps.marked = False
        if not capturing:
            self.made.begin(step, 7)
        for implementation in self.layers:
            assert implementation.do_kv_cache_update("a", slots=1) == "written"
            assert implementation.forward(2) == 0.5
        self.stamps.marked = any(how == "mark" for how, *_ in self.stamps.made)
        if not capturing:
            self.made.end()
        return list(self.stamps.made)


def test_kernels_that_observe_all_need_no_stamps_and_every_step_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(monkeypatch, {"read", "write"}, {"read", "write"})
    assert observed.run(0) == observed.run(0, capturing=True) == observed.run(1) == []
    assert observed.whats[:6] == [(kind, layer) for layer in range(3) for kind in ("write", "read")]
    assert observed.notes.layers == dict.fromkeys(range(3), (None, "write, attention"))
    assert 1 in observed.stamps.steps
    assert observed.notes.said == []


def test_what_kernels_do_not_observe_has_stamps_and_both_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention 4: a compiled kernel writes."""
    observed = Observed(monkeypatch, {"read"}, {"read"})
    observed.run(0)
    assert observed.run(0, capturing=True) == [("stamp", layer, place) for layer in (0, 2) for place in (0, 1)]
    assert observed.run(1) == [("mark", layer, place) for layer in range(3) for place in (0, 1)]
    assert [layer for kind, layer in observed.whats[:6] if kind == "write"] == [None] * 3
    assert observed.notes.layers == {
        layer: (when, "attention") for layer, when in enumerate(("always", "outside_graphs", "always"))
    }
    assert observed.stamps.steps[-2:] == ["1 marked", 1]


STAMPED = [("stamp", layer, place) for layer in (0, 2) for place in (0, 1, 3)]
BY_STAMPS = {0: ("always", None), 1: ("outside_graphs", None), 2: ("always", None)}


def test_kernels_of_another_form_are_left_alone_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(monkeypatch, {"read"}, set(), problems=("reshape_and_cache: no loop",))
    assert observed.put_back == 1
    assert observed.run(0, capturing=True) == STAMPED
    assert observed.notes.layers == BY_STAMPS
    [said] = observed.notes.said
    assert said == "device fallback: windows by stamps, not in the kernels: write kernels: reshape_and_cache: no loop"


def test_layers_that_launch_other_kernels_get_stamps_before_they_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(monkeypatch, {"read", "write"}, {"write"})
    observed.run(0)
    assert observed.run(0, capturing=True) == STAMPED[2:]  # the first write had been captured
    assert observed.run(0, capturing=True) == STAMPED
    assert observed.run(1) == [("mark", layer, place) for layer in range(3) for place in range(4)]
    assert observed.put_back == 1
    assert observed.notes.layers == BY_STAMPS
    assert observed.notes.said == [
        "device fallback: windows by stamps, not in the kernels: no rewritten kernel of the attention was launched"
    ]


def test_without_graphs_they_get_stamps_behind_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(monkeypatch, {"read", "write"}, set())
    assert observed.run(1) == []
    assert observed.run(2) == [("mark", layer, place) for layer in range(3) for place in range(4)]
    assert len(observed.notes.said) == 1


def test_a_kernel_that_cannot_be_launched_is_told_once_and_stamps_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(monkeypatch, {"read", "write"}, {"read", "write"})
    observed.run(1)
    for _ in range(2):
        observed.failed("TypeError: no such argument")
    assert observed.run(2) == [("mark", layer, place) for layer in range(3) for place in range(4)]
    assert observed.notes.layers == BY_STAMPS
    assert observed.notes.said == [
        "device fallback: windows by stamps, not in the kernels: a rewritten kernel could not be launched: "
        "TypeError: no such argument"
    ]
    observed.made._detach()
    assert all(vars(implementation) == {} for implementation in observed.layers)
