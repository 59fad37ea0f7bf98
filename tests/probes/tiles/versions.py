"""Folders of vLLM's sources of several versions."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

KERNELS = tuple(
    f"vllm/v1/attention/ops/{name}.py"
    for name in ("triton_attention_helpers", "triton_unified_attention", "triton_reshape_and_cache_flash")
)
"""vLLM's files with what the tests compile of Triton's."""


def version_folders() -> list[Path]:
    """Folders that hold `vllm/`: the installed one's, and those of KVTRACE_VLLM_SOURCES."""
    folders = [Path(text) for text in os.environ.get("KVTRACE_VLLM_SOURCES", "").split(":") if text]
    spec = importlib.util.find_spec("vllm")
    if spec is not None and spec.origin:
        folders.insert(0, Path(spec.origin).parent.parent)
    return folders


def distinct(folders: Iterable[Path], *patterns: str) -> list[Path]:
    """Leave out folders whose files are those of one before: what takes long is done once for each text."""
    found: dict[str, Path] = {}
    for folder in folders:
        files = sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())
        texts = hashlib.sha256()
        for file in files:
            texts.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
        found.setdefault(texts.hexdigest(), folder)
    return list(found.values())
