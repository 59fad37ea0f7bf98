"""Where FlashInfer compiles with rewritten headers: beside its own cache, and with its own headers if that fails."""

from __future__ import annotations

import ctypes
import subprocess
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvtrace.probes.device.tiles.flashinfer import recorder, rewrite
from kvtrace.probes.device.tiles.flashinfer.overlay import Overlay, recording
from kvtrace.probes.device.tiles.source import MismatchError
from tests.probes.tiles.test_flashinfer import FORWARD, KERNEL, PRODUCTS

ATTENTION = Path("flashinfer/attention")
HOPPER = ATTENTION / "hopper"


@pytest.fixture
def environment(tmp_path: Path) -> types.ModuleType:
    """FlashInfer's `jit.env` of an installation with a few headers."""
    include = tmp_path / "installed" / "include"
    (include / HOPPER).mkdir(parents=True)
    for name, text in ((rewrite.KERNEL_HEADER, KERNEL), (rewrite.MULTIPLY_HEADER, PRODUCTS), ("epilogue.cuh", "// 1")):
        (include / HOPPER / name).write_text(text)
    (include / ATTENTION / rewrite.FORWARD_HEADER).write_text(FORWARD)
    (include / "flashinfer" / "math.cuh").write_text("// 2")
    module: Any = types.ModuleType("env")
    module.FLASHINFER_CACHE_DIR = tmp_path / ".cache" / "flashinfer"
    module.FLASHINFER_WORKSPACE_DIR = module.FLASHINFER_CACHE_DIR / "0.7.2" / "90a"
    module.FLASHINFER_JIT_DIR = module.FLASHINFER_WORKSPACE_DIR / "cached_ops"
    module.FLASHINFER_GEN_SRC_DIR = module.FLASHINFER_WORKSPACE_DIR / "generated"
    module.FLASHINFER_AOT_DIR = tmp_path / "installed" / "aot"
    module.FLASHINFER_INCLUDE_DIR = include
    return module


def test_rewritten_headers_stand_among_copies_of_the_installed_ones(environment: Any) -> None:
    folder = Overlay(environment).folder
    hopper = folder / "include" / HOPPER
    assert (hopper / rewrite.KERNEL_HEADER).read_text() == rewrite.kernel(KERNEL)
    assert (hopper / rewrite.MULTIPLY_HEADER).read_text() == rewrite.multiply(PRODUCTS)
    assert (hopper.parent / rewrite.FORWARD_HEADER).read_text() == rewrite.forward(FORWARD)
    assert (hopper / rewrite.RECORDER_HEADER).read_text() == recorder.HEADER
    for name in (HOPPER / "epilogue.cuh", Path("flashinfer/math.cuh")):
        assert (folder / "include" / name).read_text() == (environment.FLASHINFER_INCLUDE_DIR / name).read_text()
        # of a link, a compiler would take the headers that lie beside the installed one
        assert not any(each.is_symlink() for each in (folder / "include" / name, *(folder / "include" / name).parents))
    assert (environment.FLASHINFER_INCLUDE_DIR / HOPPER / rewrite.KERNEL_HEADER).read_text() == KERNEL
    assert not environment.FLASHINFER_CACHE_DIR.exists()
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


def test_a_folder_serves_until_flashinfer_or_kvtrace_changes(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Overlay(environment).folder
    (folder / "cached_ops" / "library.so").touch()
    assert Overlay(environment).folder == folder
    assert (folder / "cached_ops" / "library.so").exists()
    other = environment.FLASHINFER_INCLUDE_DIR / HOPPER / rewrite.MULTIPLY_HEADER
    other.write_text(PRODUCTS + "// new\n")
    newer = Overlay(environment).folder
    monkeypatch.setattr(recorder, "HEADER", recorder.HEADER + "// new\n")
    assert len({folder, newer, Overlay(environment).folder}) == 3


def test_flashinfers_own_places_come_back_whatever_happens(environment: Any) -> None:
    before, overlay = dict(vars(environment)), Overlay(environment)
    with suppress(ZeroDivisionError), overlay.used():
        seen = dict(vars(environment))
        1 / 0  # noqa: B018
    assert seen["FLASHINFER_INCLUDE_DIR"] == overlay.folder / "include"
    assert seen["FLASHINFER_JIT_DIR"] == overlay.folder / "cached_ops"
    assert not seen["FLASHINFER_AOT_DIR"].exists()  # libraries that came with the package are not taken
    assert vars(environment) == before  # what this version does not have was not added


def test_a_header_of_another_form_and_a_place_that_cannot_be_written_are_told(environment: Any, tmp_path: Path) -> None:
    environment.FLASHINFER_CACHE_DIR = tmp_path / "file" / "flashinfer"
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Overlay(environment)
    (environment.FLASHINFER_INCLUDE_DIR / HOPPER / rewrite.KERNEL_HEADER).write_text("")
    with pytest.raises(MismatchError):
        Overlay(environment)


class FlashInfer:
    """Stands in for FlashInfer: compiles a library with what it finds in the include folder."""

    def __init__(self, environment: Any) -> None:
        self.environment, self.asked = environment, []  # type: ignore[var-annotated]
        self.broken: Exception | None = None

    def generate(self, *arguments: Any) -> Any:
        self.asked.append(arguments)
        specification = types.SimpleNamespace(jit_library_path=self.environment.FLASHINFER_JIT_DIR / "module.so")

        def build_and_load() -> str:
            rewritten = (self.environment.FLASHINFER_INCLUDE_DIR / HOPPER / rewrite.RECORDER_HEADER).exists()
            if not rewritten:
                return "own"
            if self.broken:
                raise self.broken
            source = "unsigned long long told; void kvt_facts(unsigned long long address) { told = address; }"
            path = specification.jit_library_path
            subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-xc", "-"], input=source.encode(), check=True)
            return "recording"

        specification.build_and_load = build_and_load
        return specification


@pytest.mark.parametrize("template", ["fa2", "fa3"])
def test_modules_are_compiled_with_the_overlay_and_told_where_the_facts_are(environment: Any, template: str) -> None:
    flashinfer, overlay, failures, launched = FlashInfer(environment), Overlay(environment), [], []
    generate = recording(flashinfer.generate, overlay, 0x7F12_3456_7890, failures.append, lambda: launched.append(1))
    assert generate("trtllm-gen", 1).build_and_load() == "own"
    assert (launched, failures) == ([], [])
    assert generate(template, 128).build_and_load() == "recording"
    assert flashinfer.asked == [("trtllm-gen", 1), (template, 128)]
    library = ctypes.CDLL(str(overlay.folder / "cached_ops" / "module.so"))
    assert ctypes.c_uint64.in_dll(library, "told").value == 0x7F12_3456_7890
    assert (launched, failures) == ([1], [])


@pytest.mark.parametrize(
    "error", [RuntimeError("Ninja build failed"), OSError("no space left"), AttributeError("plan")]
)
def test_what_does_not_compile_is_told_and_the_engine_gets_its_own_module(environment: Any, error: Exception) -> None:
    flashinfer, overlay, failures, launched = FlashInfer(environment), Overlay(environment), [], []
    flashinfer.broken = error
    generate = recording(flashinfer.generate, overlay, 1, failures.append, lambda: launched.append(1))
    assert generate("fa3").build_and_load() == "own"
    assert failures == [f"{type(error).__name__}: {error}"]
    assert launched == []
