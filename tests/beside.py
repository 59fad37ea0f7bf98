"""Packages that the Makefile puts beside the environment, as what else they name is made for GPUs; and PYTHONPATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def beside(name: str) -> Path:
    """The folder of a package, which need not be there."""
    return Path(sys.prefix) / name


def python_path(*folders: Path) -> str:
    """PYTHONPATH of a process that finds what is in these folders, too."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
