"""Work in forks of a process that has imported vLLM."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def forked(work: Callable[[], Any], log: Path) -> Any:
    """Run `work` in a forked process and return its result, by way of JSON; output and a traceback go to `log`.

    Raises:
        RuntimeError: It did not end well.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            output_to(log)
            with os.fdopen(writer, "w") as answer:
                json.dump(work(), answer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"ended with status {status}: {log.read_text()[-3000:]}")
    return json.loads(text)


def output_to(log: Path) -> None:
    """Send what this process and its children say to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
