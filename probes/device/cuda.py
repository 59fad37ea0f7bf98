"""CUDA source compiled through CuPy, and its kernels launched with the least Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from kvtrace.stream import compiled

pointer, count, word = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64

Launch = Callable[[int], None]
"""Launches a kernel on a stream, given by its handle."""


def launcher(driver: Any, function: int, threads: int, arguments: tuple[Any, ...]) -> Launch:
    """A kernel's launch as one block; in compiled code where there is some.

    Args:
        driver: `cupy.cuda.driver`.
        function: The kernel's handle.
        threads: Of the block.
        arguments: ctypes values, which may be changed between launches: the driver reads them at each.
    """
    pointers = (ctypes.c_void_p * len(arguments))(
        *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p).value for argument in arguments)
    )
    kept, address = (arguments, pointers), ctypes.addressof(pointers)  # alive: the driver reads them at each launch
    native, entry = compiled(), _entry()
    if native is not None and entry:
        made: Launch = native.Launch(entry, function, threads, address, kept)
        return made

    def launch(stream: int, _: Any = kept) -> None:
        driver.launchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, address, 0)

    return launch


@cache
def _entry() -> int:
    """The address of the driver's cuLaunchKernel; 0: it is not to be had."""
    try:
        return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


class Module:
    """Compiled CUDA source.

    Raises:
        ImportError: CuPy is not installed.
    """

    def __init__(self, source: str) -> None:
        import cupy

        self._module = cupy.RawModule(code=source, options=("-std=c++17",))
        self._driver = cupy.cuda.driver

    def launch(self, kernel: str, threads: int, *arguments: Any) -> Launch:
        """A kernel of the module with its arguments: ctypes values that may be changed between launches."""
        return launcher(self._driver, self._module.get_function(kernel).kernel.ptr, threads, arguments)
