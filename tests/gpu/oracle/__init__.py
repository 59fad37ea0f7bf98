"""Addresses of the KV cache that attention kernels access, noted by NVIDIA's Sanitizer API.

An independent witness for blocks and their order, also for kernels of which only machine code ships, such as
FlashAttention 3. It patches kernels, so it slows them down and is no part of a recording.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "libsanitizer-public.so"


def api_folders() -> tuple[Path, Path] | None:
    """Find the Sanitizer API's headers and library: below `ORACLE_API`, or in `nvidia-cuda-sanitizer-api`."""
    if named := os.environ.get("ORACLE_API"):
        return Path(named) / "include", Path(named)
    spec = find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for header in sorted(Path(place).rglob("sanitizer.h")):
            for libraries in (header.parents[1], header.parents[1] / "lib"):
                if (libraries / LIBRARY).exists():
                    return header.parent, libraries
    return None


def why_not() -> str | None:
    """Tell what is missing here; None: nothing is."""
    if api_folders() is None:
        return "needs NVIDIA's Sanitizer API: pip install nvidia-cuda-sanitizer-api"
    missing = [program for program in ("nvcc", "gcc") if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else None


def build(folder: Path, architecture: str = "sm_90") -> dict[str, str]:
    """Compile the patches and the library that installs them.

    Returns:
        The environment of a process that is to be watched.
    """
    headers, libraries = api_folders() or (None, None)
    cuda = Path(str(shutil.which("nvcc"))).resolve().parents[1]
    patches, library = folder / "watch.cubin", folder / "inject.so"
    include = f"-I{headers}"
    link = [f"-L{libraries}", "-lsanitizer-public", f"-Wl,-rpath,{libraries}"]
    for command in (
        ["nvcc", "--cubin", "--compile-as-tools-patch", "-arch", architecture, include, "watch.cu", "-o", patches],
        ["gcc", "-O2", "-shared", "-fPIC", include, f"-I{cuda}/include", "inject.c", "-o", library, *link],
    ):
        done = subprocess.run(list(map(str, command)), cwd=HERE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return {"ORACLE_PATCHES": str(patches), "ORACLE_LIBRARY": str(library)}
