"""kvtrace's TTL-pin scheduler, writing down what it pins and lets go, a JSON object a line."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from kvtrace.lab.ttl_pin import TTLPinScheduler


class LoggingScheduler(TTLPinScheduler):
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
