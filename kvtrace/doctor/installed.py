"""Packages of this Python, without importing them."""

from __future__ import annotations

import platform
from importlib import metadata, util
from pathlib import Path

from kvtrace import __version__

_PACKAGES = {
    "vLLM": "vllm",
    "torch": "torch",
    "Triton": "triton",
    "CuPy": "cupy",
    "nvtx": "nvtx",
    "DuckDB": "duckdb",
}


def versions() -> dict[str, str | None]:
    """Versions by name; None: not installed."""
    distributions = metadata.packages_distributions()
    found: dict[str, str | None] = {"kvtrace": __version__, "Python": platform.python_version()}
    for name, module in _PACKAGES.items():
        names = distributions.get(module, ())
        found[name] = metadata.version(names[0]) if names else "unknown" if folder_of(module) else None
    return found


def serves() -> bool:
    """Tell if vLLM's own command finds its version: it asks for the package by that name."""
    return "vllm" in metadata.packages_distributions().get("vllm", ())


def folder_of(package: str) -> Path | None:
    """The folder that a package is in; None where it is not installed."""
    try:
        spec = util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent.parent if spec is not None and spec.origin else None
