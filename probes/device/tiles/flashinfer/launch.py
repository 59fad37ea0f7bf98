"""FlashInfer's recording modules in the place of its own, and the words that their kernels read.

FlashInfer asks one function for each module's specification, compiles it and keeps the module for the process. From
then on kernels are launched by compiled code, so nothing is told at a launch: kernels find their layer by the address
of its K.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kvtrace.probes.device.cuda import Module, pointer, word
from kvtrace.probes.device.tiles.flashinfer import recorder
from kvtrace.probes.device.tiles.flashinfer.overlay import GENERATE, Overlay, recording
from kvtrace.probes.device.tiles.launch import Current, Installed
from kvtrace.probes.device.tiles.source import MismatchError

if TYPE_CHECKING:
    from torch import Tensor

PREFILL, ENVIRONMENT, BACKEND = "flashinfer.prefill", "flashinfer.jit.env", "vllm.v1.attention.backends.flashinfer"
_BUILDER, _MODULES = "FlashInferMetadataBuilder", "get_batch_prefill_module"

_SOURCE = r"""
extern "C" __global__ void kvt_put_two(unsigned long long* place, unsigned long long first, unsigned long long second) {
    place[0] = first;
    place[1] = second;
}
"""

_kept: list[Facts] = []
"""Captured graphs read facts as long as the process lives."""


def facts_of(current: Current, told: Mapping[int, int], table_address: int, factor: int, shift: int) -> list[int]:
    """List the words that kernels read, in the order of `recorder.FACTS`; no row is before another kernel's yet."""
    named = {
        "control": _address(current.control),
        "windows": _address(current.windows),
        "heads": current.heads & (1 << 64) - 1,
        "layers": table_address,
        "factor": factor,
        "shift": shift,
        "pages_before": 0,
        "rows_before": 0,
    }
    return [named[name] for name in recorder.FACTS]


def rows_before(builder: Any, metadata: Any) -> tuple[int, int]:
    """Count what lies before a batch's prefills, which a kernel of their own reads: pages and rows of its decodes.

    Args:
        builder: vLLM's, with the list of pages that it has just made.
        metadata: What it has built.

    Raises:
        AttributeError: Another vLLM.
    """
    decodes = int(metadata.num_decodes)
    if not decodes or not metadata.num_prefills:
        return 0, 0
    return int(builder.paged_kv_indptr.np[decodes]), decodes


class Facts:
    """Words in the device's memory that kernels read (`recorder.FACTS`), with the table of layers.

    Args:
        current: Where kernels write to.
        told: What a layer's kernels are told, by the address of its K.

    Raises:
        ImportError: CuPy is not installed.
        ValueError: There is no layer.
    """

    def __init__(self, current: Current, told: Mapping[int, int]) -> None:
        import torch

        entries, factor, shift = recorder.table(told)
        self._table = _on_device(entries)
        self._words = _on_device(facts_of(current, told, _address(self._table), factor, shift))
        self._memory = current.control, current.windows  # kernels look there before they know that it is over
        self.address = _address(self._words)
        self._before = 0, 0
        self._first, self._second = word(0), word(0)
        module = Module(_SOURCE)
        self._put = {
            name: module.launch("kvt_put_two", 1, self._place(name), self._first, self._second)
            for name in ("control", "pages_before")
        }
        self._capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        self._stream: Callable[[], int] = partial(torch._C._cuda_getCurrentRawStream, torch.cuda.current_device())
        _kept.append(self)

    def _place(self, name: str) -> Any:
        return pointer(self.address + 8 * recorder.FACTS.index(name))

    def _store(self, name: str, first: int, second: int) -> None:
        """Have the device store two neighbouring words, in the order of the stream."""
        self._first.value, self._second.value = first, second
        self._put[name](self._stream())

    def see(self, before: tuple[int, int]) -> None:
        """Tell kernels that are launched from now on what lies before a batch's prefills, where that is news."""
        if before != self._before and not self._capturing():
            self._before = before
            self._store("pages_before", *before)

    def forget(self) -> None:
        """Have kernels write nothing any more."""
        self._store("control", 0, 0)


class Followed:
    """Stands for the builder's `build`: kernels learn which rows of the batch are theirs.

    Args:
        build: vLLM's.
        see: Is told what lies before the prefills.
        failed: Is told once that this is not known.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        see: Callable[[tuple[int, int]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._build = build
        self._see = see
        self._failed = failed
        self._alive = True

    def __get__(self, builder: object, _: type | None = None) -> Callable[..., Any]:
        return self if builder is None else partial(self, builder)

    def __call__(self, builder: Any, *args: Any, **kwargs: Any) -> Any:
        """Build a batch's metadata."""
        metadata = self._build(builder, *args, **kwargs)
        if self._alive:
            try:
                self._see(rows_before(builder, metadata))
            except Exception as error:
                self._alive = False
                self._failed(f"the rows of a batch are not known: {type(error).__name__}: {str(error)[:300]}")
        return metadata


def install(
    current: Current, kinds: frozenset[str], failed: Callable[[str], None], told: Mapping[int, int]
) -> Installed:
    """Have FlashInfer compile modules that record, if reads are wanted. `problems` says why, where it cannot.

    Args:
        current: Where kernels write to.
        kinds: Of kernels.
        failed: Is told why a module or a batch is not recorded.
        told: What a layer's kernels are told, by the address of its K.

    Raises:
        ImportError: CuPy is not installed.
    """
    done = Installed()
    done.finds_layers = True
    done.unseen["write"] = "cache writes are not recorded: a compiled kernel of vLLM's makes them"
    if "read" not in kinds:
        return done
    try:
        prefill, environment = importlib.import_module(PREFILL), importlib.import_module(ENVIRONMENT)
        builder = getattr(importlib.import_module(BACKEND), _BUILDER)
        names = [name for name in GENERATE if hasattr(prefill, name)]
        if not names:
            raise MismatchError(f"{PREFILL} has no {GENERATE[0]}")
        forget_modules = getattr(prefill, _MODULES).cache_clear
        overlay = Overlay(environment)
    except (MismatchError, ImportError, AttributeError, OSError) as error:
        done.problems.append(f"FlashInfer: {error}")
        return done
    facts = Facts(current, told)
    for name in names:
        made = recording(getattr(prefill, name), overlay, facts.address, failed, lambda: current.launched.add("read"))
        done.put(prefill, name, made)
    done.put(builder, "build", Followed(builder.build, facts.see, failed))
    forget_modules()
    done.at_undo(forget_modules)
    done.at_undo(facts.forget)
    done.kinds.add("read")
    return done


def _on_device(words: list[int]) -> Tensor:
    """Put words of 64 bits into the device's memory."""
    import torch

    signed = [number - (number >> 63 << 64) for number in words]
    with torch.inference_mode(False):
        return torch.tensor(signed, dtype=torch.int64, device=torch.cuda.current_device())


def _address(memory: Tensor | None) -> int:
    """Return the address of memory; 0: there is none."""
    return 0 if memory is None else int(memory.data_ptr())
