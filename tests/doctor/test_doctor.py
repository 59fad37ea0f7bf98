"""`kvtrace doctor` on the installed vLLM, and on real environments that lack something."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kvtrace.doctor import nvml
from kvtrace.launch import versions
from tests.doctor.conftest import ROOT, Environment, copy_vllm, edit, site_of


@pytest.fixture
def here(tmp_path: Path) -> Environment:
    """This Python, in an empty folder."""
    return Environment(sys.executable, dict(os.environ), tmp_path)


def test_the_installed_vllm_can_be_recorded(here: Environment) -> None:
    done = here.run("-o", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("A recording would work here.\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert list(here.folder.iterdir()) == []
    checks = here.checks()
    facts = checks["versions"]["facts"]
    assert facts["vLLM"].partition("+")[0] == checks["hooks"]["facts"]["vllm"]
    assert facts["torch"] == metadata.version("torch")
    assert checks["recorder"]["state"] == checks["vLLM"]["state"] == checks["reading"]["state"] == "ok"
    assert (checks["hooks"]["state"] == "ok") == (
        versions.remark(facts["vLLM"]) is None and not checks["hooks"]["facts"]["unfit"]
    )


def test_a_vllm_that_cannot_serve_is_told(here: Environment) -> None:
    """As the registry's CPU build cannot: its command ends with an error, `--version` as well as `serve`."""
    done = subprocess.run([Path(here.python).with_name("vllm"), "--version"], capture_output=True, check=False)
    told = any("vllm serve cannot start here" in detail for detail in here.checks()["vLLM"]["details"])
    assert told == (done.returncode != 0)


def test_neither_vllm_nor_torch_is_imported() -> None:
    script = (
        "import sys; sys.argv = ['kvtrace', 'doctor', '--json']\n"
        "from kvtrace.cli.main import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('vllm', 'torch', 'triton', 'cupy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_without_vllm_nothing_would_be_recorded(bare: Environment) -> None:
    done = bare.run()
    assert done.returncode == 1
    assert "problem  vLLM             vLLM is not installed" in done.stdout
    assert "not installed: vLLM, torch, Triton, CuPy, nvtx, DuckDB" in done.stdout
    assert "problem`" in done.stdout.splitlines()[-1]
    checks = bare.checks()
    assert checks["recorder"]["state"] == "ok"
    assert checks["reading"]["state"] == "note"
    assert "pip install 'kvtrace[analysis]'" in checks["reading"]["text"]
    assert "hooks" not in checks


def test_a_vllm_without_a_step_to_hook_cannot_be_recorded(bare: Environment) -> None:
    vllm = copy_vllm(site_of(bare.python))
    edit(vllm / "v1/core/sched/scheduler.py", "def schedule(", "def plan(")
    edit(vllm / "v1/core/sched/interface.py", "def schedule(", "def plan(")
    code, checks = bare.told()
    hooks = checks["hooks"]
    assert (code, hooks["state"]) == (1, "problem")
    assert "vllm.v1.core.sched.scheduler:Scheduler.schedule" in hooks["text"]


def test_a_hook_that_does_not_fit_is_named_with_what_is_lost(bare: Environment) -> None:
    vllm = copy_vllm(site_of(bare.python))
    edit(vllm / "v1/core/block_pool.py", "def reset_prefix_cache(", "def clear(")
    code, checks = bare.told()
    hooks = checks["hooks"]
    assert (code, hooks["state"]) == (0, "note")
    assert list(hooks["facts"]["unfit"]) == ["vllm.v1.core.block_pool:BlockPool.reset_prefix_cache"]
    assert hooks["facts"]["fit"] == hooks["facts"]["of"] - 1
    assert any("reset_prefix_cache: absent; lost: " in line for line in hooks["details"])


def test_an_adapter_that_does_not_fit_is_named(bare: Environment) -> None:
    vllm = copy_vllm(site_of(bare.python))
    shutil.rmtree(vllm / "v1/simple_kv_offload")
    connectors = bare.checks()["connectors"]
    assert connectors["state"] == "note"
    assert {name for name, fact in connectors["facts"].items() if not fact["fits"]} == {"simple_cpu"}


def test_without_the_compiled_part_nothing_would_be_recorded(bare: Environment) -> None:
    copy_vllm(site_of(bare.python))
    own = site_of(bare.python) / "kvtrace"
    own.unlink()
    shutil.copytree(ROOT / "kvtrace", own, ignore=shutil.ignore_patterns("*.so", "node_modules"))
    code, checks = bare.told()
    assert code == 1
    assert "compiled part cannot be loaded" in checks["recorder"]["text"]
    assert checks["recorder"]["state"] == checks["vLLM"]["state"] == "problem"


def test_a_place_that_cannot_be_written_is_a_problem(here: Environment) -> None:
    (here.folder / "file").write_text("")
    done = here.run("-o", "file/run")
    assert done.returncode == 1
    assert "cannot be written: Not a directory" in " ".join(done.stdout.split())


def test_files_that_cannot_be_as_large_as_a_segment_are_a_problem(here: Environment) -> None:
    done = here.run(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14)))
    assert done.returncode == 1
    assert "problem  recorder" in done.stdout
    assert "File too large" in " ".join(done.stdout.split())
    assert socket.gethostname() not in done.stdout + done.stderr
    assert list(here.folder.iterdir()) == []


def test_sources_that_cannot_be_read_are_a_problem(bare: Environment) -> None:
    vllm = copy_vllm(site_of(bare.python))
    edit(vllm / "v1/core/block_pool.py", "class BlockPool:", "class BlockPool(:")
    code, checks = bare.told()
    assert (code, checks["hooks"]["state"]) == (1, "problem")
    assert "SyntaxError" in checks["hooks"]["text"]


@pytest.mark.parametrize("place", ["run", "file/run"])
def test_neither_secrets_nor_names_of_hosts_and_people_are_told(here: Environment, place: str) -> None:
    home = here.folder / "jane.doe"
    (home / "bin").mkdir(parents=True)
    (home / "file").write_text("")
    nsys = home / "bin" / "nsys"
    nsys.write_text("#!/bin/sh\necho NVIDIA Nsight Systems version 2025.3.1.90\n")
    nsys.chmod(0o755)
    here.variables.update(HOME=str(home), HF_TOKEN="hf_Q7secret", KVTRACE_NSYS=str(nsys))
    for form in ((), ("--json",)):
        told = here.run("-o", str(home / place), *form)
        text = told.stdout + told.stderr
        assert "2025.3.1.90 at ~/bin/nsys" in " ".join(text.split())
        assert "jane.doe" not in text
        assert "hf_Q7secret" not in text
        assert socket.gethostname() not in text


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no NVIDIA driver")
def test_gpus_are_those_of_nvidia_smi() -> None:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    driver = nvml.read_driver()
    assert driver is not None
    assert [f"{gpu.name}, {driver.version}" for gpu in driver.gpus] == lines
