"""kvtrace's TTL-pin scheduler, writing down what it pins and lets go, a JSON object a line."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from kvtrace.lab.ttl_pin import TTLPinScheduler

LONG = {"a": 60.0, "d": 60.0, "e": 60.0}
"""Jobs whose pins are to end otherwise than by time, however slow the machine is, and for how long they may stay, s."""


class LoggingScheduler(TTLPinScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._short_s = self.ttl_s

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.ttl_s = LONG.get(request.sampling_params.extra_args["kvtrace_session"], self._short_s)
        return super()._free_request(request, *args, **kwargs)

    def pin_request(self, request: Any, seconds: float) -> None:
        super().pin_request(request, seconds)
        pin = self.pinned_requests.get(request.request_id)
        blocks = [block.block_id for block in pin.blocks] if pin else []
        self._write({"op": "pin", "request": request.request_id, "seconds": seconds, "blocks": blocks})

    def unpin_request(self, request_id: str, reason: str) -> None:
        self._write({"op": "unpin", "request": request_id, "reason": reason})
        super().unpin_request(request_id, reason)

    def _write(self, line: dict[str, Any]) -> None:
        with open(os.environ["KVTRACE_TEST_SPEC_LOG"], "a") as log:  # noqa: PTH123
            log.write(json.dumps({**line, "ns": time.time_ns()}) + "\n")
