"""The kernel that publishes a step's windows, compiled for the CPU: which times it takes, and what it leaves behind."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

from kvtrace.probes.device import graph_timestamps
from kvtrace.probes.device.cuda import NOW
from kvtrace.probes.device.tiles.layout import (
    ATTENTION_WINDOW,
    FIRST,
    LAST,
    WAY_WORDS,
    WINDOW_WAYS,
    WINDOW_WORDS,
    WRITE_WINDOW,
)

LAYERS, SLOTS = 3, 2
WAYS = 16
"""Lines of memory of a layer here: more than kernels use so far, so that all of them are seen to be read."""
WORDS = WAYS * WAY_WORDS
HOST = """
#include <algorithm>
using std::max;
typedef unsigned long long u64;
static u64 now() { return 0; }
#define __global__
#define __device__ static
static struct { unsigned x; } threadIdx = {0}, blockDim = {1};
static void __syncthreads() {}
static void __threadfence() {}
"""
"""A device with one thread."""
Words = ctypes.c_uint64


class Device:
    """Memory of a step's times, and the kernels on it."""

    def __init__(self, code: ctypes.CDLL, *, windows: bool) -> None:
        self._code = code
        self.places = (Words * (4 * LAYERS))()
        self.windows = (Words * (WORDS * LAYERS))() if windows else None
        self._ring = (Words * (SLOTS * (1 + 4 * LAYERS)))()
        self._appended = Words()

    def program(self, layer: int, window: int, start: int, end: int, way: int) -> None:
        """Do what a program does at its start and at its end."""
        assert self.windows is not None
        for word, value in ((FIRST, ~start & (1 << 64) - 1), (LAST, end)):
            at = layer * WORDS + way * WAY_WORDS + window + word
            self.windows[at] = max(self.windows[at], value)

    def publish(self, step: int) -> list[list[int]]:
        """Publish a step: its windows by layer."""
        slot = self._appended.value % SLOTS * (1 + 4 * LAYERS)
        self._code.kvt_publish(
            self.places, self.windows, self._ring, ctypes.byref(self._appended), Words(step), LAYERS, SLOTS
        )
        row = list(self._ring[slot : slot + 1 + 4 * LAYERS])
        assert row[0] == step
        assert not any(self.places)
        assert not any(self.windows or ())
        return [row[1 + 4 * layer : 5 + 4 * layer] for layer in range(LAYERS)]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("publish")
    assert NOW in graph_timestamps.SOURCE
    source = HOST + graph_timestamps.SOURCE.replace(NOW, "")
    for name, used, more in (("WINDOW_WAYS", WINDOW_WAYS, WAYS), ("WINDOW_WORDS", WINDOW_WORDS, WORDS)):
        assert source.count(f"#define {name} {used}\n") == 1
        source = source.replace(f"#define {name} {used}\n", f"#define {name} {more}\n")
    (folder / "publish.cpp").write_text(source)
    subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-o", folder / "publish.so", folder / "publish.cpp"], check=True)
    return ctypes.CDLL(str(folder / "publish.so"))


@pytest.mark.parametrize("windows", [False, True])
def test_stamps_are_published_where_kernels_keep_no_window(code: ctypes.CDLL, windows: bool) -> None:
    device = Device(code, windows=windows)
    device.places[:8] = [10, 20, 0, 40, 50, 0, 70, 80]
    assert device.publish(7) == [[10, 20, 20, 40], [0, 0, 70, 80], [0] * 4]  # the end of a write starts the attention
    assert device.publish(8) == [[0] * 4] * LAYERS


def test_a_window_is_that_of_all_its_programs_whatever_their_ways(code: ctypes.CDLL) -> None:
    device = Device(code, windows=True)
    base = 1 << 60
    for way in range(WAYS):
        device.program(1, ATTENTION_WINDOW, base + 100 + 7 * (way - 5) ** 2, base + 900 - (way - 9) ** 2, way)
        device.program(1, WRITE_WINDOW, base + 20 - way, base + 50 + way, way)
    device.program(2, ATTENTION_WINDOW, base + 1000, base + 1100, 3)
    assert device.publish(1) == [
        [0] * 4,
        [base + 20 - (WAYS - 1), base + 50 + WAYS - 1, base + 100, base + 900],
        [0, 0, base + 1000, base + 1100],
    ]
    assert device.publish(2) == [[0] * 4] * LAYERS


def test_programs_times_go_before_stamps(code: ctypes.CDLL) -> None:
    device = Device(code, windows=True)
    device.places[:] = [10, 20, 30, 40] * LAYERS
    device.program(0, ATTENTION_WINDOW, 32, 38, 0)
    device.program(1, WRITE_WINDOW, 12, 18, 15)
    device.places[6] = 0  # layer 1's attention starts where its write ends
    assert device.publish(3) == [[10, 20, 32, 38], [12, 18, 18, 40], [10, 20, 30, 40]]


def test_what_ran_for_no_step_is_forgotten(code: ctypes.CDLL) -> None:
    device = Device(code, windows=True)
    device.places[:] = [1] * (4 * LAYERS)
    device.program(2, WRITE_WINDOW, 12, 18, 15)
    code.kvt_clear(device.places, device.windows, LAYERS)
    assert device.publish(4) == [[0] * 4] * LAYERS
