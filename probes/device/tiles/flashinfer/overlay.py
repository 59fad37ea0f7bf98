"""FlashInfer compiles its attention with the rewritten headers, in a workspace of kvtrace's own.

FlashInfer compiles CUDA sources at run time and keeps the libraries on disk. Whatever it compiles here goes to another
folder, named after what was rewritten, so its own cache never holds a rewritten kernel, and libraries that came with
the package are not taken instead. All other headers are copies: of a link, compilers would take the headers beside the
file that it names.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from kvtrace.probes.device.tiles.flashinfer import recorder, rewrite

GENERATE = ("gen_batch_prefill_module", "_gen_batch_prefill_primary_module")
"""Functions of `flashinfer.prefill` that make the specification of a module, the second one from 0.7 on. Decoding with
tensor cores uses these modules, too."""

BACKENDS = frozenset({"fa2", "fa3"})
"""FlashInfer's names of the templates that are rewritten."""

_ATTENTION, _HOPPER = "flashinfer/attention", "flashinfer/attention/hopper"
_REWRITTEN = {
    f"{_ATTENTION}/{rewrite.FORWARD_HEADER}": rewrite.forward,
    f"{_HOPPER}/{rewrite.KERNEL_HEADER}": rewrite.kernel,
    f"{_HOPPER}/{rewrite.MULTIPLY_HEADER}": rewrite.multiply,
}


class Specification(Protocol):
    """A module to be compiled, as FlashInfer describes it."""

    jit_library_path: Path

    def build_and_load(self) -> Any:
        """Compile what is not up to date, and load it."""


class Overlay:
    """The rewritten headers and the workspace, in the place of FlashInfer's own while `used`.

    Args:
        environment: The module `flashinfer.jit.env`.

    Raises:
        MismatchError: A header has another form.
        OSError: A header is not there, or the workspace cannot be written.
    """

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        installed = Path(environment.FLASHINFER_INCLUDE_DIR).resolve()
        headers = {name: rewriting((installed / name).read_text()) for name, rewriting in _REWRITTEN.items()}
        headers[f"{_HOPPER}/{rewrite.RECORDER_HEADER}"] = recorder.HEADER
        words = "\0".join([str(installed), str(environment.FLASHINFER_WORKSPACE_DIR), *headers.values()])
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        self.folder = Path(environment.FLASHINFER_CACHE_DIR).parent / "kvtrace" / f"flashinfer-{digest}"
        if not self.folder.exists():
            _lay_out(installed, headers, self.folder)
        nowhere = self.folder / "none"
        self._instead = {
            "FLASHINFER_INCLUDE_DIR": self.folder / "include",
            "FLASHINFER_JIT_DIR": self.folder / "cached_ops",
            "FLASHINFER_GEN_SRC_DIR": self.folder / "generated",
            "FLASHINFER_AOT_DIR": nowhere,
            "FLASHINFER_AOT_DIRS": (nowhere,),
            "FLASHINFER_AOT_PROVIDERS": (),
        }

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have FlashInfer find headers and workspace here."""
        names = [name for name in self._instead if hasattr(self._environment, name)]
        before = {name: getattr(self._environment, name) for name in names}
        try:
            for name in names:
                setattr(self._environment, name, self._instead[name])
            yield
        finally:
            for name, value in before.items():
                setattr(self._environment, name, value)


def _lay_out(installed: Path, headers: dict[str, str], folder: Path) -> None:
    """Make the folder whole or not at all: other processes may be doing the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="laying-", dir=folder.parent))
    try:
        shutil.copytree(installed, work / "include", copy_function=shutil.copyfile)
        for name, text in headers.items():
            (work / "include" / name).write_text(text)
        for name in ("cached_ops", "generated"):
            (work / name).mkdir()
        work.chmod(0o755)
        work.rename(folder)
    except OSError:
        shutil.rmtree(work, ignore_errors=True)
        if not folder.exists():
            raise


class RecordingSpecification:
    """A module's specification: compiles it with the rewritten headers, or as before where that fails.

    Args:
        make: Makes FlashInfer's own specification.
        overlay: The rewritten headers.
        facts: Address of what compiled kernels read (`recorder.FACTS`).
        failed: Is told why the module is FlashInfer's own.
        launched: Is called when a recording module has been loaded.
    """

    def __init__(
        self,
        make: Callable[[], Specification],
        overlay: Overlay,
        facts: int,
        failed: Callable[[str], None],
        launched: Callable[[], None],
    ) -> None:
        self._make = make
        self._overlay = overlay
        self._facts = facts
        self._failed = failed
        self._launched = launched

    def build_and_load(self) -> Any:
        """Compile what is not up to date, and load it."""
        try:
            with self._overlay.used():
                specification = self._make()
                module = specification.build_and_load()
                library = ctypes.CDLL(str(specification.jit_library_path))
            getattr(library, recorder.SYMBOL)(ctypes.c_uint64(self._facts))
        except Exception as error:  # the compiler, the loader or another FlashInfer: the engine gets its own module
            self._failed(f"{type(error).__name__}: {str(error)[:300]}")
            return self._make().build_and_load()
        self._launched()
        return module


def recording(
    generate: Callable[..., Specification],
    overlay: Overlay,
    facts: int,
    failed: Callable[[str], None],
    launched: Callable[[], None],
) -> Callable[..., Specification | RecordingSpecification]:
    """Make what stands for a function of `GENERATE`: its modules record.

    Args:
        generate: The original.
        overlay: As in `RecordingSpecification`, like what follows.
        facts: The facts' address.
        failed: Is told.
        launched: Is called.
    """

    def generate_recording(backend: str, *args: Any) -> Specification | RecordingSpecification:
        if backend not in BACKENDS:
            return generate(backend, *args)
        return RecordingSpecification(lambda: generate(backend, *args), overlay, facts, failed, launched)

    return generate_recording
