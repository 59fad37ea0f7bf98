"""FlashAttention 4's rewritten kernels in the place of vLLM's own.

vLLM calls one Python function for each launch (`_flash_attn_fwd`). It chooses the kernel's class, compiles it for the
arguments' form, keeps it in a cache and launches it. For a layer to record, it is called with the class that records,
with a cache of kvtrace's own, and with one more scalar: the layer. vLLM's cache, in memory or on disk, never holds a
rewritten kernel.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from kvtrace.probes.device.tiles.fa4 import rewrite
from kvtrace.probes.device.tiles.launch import Current, Installed
from kvtrace.probes.device.tiles.source import MismatchError

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "vllm.vllm_flash_attn.cute"
INTERFACE = f"{PACKAGE}.interface"
_FORWARD = "_flash_attn_fwd"
_LARGEST_PAGE = 16 * 511
"""Tokens of a block that a program's record can hold."""

_UNSEEN = {
    "qv": "MLA's queries",
    "block_sparse_tensors": "sparse blocks",
    "gather_kv_indices": "gathered keys",
    "fp8_kv_dequant": "an FP8 cache read by a 16-bit kernel",
}
"""Arguments with which another kernel or another part of this one runs."""


class Recording(Protocol):
    """The class of a kernel that records."""

    kvt_made: ClassVar[bool]
    """A kernel of this class has been made: vLLM chose it."""


class RecordingForward:
    """Stands for `_flash_attn_fwd`: records in the layers to record, where the kernel can.

    Args:
        interface: The module that holds the original.
        name: The name of the kernel's class there.
        kernel: The class that records, by a cache block's tokens.
        scalar: Makes a number that compiled kernels take at each launch.
        current: The layer of the kernels that are launched now.
        failed: Is told once why launches are no longer recorded.
    """

    def __init__(
        self,
        interface: types.ModuleType,
        name: str,
        kernel: Callable[[int], type[Recording]],
        scalar: Callable[[int], object],
        current: Current,
        failed: Callable[[str], None],
    ) -> None:
        self._interface = interface
        self._forward = getattr(interface, _FORWARD)
        self._kernel = kernel
        self._scalar = scalar
        self._name, self._own = name, getattr(interface, name)
        self._current = current
        self._failed = failed
        self._recording = True
        self._compiled: dict[int, tuple[type[Recording], dict[object, object]]] = {}
        self.compile_cache = self._forward.compile_cache
        """Read by the original, which looks itself up under its name: its own cache, or that of recording kernels."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def __call__(self, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch attention."""
        what = self._current.what
        if what is None or not self._recording or kwargs.get("page_table") is None:
            return self._forward(q, k, v, *args, **kwargs)
        if unseen := next((why for name, why in _UNSEEN.items() if _is_given(kwargs.get(name))), None):
            self._give_up(f"{unseen} cannot be recorded")
            return self._forward(q, k, v, *args, **kwargs)
        page_tokens = int(k.shape[1])
        try:
            kernel, cache = self._for_pages(page_tokens)
        except MismatchError as error:
            self._give_up(str(error))
            return self._forward(q, k, v, *args, **kwargs)
        scalars = (*(kwargs.pop("aux_scalars", None) or ()), self._scalar(what))
        setattr(self._interface, self._name, kernel)
        self.compile_cache = cache
        try:
            launched = self._forward(q, k, v, *args, **kwargs, aux_scalars=scalars)
            if kernel.kvt_made:
                self._current.launched.add("read")
            else:  # vLLM chose another class, which takes no notice of the scalar
                self._give_up("FlashAttention 4 launches another kernel")
            return launched
        except Exception as error:  # it did not compile: nothing was launched
            self._give_up(f"{type(error).__name__}: {str(error)[:300]}")
        finally:
            setattr(self._interface, self._name, self._own)
            self.compile_cache = self._forward.compile_cache
        kwargs = {**kwargs, **({"aux_scalars": scalars[:-1]} if scalars[:-1] else {})}
        return self._forward(q, k, v, *args, **kwargs)

    def _for_pages(self, tokens: int) -> tuple[type[Recording], dict[object, object]]:
        if tokens not in self._compiled:
            if self._current.control is not None and (tokens % 16 or tokens > _LARGEST_PAGE):
                raise MismatchError(f"blocks of {tokens} tokens do not fit a record")
            self._compiled[tokens] = self._kernel(tokens), {}
        return self._compiled[tokens]

    def _give_up(self, why: str) -> None:
        self._recording = False
        self._failed(why)


