"""Recordings of real vLLM runs, made once a session."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from kvtrace.cli.main import app
from tests.beside import python_path

HERE = Path(__file__).parent
MODEL = HERE.parent.parent / "examples" / "tiny-llama"

ENGINE = {
    "model": str(MODEL),
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 256,
    "num_gpu_blocks_override": 22,
    "gpu_memory_utilization": 0.1,
    "disable_log_stats": False,
}
MARKED_ENVIRONMENT = {"TEST_SERVICE_URL": "marked-environment-77aa02"}
"""Environment of every recorded process; nothing that a recording leaves may have the value."""
WORKLOAD = {"sessions": 8, "turns": 3, "shared_tokens": 40, "output_tokens": 40}


class Recorded(NamedTuple):
    """A recorded and ingested run."""

    run: Path
    trace: Any  # kvtrace.queries.Trace
    truth: dict[str, Any]
    record_stderr: str


def rows(recorded: Recorded, sql: str) -> list[tuple[Any, ...]]:
    columns = recorded.trace.sql(sql, format="arrow").columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make test installs it"))


def vllm_environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        **MARKED_ENVIRONMENT,
        **more,
    }


def free_port() -> int:
    """A port nobody else is given: below those that the system hands out, others in each process of the tests.

    Workers of one run are numbered; those of runs beside each other, as on a GPU, have other process ids.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    first = 20_000 + 500 * (int(worker or os.getpid()) % 20)
    while True:
        port = first + next(_PORTS) % 500
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


_PORTS = itertools.count(os.getpid() % 500)


def kvtrace(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command: `record` and what gets another environment as its users do, others in this process.

    That saves their imports.
    """
    words = [*map(str, arguments)]
    if words[0] == "record" or options.keys() - {"timeout"}:
        command = [sys.executable, "-m", "kvtrace", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    done = CliRunner().invoke(app, words)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, f"{done.stderr}{done.exception or ''}")


def ingested(run: Path, truth: dict[str, Any], record_stderr: str, *options: str) -> Recorded:
    import kvtrace as package

    done = kvtrace("ingest", run, *options)
    assert done.returncode == 0, done.stderr
    return Recorded(run, package.open(run / "trace.duckdb"), truth, record_stderr)


@pytest.fixture(scope="session")
def record_offline(warm_python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recorded]:
    """Records the offline workload; engine arguments, `environment` and `more` of the configuration, can be given."""

    def record(
        name: str,
        *,
        events: bool = True,
        environment: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
        **engine: Any,
    ) -> Recorded:
        folder = tmp_path_factory.mktemp(name)
        ports = [free_port(), free_port()] if events else None
        config = {**WORKLOAD, "engine": {**ENGINE, **engine}, "kv_events_ports": ports, **(more or {})}
        script = [*warm_python, str(HERE / "offline.py"), json.dumps(config), str(folder / "truth.json")]
        done = kvtrace(
            "record", "-o", folder / "run", "--", *script, env=vllm_environment(**(environment or {})), timeout=300
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return ingested(folder / "run", json.loads((folder / "truth.json").read_text()), done.stderr)

    return record


@pytest.fixture(scope="session")
def cached(record_offline: Callable[..., Recorded]) -> Iterator[Recorded]:
    """Prefix caching on; engine, worker and frontend are processes of their own."""
    yield record_offline("cached")


@pytest.fixture(scope="session")
def uncached(record_offline: Callable[..., Recorded]) -> Iterator[Recorded]:
    """Prefix caching off; frontend and engine share a process."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "KVTRACE_COUNT_WRITES": "1"}
    yield record_offline("uncached", events=False, environment=environment, enable_prefix_caching=False)


@pytest.fixture(scope="session")
def subclassed(record_offline: Callable[..., Recorded]) -> Recorded:
    """A `--scheduler-cls` that overrides what kvtrace hooks, and calls its parent's."""
    environment = {"PYTHONPATH": python_path(HERE)}
    return record_offline("subclassed", environment=environment, scheduler_cls="subclass_scheduler.SubclassScheduler")


@pytest.fixture(scope="session")
def tensor_parallel(record_offline: Callable[..., Recorded]) -> Iterator[Recorded]:
    """Two workers."""
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    yield record_offline("tp2", environment=environment, tensor_parallel_size=2)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """The OpenAI server, ended by SIGINT to the recorder."""
    from tests.vllm.served import MARKED_API_KEY, drive, serve
    from tests.vllm.truth import KvEvents

    folder = tmp_path_factory.mktemp("served")
    port, ports = free_port(), [free_port(), free_port()]
    engine = {name: value for name, value in ENGINE.items() if name != "disable_log_stats"}
    engine |= {"kv_events_config": KvEvents.config(ports), "enable_prompt_tokens_details": True}
    engine["api_key"] = MARKED_API_KEY
    events = KvEvents(ports, engine["block_size"])
    log = folder / "server.log"
    try:
        with serve(folder / "run", engine, port, log, vllm_environment()) as server:
            truth = drive(server, WORKLOAD, events, engine["block_size"])
    except BaseException:
        print(log.read_text()[-6000:])
        raise
    yield ingested(folder / "run", truth, log.read_text())


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A server with clients of the OpenAI SDK at once; `truth` is what they, `/metrics` and KV events told."""
    from tests.vllm import sdk
    from tests.vllm.served import MARKED_API_KEY, serve
    from tests.vllm.truth import KvEvents

    folder = tmp_path_factory.mktemp("asked")
    port, ports = free_port(), [free_port(), free_port()]
    engine = {name: value for name, value in ENGINE.items() if name != "disable_log_stats"}
    engine |= {"kv_events_config": KvEvents.config(ports), "enable_prompt_tokens_details": True}
    engine |= {"api_key": MARKED_API_KEY, "served_model_name": sdk.MODEL}
    log = folder / "server.log"
    try:
        with serve(folder / "run", engine, port, log, vllm_environment()) as server:
            truth = sdk.drive(server, KvEvents(ports, engine["block_size"]), engine["block_size"])
    except BaseException:
        print(log.read_text()[-6000:])
        raise
    return ingested(folder / "run", truth, log.read_text())
