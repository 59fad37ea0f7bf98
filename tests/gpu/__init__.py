"""Tests that need a GPU; elsewhere they are skipped and say so."""

from __future__ import annotations

import importlib.util


def has_gpu(*modules: str) -> bool:
    """Return whether there is a CUDA device, CuPy and these modules."""
    if None in map(importlib.util.find_spec, ("torch", "cupy", *modules)):
        return False
    import torch

    return torch.cuda.is_available()
