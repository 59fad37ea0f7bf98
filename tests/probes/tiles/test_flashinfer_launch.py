"""Facts that FlashInfer's recording kernels read: their words, and which rows of a batch are theirs."""

from __future__ import annotations

import ast
import re
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from kvtrace.probes.device.tiles import kernels
from kvtrace.probes.device.tiles.flashinfer import launch, recorder
from kvtrace.probes.device.tiles.launch import Current
from tests.probes.tiles.versions import version_folders


def batch(decodes: int, prefills: int, pages: list[int]) -> tuple[Any, Any]:
    """Make what vLLM's builder holds and has built for a batch whose rows have so many pages each."""
    indptr = np.cumsum([0, *pages], dtype=np.int32)
    builder = SimpleNamespace(paged_kv_indptr=SimpleNamespace(np=indptr))
    return builder, SimpleNamespace(num_decodes=decodes, num_prefills=prefills)


@pytest.mark.parametrize(
    ("decodes", "prefills", "before"),
    [(3, 2, (1 + 4 + 2, 3)), (0, 5, (0, 0)), (5, 0, (0, 0)), (1, 4, (1, 1))],
)
def test_decodes_lie_before_the_prefills_of_a_batch(decodes: int, prefills: int, before: tuple[int, int]) -> None:
    assert launch.rows_before(*batch(decodes, prefills, [1, 4, 2, 7, 3])) == before


