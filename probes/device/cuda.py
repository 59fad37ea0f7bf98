"""CUDA source compiled through CuPy, and its kernels launched with the least Python; the driver's events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from kvtrace.capture import _native

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

pointer, count, word = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64

Value = ctypes.c_void_p | ctypes.c_uint32 | ctypes.c_uint64
"""An argument of a kernel."""

NOW = r"""
typedef unsigned long long u64;

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t) :: "memory");
    return t;
}
"""
"""The head of sources that read the GPU's global timer."""

STAMP = (
    NOW
    + r"""
extern "C" __global__ void kvt_stamp(u64* place) { *place = now(); }
"""
)
"""A source with a kernel that stores the time and nothing else."""

Launch = Callable[[int], None]
"""Enqueues something, a kernel mostly, on a stream, given by its handle."""


def launcher(function: int, threads: int, arguments: tuple[Value, ...]) -> Launch:
    """Make a kernel's launch as one block.

    Args:
        function: The kernel's handle.
        threads: Of the block.
        arguments: ctypes values, which may be changed between launches: the driver reads them at each.
    """
    pointers = (ctypes.c_void_p * len(arguments))(
        *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p).value for argument in arguments)
    )
    kept, address = (arguments, pointers), ctypes.addressof(pointers)  # alive: the driver reads them at each launch
    return _native.Launch(needed_entry("cuLaunchKernel"), function, threads, address, kept)


@cache
def entry(name: str) -> int:
    """Look up the address of a function of the driver; 0 if there is none."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL("libcuda.so.1"), name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


NOT_READY = 600
"""CUDA's error for an event that the GPU has not come to yet."""


class Events:
    """The driver's events with times, of the current device, in a row.

    Attributes:
        handles: Of each.

    Raises:
        OSError: There is no driver.
        RuntimeError: It refuses.
    """

    def __init__(self, count: int) -> None:
        self.handles = (ctypes.c_uint64 * count)()
        create, self._record = _call("cuEventCreate", pointer, ctypes.c_uint), _call("cuEventRecord", pointer, pointer)
        for index in range(count):
            check(create(ctypes.addressof(self.handles) + 8 * index, 0))

    def record(self, index: int, stream: int) -> None:
        """Have the GPU note the time when it comes to this point of a stream."""
        check(self._record(self.handles[index], stream))

    def elapsed_ns(self, since: int, first: int, count: int) -> NDArray[int64]:
        """Times of some of these, up to the first that the GPU has not come to yet.

        Args:
            since: The handle of an event that they count from; it may be later than they are.
            first: The first. Behind the last of the row comes the first one.
            count: How many.

        Returns:
            An array of int64. The driver says milliseconds as a float: up to half a second exact to 32 ns, one tick of
            the GPU's timer.
        """
        import numpy

        found = numpy.empty(count, numpy.float32)
        ring, out = len(self.handles), found.ctypes.data
        function, handles = entry("cuEventElapsedTime"), ctypes.addressof(self.handles)
        done, error = _native.elapsed(function, since, handles, first, count, ring, out)
        if error != NOT_READY:
            check(error)
        return numpy.rint(found[:done].astype(numpy.float64) * 1e6).astype(numpy.int64)


def needed_entry(name: str) -> int:
    """The address of a function of the driver.

    Raises:
        OSError: It is not to be had.
    """
    address = entry(name)
    if not address:
        raise OSError(f"libcuda.so.1 has no {name}")
    return address


def _call(name: str, *types: type[Value | ctypes.c_uint]) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(needed_entry(name))


def check(error: int) -> None:
    """Raise what a call of the driver returned, unless that is 0.

    Raises:
        RuntimeError: It is an error.
    """
    if error:
        raise RuntimeError(f"CUDA error {error}")


def stay_out_of_captures() -> None:
    """Let this thread call the driver without spoiling a graph that another thread is capturing.

    By default it might: PyTorch captures in CUDA's mode `global`, which forbids many calls to all threads. Harmless are
    those that have nothing to do with the captured stream.

    Raises:
        OSError: There is no driver.
        RuntimeError: It refuses.
    """
    relaxed = ctypes.c_int(2)
    check(_call("cuThreadExchangeStreamCaptureMode", pointer)(ctypes.addressof(relaxed)))


class Module:
    """Compiled CUDA source.

    Raises:
        ImportError: CuPy is not installed.
    """

    def __init__(self, source: str) -> None:
        import cupy

        self._module = cupy.RawModule(code=source, options=("-std=c++17",))

    def launch(self, kernel: str, threads: int, *arguments: Value) -> Launch:
        """A kernel of the module with its arguments: ctypes values that may be changed between launches."""
        return launcher(self._module.get_function(kernel).kernel.ptr, threads, arguments)
