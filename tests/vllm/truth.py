"""What vLLM says of itself, gathered beside a recording: KV events, counters and outputs."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import msgspec
import zmq

SENTINEL = 511
"""A token no workload uses: a block full of it marks the end of the KV events."""


class KvEvents:
    """Subscribes to vLLM's KV events until the sentinel block is stored."""

    def __init__(self, port: int, block_size: int) -> None:
        self.stored: Counter[int] = Counter()
        self.removed: Counter[int] = Counter()
        self.cleared = 0
        self.batches: list[int] = []
        self._sentinel = [SENTINEL] * block_size
        self._done = threading.Event()
        socket = zmq.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(f"tcp://127.0.0.1:{port}")
        self._thread = threading.Thread(target=self._run, args=(socket,), daemon=True)
        self._thread.start()

    def wait(self, seconds: float = 60) -> dict[str, Any]:
        """The events up to the sentinel; fails if one is missing."""
        assert self._done.wait(seconds), "the sentinel block never came"
        assert self.batches == list(range(len(self.batches))), "vLLM's KV events have gaps"
        return {"stored": list(self.stored.items()), "removed": list(self.removed.items()), "cleared": self.cleared}

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        while not self._done.is_set():
            _, sequence, payload = socket.recv_multipart()
            self.batches.append(int.from_bytes(sequence, "big"))
            for event in msgspec.msgpack.decode(payload)[1]:
                self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "BlockStored":
                self.stored.update(event["block_hashes"])
                if event["token_ids"] == self._sentinel:
                    self._done.set()
            case "BlockRemoved":
                self.removed.update(event["block_hashes"])
            case "AllBlocksCleared":
                self.cleared += 1
