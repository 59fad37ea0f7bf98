"""Records the KV events that vLLM publishes to a file: `python -m kvtrace.probes.kv_events ENDPOINT -o FILE`.

The file has one batch a line, as JSON (docs/nsight.md describes it). Tokens, extra keys and session ids are left out.
Stop it with Ctrl-C once vLLM has ended. Needs pyzmq and msgspec, which vLLM brings.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

REPLAY_MS = 5_000
POLL_MS = 200
_PRIVATE = ("token_ids", "extra_keys", "session_id")
_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""By position, as versions of vLLM published them that sent lists instead of maps."""


def as_line(sequence: int, batch: Sequence[Any]) -> str:
    """Format a published batch as a line of the file."""
    seconds, events, *rank = batch
    found: dict[str, object] = {"sequence": sequence, "ts": seconds, "events": [_event(event) for event in events]}
    if rank and rank[0] is not None:
        found["data_parallel_rank"] = rank[0]
    return json.dumps(found, separators=(",", ":"))


def _event(event: list[object] | dict[str, object]) -> dict[str, object]:
    if isinstance(event, list):
        kind, *values = event
        event = {"type": kind, **dict(zip(_FIELDS.get(str(kind), ()), values, strict=False))}
    kept = {key: value for key, value in event.items() if key not in _PRIVATE and value is not None}
    for key in ("block_hashes", "parent_block_hash"):
        if key in kept:
            kept[key] = _hash(kept[key])
    return kept


def _hash(value: object) -> object:
    """Convert hashes that are bytes, not 64-bit integers, to hex text."""
    if isinstance(value, list):
        return [_hash(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


class EventRecorder:
    """Writes batches in order, each once. With a replay endpoint it asks for those published before it connected."""

    def __init__(self, file: IO[str], endpoint: str, replay: str | None) -> None:
        zmq: Any = importlib.import_module("zmq")
        self._decode = importlib.import_module("msgspec.msgpack").decode
        self._zmq = zmq
        self._file = file
        self._replay = replay
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)
        self._next = 0
        self.batches = 0
        self.lost = 0

    def receive(self, timeout_ms: int) -> bool:
        """Take the next batch, if one comes in time."""
        if not self._socket.poll(timeout_ms):
            return False
        sequence, payload = self._socket.recv_multipart()[-2:]
        self._take(int.from_bytes(sequence, "big"), payload)
        return True

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _take(self, sequence: int, payload: bytes) -> None:
        if sequence > self._next:
            for earlier, missed in self._asked_again():
                if self._next <= earlier < sequence:
                    self._write(earlier, missed)
        if sequence >= self._next:
            self._write(sequence, payload)
        self._file.flush()

    def _write(self, sequence: int, payload: bytes) -> None:
        self.lost += sequence - self._next
        self._next = sequence + 1
        self.batches += 1
        self._file.write(as_line(sequence, self._decode(payload)) + "\n")

    def _asked_again(self) -> Iterator[tuple[int, bytes]]:
        if self._replay is None:
            return
        socket = self._context.socket(self._zmq.DEALER)
        socket.connect(self._replay)
        socket.send_multipart([b"", self._next.to_bytes(8, "big")])
        while socket.poll(REPLAY_MS):
            sequence, payload = socket.recv_multipart()[-2:]
            if not payload:
                break
            yield int.from_bytes(sequence, "big"), payload
        socket.close(linger=0)


def main() -> None:
    """Record until a signal comes."""
    parser = argparse.ArgumentParser(
        prog="python -m kvtrace.probes.kv_events", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("endpoint", help="where vLLM publishes, e.g. tcp://127.0.0.1:5557")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write (.jsonl); replaced")
    parser.add_argument("--replay", help="vLLM's replay_endpoint, to get what was published before this connected")
    arguments = parser.parse_args()
    ended = False

    def end(signum: int, frame: object) -> None:
        nonlocal ended
        ended = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with arguments.output.open("w", encoding="utf-8") as file:
        recorder = EventRecorder(file, arguments.endpoint, arguments.replay)
        while not ended:
            recorder.receive(POLL_MS)
        while recorder.receive(0):
            pass
        recorder.close()
    lost = f", {recorder.lost} were missed" if recorder.lost else ""
    sys.stderr.write(f"{recorder.batches} batches of KV events in {arguments.output}{lost}\n")


if __name__ == "__main__":
    main()
