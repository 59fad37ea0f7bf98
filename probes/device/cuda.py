"""CUDA source compiled through CuPy, and its kernels launched with the least Python."""

from __future__ import annotations

import ctypes
from typing import Any

pointer, count, word = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64


class Launch:
    """A kernel with its arguments packed once, to be launched on any stream as one block."""

    def __init__(self, driver: Any, function: int, threads: int, arguments: tuple[Any, ...]) -> None:
        self._launch = driver.launchKernel
        self._function = function
        self._threads = threads
        self._arguments = arguments  # kept alive: the driver reads them at each launch
        self._pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p).value for argument in arguments)
        )
        self._address = ctypes.addressof(self._pointers)

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its handle."""
        self._launch(self._function, 1, 1, 1, self._threads, 1, 1, 0, stream, self._address, 0)


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
        return Launch(self._driver, self._module.get_function(kernel).kernel.ptr, threads, arguments)
