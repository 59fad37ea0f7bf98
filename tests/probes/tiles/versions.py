"""Folders of vLLM's sources of several versions."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def version_folders() -> list[Path]:
    """Folders that hold `vllm/`: the installed one's, and those of KVTRACE_VLLM_SOURCES."""
    folders = [Path(text) for text in os.environ.get("KVTRACE_VLLM_SOURCES", "").split(":") if text]
    spec = importlib.util.find_spec("vllm")
    if spec is not None and spec.origin:
        folders.insert(0, Path(spec.origin).parent.parent)
    return folders
