"""A prefill/decode pair of CPU engines that share a directory, each recorded on its own, and their router."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kvtrace.format import layout

HERE = Path(__file__).parent


class Leg:
    """A recorded engine that answers one request at a time."""

    def __init__(self, python: list[str], run: Path, engine: dict[str, Any], environment: dict[str, str]) -> None:
        self.run = run
        script = [*python, str(HERE / "leg.py"), json.dumps(engine)]
        command = [sys.executable, "-m", "kvtrace", "record", "-o", str(run), "--", *script]
        self._errors = run.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, text=True
        )

    def line(self) -> dict[str, Any]:
        """The next line that the engine's program wrote."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            return dict(json.loads(line))
        raise AssertionError(f"{self.run.name} ended:\n{self.said()}")

    def said(self) -> str:
        """The end of what the engine wrote to its log."""
        return self.run.with_suffix(".log").read_text()[-4000:]

    def send(self, asked: object) -> None:
        """Write a line to the engine's program."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def ask_all(self, requests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Run requests at once; the last answer of each, and when its first was here (`first_token_ns`)."""
        self.send(requests)
        first_ns: dict[str, int] = {}
        ended: dict[str, dict[str, Any]] = {}
        while len(ended) < len(requests):
            answer = self.line()
            first_ns.setdefault(answer["request_id"], time.time_ns())
            if answer["finished"]:
                ended[answer["request_id"]] = answer
        return {name: {**answer, "first_token_ns": first_ns[name]} for name, answer in ended.items()}

    def ask(self, request_id: str, prompt: list[int], max_tokens: int) -> tuple[list[int], int, int]:
        """Tokens, when the first was here and when the last."""
        self.send({"request_id": request_id, "prompt": prompt, "max_tokens": max_tokens})
        answer = self.line()
        first_ns = last_ns = time.time_ns()
        while not answer["finished"]:
            answer = self.line()
            last_ns = time.time_ns()
        return answer["tokens"], first_ns, last_ns

    def close(self) -> str:
        """End it; what the recorder said."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(300)
        self._errors.seek(0)
        return self._errors.read()


def drive(prefill: Leg, decode: Leg, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """Send each prompt through both, as vLLM's proxies do: first for one token, then for all.

    Returns what the client saw, which is also left in a directory of its own beside the runs.
    """
    for leg in (prefill, decode):
        leg.line()
    seen = []
    for number, prompt in enumerate(prompts):
        send_ns = time.time_ns()
        prefill.ask(f"pair-{number}", prompt, 1)
        tokens, first_ns, last_ns = decode.ask(f"pair-{number}", prompt, max_tokens)
        times = {"send_ns": send_ns, "first_token_ns": first_ns, "last_token_ns": last_ns}
        seen.append({"request_id": f"pair-{number}", "output_tokens": len(tokens), **times})
    router = prefill.run.with_name("router")
    (router / layout.PROCESSES).mkdir(parents=True)
    (router / layout.CLIENT).write_text("".join(json.dumps(line) + "\n" for line in seen))
    return seen