def _is_given(argument: object) -> bool:
    return argument is not None and argument is not False


def install(current: Current, kinds: frozenset[str], failed: Callable[[str], None]) -> Installed:
    """Put the recording kernel in place, if reads are wanted. `problems` says why, where it cannot be."""
    import torch

    done = Installed()
    done.unseen["write"] = "cache writes are not recorded: a compiled kernel of vLLM's makes them"
    if "read" not in kinds:
        return done
    form = rewrite.FORMS.get(torch.cuda.get_device_capability()[0])
    if form is None:
        done.problems.append("FlashAttention 4 has another kernel for this GPU")
        return done
    try:
        interface, module = importlib.import_module(INTERFACE), importlib.import_module(f"{PACKAGE}.{form.module}")
        source = rewrite.attention(inspect.getsource(module), form)
        base = load(module, source, form)
        getattr(interface, _FORWARD).compile_cache  # noqa: B018
        scalar = importlib.import_module("cutlass").Int32
        forward = RecordingForward(
            interface, form.kernel, lambda tokens: constants(base, form, current, tokens), scalar, current, failed
        )
    except (MismatchError, ImportError, AttributeError, OSError) as error:
        done.problems.append(f"{form.kernel}: {error}")
        return done
    done.put(interface, _FORWARD, forward)
    done.kinds.add("read")
    return done


def load(module: types.ModuleType, source: str, form: rewrite.Form) -> type:
    """Load the class that records, beside the module that defines the original."""
    from kvtrace.probes.device.tiles.fa4 import recorder

    # The DSL reads a method's text from its file when it compiles, so the file is needed to the process's end.
    folder = tempfile.TemporaryDirectory(prefix="kvtrace-")
    path = Path(folder.name) / f"kvtrace_{len(sys.modules)}.py"
    path.write_text(source)
    loaded = types.ModuleType(path.stem)
    loaded.__dict__.update({k: v for k, v in vars(module).items() if not k.startswith("__")})
    loaded.__dict__.update({k: v for k, v in vars(recorder).items() if k.startswith("kvt_")})
    loaded.__dict__.update(__file__=str(path), __kvtrace_folder__=folder)
    sys.modules[path.stem] = loaded
    exec(compile(source, str(path), "exec"), loaded.__dict__)
    found: type = loaded.__dict__[form.recording]
    return found


def constants(base: type, form: rewrite.Form, current: Current, page_tokens: int) -> type[Recording]:
    """Make the class for blocks of so many tokens: where it writes, what it records."""

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)  # type: ignore[misc]
        made.kvt_made = True
        tile = self.kvt_tile_tokens = getattr(self, form.tile_tokens)
        fits = tile % 16 == 0 and tile <= 240 and max(tile, page_tokens) % min(tile, page_tokens) == 0
        if current.control is not None and not fits:
            raise MismatchError(f"tiles of {tile} tokens do not fit blocks of {page_tokens}")

    made: Any = type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__init__": start,
            "kvt_made": False,
            "kvt_control": _address(current.control),
            "kvt_windows": _address(current.windows),
            "kvt_heads": current.heads,
            "kvt_page_tokens": page_tokens,
        },
    )
    found: type[Recording] = made
    return found


def _address(memory: Tensor | None) -> int:
    """Return the address of memory; 0: there is none, and the compiled kernel leaves out what would write there."""
    return 0 if memory is None else int(memory.data_ptr())
