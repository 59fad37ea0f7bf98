"""The GPUs and their driver, as the driver's own library (NVML) tells. No CUDA context is made."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


class Gpu(NamedTuple):
    """A GPU."""

    name: str
    memory_bytes: int


class Driver(NamedTuple):
    """The driver. `cuda` is the newest CUDA version that it supports."""

    version: str
    cuda: str
    gpus: list[Gpu]


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read_driver() -> Driver | None:
    """Ask NVML; None where there is no driver.

    Raises:
        OSError: NVML is there and refuses.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    _call(library, "nvmlInit_v2")
    try:
        cuda, count = ctypes.c_int(), ctypes.c_uint()
        _call(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return Driver(
            _text(library, "nvmlSystemGetDriverVersion"),
            f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
            [_gpu(library, index) for index in range(count.value)],
        )
    finally:
        library.nvmlShutdown()


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    handle, memory = ctypes.c_void_p(), _Memory()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return Gpu(_text(library, "nvmlDeviceGetName", handle), memory.total)


def _text(library: ctypes.CDLL, function: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    _call(library, function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
    return buffer.value.decode(errors="replace")


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    try:
        error = getattr(library, function)(*arguments)
    except AttributeError:
        raise OSError(f"{_LIBRARY} has no {function}") from None
    if error:
        raise OSError(f"{_LIBRARY}: {function} failed with error {error}")