def test_words_lie_where_kernels_read_them() -> None:
    control, windows = torch.zeros(4, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    words = launch.facts_of(Current(control, -1, windows), {7: 0}, 0x1000, (1 << 64) - 1, 60)
    found = dict(zip(recorder.FACTS, words, strict=True))
    assert (found["control"], found["windows"]) == (control.data_ptr(), windows.data_ptr())
    assert (found["heads"], found["factor"]) == ((1 << 64) - 1, (1 << 64) - 1)
    assert (found["layers"], found["shift"], found["pages_before"], found["rows_before"]) == (0x1000, 60, 0, 0)
    assert launch.facts_of(Current(None, 3), {7: 0}, 1, 1, 60)[:3] == [0, 0, 3]
    # two pairs are stored by one kernel each
    names = list(recorder.FACTS)
    assert names.index("windows") == names.index("control") + 1
    assert names.index("rows_before") == names.index("pages_before") + 1


class Told:
    """Facts without a device."""

    address = 0x7F00

    def __init__(self, current: Current, told: dict[int, int]) -> None:
        self.told, self.seen, self.forgotten = told, [], 0  # type: ignore[var-annotated]

    def see(self, before: tuple[int, int]) -> None:
        self.seen.append(before)

    def forget(self) -> None:
        self.forgotten += 1


class Builder:
    """vLLM's, of a batch with two decodes and a prefill."""

    def __init__(self) -> None:
        self.paged_kv_indptr: Any = SimpleNamespace(np=np.array([0, 5, 9, 40]))

    def build(self, common_prefix_len: int, *, fast_build: bool = False) -> Any:
        return SimpleNamespace(num_decodes=2, num_prefills=1, built=(common_prefix_len, fast_build))


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FlashInfer and vLLM's backend as modules, and the facts."""
    prefill: Any = types.ModuleType(launch.PREFILL)
    prefill.cleared = 0

    def get_batch_prefill_module() -> None: ...

    def clear() -> None:
        prefill.cleared += 1

    get_batch_prefill_module.cache_clear = clear  # type: ignore[attr-defined]
    prefill.get_batch_prefill_module = get_batch_prefill_module
    prefill.gen_batch_prefill_module = lambda backend, *_: f"own {backend}"
    backend: Any = types.ModuleType(launch.BACKEND)
    backend.FlashInferMetadataBuilder = type("FlashInferMetadataBuilder", (Builder,), {"build": Builder.build})
    for module in (prefill, backend, types.ModuleType(launch.ENVIRONMENT)):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(launch, "Overlay", lambda _: "overlay")
    made: list[Told] = []

    def facts(*arguments: Any) -> Told:
        made.append(Told(*arguments))
        return made[-1]

    monkeypatch.setattr(launch, "Facts", facts)
    return SimpleNamespace(prefill=prefill, builder=backend.FlashInferMetadataBuilder, facts=made)


@pytest.mark.parametrize("names", [["gen_batch_prefill_module"], list(launch.GENERATE)])
def test_modules_are_asked_for_again_and_everything_comes_back(flashinfer: Any, names: list[str]) -> None:
    for name in names:
        setattr(flashinfer.prefill, name, lambda backend, *_: f"own {backend}")
    before = {name: getattr(flashinfer.prefill, name) for name in names}
    build = flashinfer.builder.build
    installed = launch.install(Current(None), frozenset({"read", "write"}), pytest.fail, {64: 0})
    assert (installed.kinds, list(installed.unseen), installed.problems) == ({"read"}, ["write"], [])
    assert installed.finds_layers
    assert flashinfer.prefill.cleared == 1
    for name in names:
        generate = getattr(flashinfer.prefill, name)
        assert generate("trtllm-gen") == "own trtllm-gen"
        assert type(generate("fa3")).__name__ == type(generate("fa2")).__name__ == "RecordingSpecification"
    [facts] = flashinfer.facts
    assert facts.told == {64: 0}
    assert flashinfer.builder().build(3, fast_build=True).built == (3, True)
    assert facts.seen == [(9, 2)]
    installed.undo()
    assert {name: getattr(flashinfer.prefill, name) for name in names} == before
    assert flashinfer.builder.build is build
    assert (flashinfer.prefill.cleared, facts.forgotten) == (2, 1)


def test_a_batch_of_another_form_is_built_and_told_once(flashinfer: Any) -> None:
    failures: list[str] = []
    launch.install(Current(None), frozenset({"read"}), failures.append, {64: 0})
    builder = flashinfer.builder()
    builder.paged_kv_indptr = None
    assert [builder.build(0).built for _ in range(3)] == [(0, False)] * 3
    assert len(failures) == 1
    assert "the rows of a batch are not known: AttributeError" in failures[0]


def test_without_what_is_replaced_nothing_is(flashinfer: Any) -> None:
    build = flashinfer.builder.build
    del flashinfer.prefill.gen_batch_prefill_module
    installed = launch.install(Current(None), frozenset({"read"}), pytest.fail, {64: 0})
    assert (installed.kinds, flashinfer.facts) == (set(), [])
    assert "flashinfer.prefill has no gen_batch_prefill_module" in installed.problems[0]
    assert flashinfer.builder.build is build


def test_only_steps_with_news_launch_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: Any = object.__new__(launch.Facts)
    stored: list[Any] = []
    facts._before, facts._capturing = (0, 0), lambda: facts.capturing
    facts._store = lambda *what: stored.append(what)
    facts.capturing = False
    for before in ((0, 0), (7, 3), (7, 3), (9, 3), (0, 0), (0, 0)):
        facts.see(before)
    assert stored == [("pages_before", 7, 3), ("pages_before", 9, 3), ("pages_before", 0, 0)]
    facts.capturing = True  # a graph would store it at each replay
    facts.see((5, 5))
    assert len(stored) == 3
    facts.capturing = False
    facts.see((5, 5))
    assert stored[3:] == [("pages_before", 5, 5)]


def test_layers_are_found_by_the_address_of_their_cache(flashinfer: Any) -> None:
    def layer(address: int) -> Any:
        cache = SimpleNamespace(data_ptr=lambda: address, shape=(1,), stride=lambda: (1,), dtype=torch.bfloat16)
        return SimpleNamespace(impl=type("FlashInferImpl", (), {})(), kv_cache=cache)

    layers: Any = [(str(address), layer(address)) for address in (64, 128, 192)]
    told = {0: 1 << 8 | 1 << 16, 2: 2 | 1 << 8}
    installed = kernels.install(layers, told, Current(None), frozenset({"read"}), pytest.fail)
    assert installed.kinds == {"read"}
    assert flashinfer.facts[0].told == {64: told[0], 192: told[2]}


@pytest.fixture(params=version_folders() or [None], ids=lambda folder: folder.name if folder else "none")
def backend_source(request: pytest.FixtureRequest) -> str:
    """The source of vLLM's backend, of several versions."""
    path = request.param and request.param / (launch.BACKEND.replace(".", "/") + ".py")
    if not path or not path.exists():
        pytest.skip("needs vLLM's sources: KVTRACE_VLLM_SOURCES")
    return str(path.read_text())


def test_vllm_has_what_is_asked_of_it(backend_source: str) -> None:
    classes = {node.name: node for node in ast.parse(backend_source).body if isinstance(node, ast.ClassDef)}
    builder = classes["FlashInferMetadataBuilder"]
    [build] = [node for node in builder.body if isinstance(node, ast.FunctionDef) and node.name == "build"]
    # A list of pages for the whole batch: a prefill's rows point behind the decodes' pages.
    told = " ".join(ast.unparse(build).split())
    assert re.search(r"paged_kv_indptr_prefill_cpu = self\.paged_kv_indptr\.cpu\[prefill_start:", told)
    assert "prefill_start = num_decodes" in told
    assert "self.paged_kv_indptr.np[" in ast.unparse(builder)
    fields = {node.target.id for node in classes["FlashInferMetadata"].body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert fields >= {"num_decodes", "num_prefills"}
    implementation = ast.unparse(classes[kernels.FLASHINFER])
    for attribute in ("supports_xqa_or_trtllm_gen_decode", "kv_cache_dtype", "sinks", "window_left"):
        assert f"self.{attribute}" in implementation
