"""Engines to be killed: imports vLLM once, then forks an engine for every line on standard input.

A line names a run directory. The child records there, says `up PID` once it generates, and goes on until it is killed,
or whoever writes the lines is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

REPLIES = os.dup(1)
os.dup2(2, 1)  # vLLM's own output must not mix with the replies


def reply(text: str) -> None:
    os.write(REPLIES, text.encode() + b"\n")


def end_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def generate_for_ever(run: str, engine: dict[str, Any]) -> None:
    end_with_the_parent()
    os.environ["KVTRACE_RUN_DIR"] = run
    from kvtrace.probes import plugin

    plugin.load()
    from vllm import LLM, SamplingParams

    llm = LLM(**engine)
    parameters = SamplingParams(max_tokens=40, ignore_eos=True, detokenize=False)
    number = 0
    while True:
        number += 1
        prompts = [{"prompt_token_ids": [7] * 40 + [(number + i) % 500] * 60} for i in range(8)]
        llm.generate(prompts, parameters, use_tqdm=False)
        if number == 1:
            reply(f"up {os.getpid()}")


def main() -> None:
    end_with_the_parent()
    import vllm.entrypoints.llm  # noqa: F401 - once, before the forks

    engine = json.loads(sys.argv[1])
    reply("ready")
    for line in sys.stdin:
        run = line.strip()
        Path(run).mkdir(parents=True)
        child = os.fork()
        if child == 0:
            try:
                generate_for_ever(run, engine)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        reply(f"ended {status}")


if __name__ == "__main__":
    main()
