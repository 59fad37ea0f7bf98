"""Ways to start vLLM beside `vllm serve` on a host: in the caller's own process, and by Ray."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from kvtrace.capture.tenants import Tenants
from kvtrace.format.reader import open_recording
from kvtrace.launch.launch import child_environment
from tests.vllm.conftest import Recorded, vllm_environment


def test_an_engine_in_the_callers_process_is_recorded_to_its_end(uncached: Recorded) -> None:
    """`VLLM_ENABLE_V1_MULTIPROCESSING=0`: no process of vLLM's own ends before the interpreter does."""
    [process] = open_recording(uncached.run).processes
    assert set(process.roles) == {"engine", "worker", "frontend"}
    assert process.stopped is None
    assert not any(process.dropped().values())
    found = {event: sum(segment.count()[0] for segment in parts) for event, parts in process.segments().items()}
    assert found == {event: written for event, written in process.written().items() if written}
    said = uncached.record_stderr
    assert f"kvtrace: recorded 1 process of vLLM {process.vllm_version}" in said
    assert re.search(rf"engine.*  pid {process.pid}\b", said)
    assert f"records: {sum(found.values()):,} (" in said
    assert not [line for line in said.splitlines() if re.search(r"outlived|dropped|failed|torn", line)]
    [ended] = uncached.trace.sql(
        "SELECT count(*) AS requests, count(finished_ns) AS finished, count(arrival_ns) AS arrived FROM request",
        format="arrow",
    ).to_pylist()
    assert set(ended.values()) == {len(uncached.truth["outputs"])}
    sql = "SELECT count(*) AS steps, count(end_ns) AS ended FROM step"
    [steps] = uncached.trace.sql(sql, format="arrow").to_pylist()
    assert steps["steps"] == steps["ended"] > 0


def test_vllm_copies_to_ray_actors_what_tells_them_to_record_but_not_the_key_of_tenants() -> None:
    given = {"VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "AWS_", "AWS_REGION": "x"}
    environment = child_environment(vllm_environment(**given), Path("run"), "host", nvtx=True)
    environment |= Tenants().to_environment()
    ask = "import json; from vllm.ray import ray_env; print(json.dumps(list(ray_env.get_env_vars_to_copy())))"
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    copied = set(json.loads(done.stdout.splitlines()[-1]))
    assert {"KVTRACE_RUN_DIR", "KVTRACE_KV_LEVEL", "KVTRACE_NVTX", "AWS_REGION"} <= copied
    assert not copied & set(Tenants().to_environment())
