"""Colours that stand side by side in the page, or in a plot, can be told apart with a colour-vision deficiency."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import kvtrace.viewer
from kvtrace.queries.plotting import COLOURS

STYLE = Path(kvtrace.viewer.__file__).resolve().parent / "web" / "src" / "style.css"
TOGETHER = (
    "prefill chunked decode resumed preempted",
    "running waiting",
    "free cached used shared evicted",
    "token-budget kv-insufficient max-seqs paused other none preempted connector grammar loras",
    "pin-1 pin-2 pin-3 pin-4 pin-5 pin-6",
    "load store host",
    "read read-v write write-v",
    "attention gemm kv-write copy norm communication sampling own other-kernel",
)
"""Names of the page's style that a legend lists together."""

LEAST = 12
"""Distance in CIELAB; 2.3 is just noticeable side by side."""

SIMULATED = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""Matrices from linear RGB to what is seen of it, after Machado, Oliveira and Fernandes (2009)."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def seen(colour: str, deficiency: str) -> np.ndarray:
    """Return a colour in CIELAB as it is seen."""
    value = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(np.array(SIMULATED[deficiency]) @ linear, 1e-4, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def too_close(colours: dict[str, str]) -> list[str]:
    """Return the pairs that look alike, and to whom."""
    return [
        f"{one} and {other}: {deficiency}"
        for deficiency in SIMULATED
        for one, other in itertools.combinations(colours, 2)
        if np.linalg.norm(seen(colours[one], deficiency) - seen(colours[other], deficiency)) < LEAST
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_legends_of_the_page(dark: bool) -> None:
    light, night = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)[:2]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light + (night if dark else "")))
    assert [pair for names in TOGETHER for pair in too_close({name: colours[name] for name in names.split()})] == []


def test_plots() -> None:
    assert too_close({colour: colour for colour in COLOURS}) == []
