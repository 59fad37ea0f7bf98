"""FlashInfer's wheel, unpacked: its rewritten headers, and what a compiler of its kernels is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from kvtrace.probes.device.tiles.flashinfer.overlay import Overlay

DATA = "flashinfer/data"


def rewritten_headers(wheel: Path, workspace: Path) -> Path:
    """Rewrite the wheel's headers into a workspace; the folder that they are included from."""
    places = {
        "CACHE_DIR": workspace / "cache",
        "WORKSPACE_DIR": workspace,
        "INCLUDE_DIR": wheel / DATA / "include",
    }
    return (
        Overlay(SimpleNamespace(**{f"FLASHINFER_{name}": place for name, place in places.items()})).folder / "include"
    )


def arguments(wheel: Path, headers: Path, *others: Path) -> list[str]:
    """Tell nvcc what FlashInfer tells it, and where headers are: the given folders', and CCCL's."""
    data = wheel / DATA
    included = [f"-I{each}" for each in (*data.glob("cccl/*"), *data.glob("cccl/*/include")) if each.is_dir()]
    options = ["-std=c++17", "-O3", "-w", "--expt-relaxed-constexpr", "-use_fast_math"]
    return [*options, *included, *(f"-isystem={each}" for each in (headers, *others))]  # as FlashInfer names them
