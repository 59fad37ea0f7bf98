"""vLLM's own account of a run, gathered beside a recording: KV events, counters and outputs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec
import zmq

SENTINEL = 511
"""A token no workload uses: a block full of it marks the end of the KV events."""


class KvEvents:
    """vLLM's KV events, asked for again from the first: a subscriber may connect too late for it.

    `ports` are those of the publisher and of its replay endpoint.
    """

    def __init__(self, ports: list[int], block_size: int) -> None:
        self.stored: Counter[int] = Counter()
        self.removed: Counter[int] = Counter()
        self.cleared = 0
        self._sentinel = [SENTINEL] * block_size
        self._ended = False
        self._replay_port = ports[1]

    @staticmethod
    def config(ports: list[int]) -> dict[str, Any]:
        """VLLM's `kv_events_config` for these ports."""
        endpoints = {"endpoint": f"tcp://*:{ports[0]}", "replay_endpoint": f"tcp://*:{ports[1]}"}
        return {"enable_kv_cache_events": True, "publisher": "zmq", **endpoints}

    def wait(self, seconds: float = 60) -> dict[str, Any]:
        """The events up to the sentinel."""
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{self._replay_port}")
        deadline, expected = time.monotonic() + seconds, 0
        while not self._ended:
            socket.send_multipart([b"", expected.to_bytes(8, "big")])
            while socket.poll(1000 * max(0, deadline - time.monotonic())):
                sequence, payload = socket.recv_multipart()[-2:]
                if not payload:  # the end of what there is so far
                    break
                assert int.from_bytes(sequence, "big") == expected, "vLLM's KV events have gaps"
                expected += 1
                for event in msgspec.msgpack.decode(payload)[1]:
                    self._take(event)
            assert time.monotonic() < deadline, "the sentinel block never came"
        socket.close()
        return {"stored": list(self.stored.items()), "removed": list(self.removed.items()), "cleared": self.cleared}

    def _take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "BlockStored":
                self.stored.update(event["block_hashes"])
                if event["token_ids"] == self._sentinel:
                    self._ended = True
            case "BlockRemoved":
                self.removed.update(event["block_hashes"])
            case "AllBlocksCleared":
                self.cleared += 1
