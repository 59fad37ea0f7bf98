"""setuptools' build backend, with its intermediate files elsewhere: `pip install .` leaves nothing in the checkout.

Files that stay there would get into the next wheel, though their sources are gone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_CONFIG = "DIST_EXTRA_CONFIG"
"""Environment variable by which setuptools takes a further configuration file."""


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel, as PEP 517 says."""
    with _elsewhere():
        return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Write a wheel's metadata, as PEP 517 says."""
    with _elsewhere():
        return str(build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Name what building a wheel needs, as PEP 517 says."""
    with _elsewhere():
        return list(build_meta.get_requires_for_build_wheel(config_settings))


@contextmanager
def _elsewhere() -> Iterator[None]:
    if _CONFIG in os.environ:  # the user's own
        yield
        return
    with tempfile.TemporaryDirectory(prefix="kvtrace-build-") as folder:
        config = Path(folder, "setup.cfg")
        config.write_text(f"[build]\nbuild_base = {folder}/build\n[egg_info]\negg_base = {folder}\n")
        os.environ[_CONFIG] = str(config)
        try:
            yield
        finally:
            del os.environ[_CONFIG]
