"""A part of `make faults`: most conditions, all hooks failing at once, some alone, some attributes gone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

from tests.vllm.conftest import vllm_environment

SOME = (
    "raise all",
    "directory removed",
    "permissions lost",
    "disk full",
    "clock stepped",
    "forked",
    "restarted",
    r"after of .*Scheduler\.schedule .*after its work",
    r"before of .*allocate_slots .*after its work",
    r"missing vllm\.v1\.core\.sched\.scheduler\.Scheduler\.waiting$",
    r"missing vllm\.v1\.core\.kv_cache_manager\.KVCacheManager\.coordinator$",
    r"missing vllm\.v1\.request\.Request\.(status|block_hashes)$",
)


def test_the_engine_comes_through_and_every_loss_is_told() -> None:
    command = [sys.executable, "-m", "tests.vllm.faults.matrix", "plain", "--only", f"^plain: ({'|'.join(SOME)})"]
    done = subprocess.run(command, env=vllm_environment(), capture_output=True, text=True, check=False, timeout=580)
    print(done.stdout, done.stderr[-3000:])
    told = Counter(line[:5] for line in done.stdout.splitlines() if re.match(r"(good |WRONG) plain: ", line))
    assert done.returncode == 0
    assert told == {"good ": len(SOME) + 1}
