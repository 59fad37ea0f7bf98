"""Requests of production traces that tell lengths, times and hashes of prefix blocks, but no text.

A block's tokens follow from its hash, so blocks that were equal are equal again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.model import Job, Turn, randomness, tokens
from kvtrace.lab.workloads.text import read_objects

MOONCAKE_BLOCK, BAILIAN_BLOCK = 512, 16
"""Tokens that a hash stands for."""


def mooncake(
    path: str, *, jobs: int = 1000, longest: int = 32_768, sessions: bool = False, every: int = 1
) -> tuple[list[Job], list[str]]:
    """Mooncake's traces: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512 tokens.

    They tell no chats. With `sessions` these are derived: a request whose prompt begins with all full blocks of an
    earlier one's, the last of which nobody had sent before, is a later turn of its session. With `every` of them, one
    session in so many is sent, as one of so many engines would get it.
    """
    if every < 1 or (every > 1 and not sessions):
        raise KvtraceError(f"every={every} leaves out whole sessions: it is 1 or more, and needs sessions = true")
    return _replay(path, jobs, longest, MOONCAKE_BLOCK, 1e-3, _Prefixes() if sessions else None, every)


def bailian(path: str, *, jobs: int = 1000, longest: int = 32_768) -> tuple[list[Job], list[str]]:
    """Qwen-Bailian's traces: `timestamp` in s, hashes of 16 tokens, `chat_id` and `parent_chat_id`.

    A chat that continues another one is a later turn of the same session. It comes at its recorded time, whether or not
    the one before has ended.
    """
    return _replay(path, jobs, longest, BAILIAN_BLOCK, 1.0)


def _replay(
    path: str,
    count: int,
    longest: int,
    block: int,
    seconds: float,
    prefixes: _Prefixes | None = None,
    every: int = 1,
) -> tuple[list[Job], list[str]]:
    made: list[Job] = []
    places: dict[str, int] = {}  # of sessions
    known: dict[Any, tuple[str, int]] = {}
    taken: set[tuple[str, int]] = set()
    cut = 0
    for number, entry in enumerate(read_objects(path)):
        if len(made) == count:
            break
        try:
            asked, output = int(entry["input_length"]), max(1, int(entry["output_length"]))
            time, hashes = float(entry["timestamp"]) * seconds, entry["hash_ids"]
            if asked > len(hashes) * block:
                raise ValueError(f"{len(hashes)} hashes of {block} tokens do not cover input_length {asked}")
            told = entry if prefixes is None else prefixes.chat(hashes[: asked // block], number)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise KvtraceError(f"{path}, entry {number + 1} is no request of such a trace: {error!r:.200}") from error
        session, turn = _session(told, number, known, taken)
        if places.setdefault(session, len(places)) % every:
            continue
        length = min(asked, max(1, longest - output))
        cut += length < asked
        prompt = [token for each in hashes[: -(-length // block)] for token in _block(each, block)][:length]
        made.append(Job(session, [Turn(prompt, output)], turn, time))
    made.sort(key=lambda job: job.recorded_s or 0.0)
    if not made:
        raise KvtraceError(f"{path} holds no request")
    notes = [f"{cut} prompts were cut to {longest} tokens less their output"] if cut else []
    if prefixes is not None:
        later = sum(job.first_turn > 0 for job in made)
        notes.append(f"{later} of {len(made)} requests are later turns of a session: derived from equal prefixes")
    return made, notes


class _Prefixes:
    """Finds the request that another one goes on from, by its prompt: the latest with the most blocks in common."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._brought: dict[int, int] = {}  # the last full block of a prompt: the request that was the latest to end so

    def chat(self, blocks: Sequence[int], number: int) -> Mapping[str, Any]:
        """A prompt's full blocks, and the request's number: what Bailian's traces would tell of it."""
        parent = next((self._brought[block] for block in reversed(blocks) if block in self._brought), None)
        if blocks and (blocks[-1] not in self._seen or blocks[-1] in self._brought):
            self._brought[blocks[-1]] = number
        self._seen.update(blocks)
        return {"chat_id": number, "parent_chat_id": parent}


def _session(
    entry: Mapping[str, Any], number: int, known: dict[Any, tuple[str, int]], taken: set[tuple[str, int]]
) -> tuple[str, int]:
    """The job and turn of a request; of two chats that continue the same one, the second is a job of its own."""
    own = f"chat-{entry.get('chat_id', number)}"
    session, turn = known.get(entry.get("parent_chat_id"), (own, -1))
    place = session, turn + 1
    if place in taken:
        place = own, turn + 1
    taken.add(place)
    if "chat_id" in entry:
        known[entry["chat_id"]] = place
    return place


@lru_cache(maxsize=65_536)
def _block(number: int, size: int) -> tuple[int, ...]:
    return tuple(tokens(randomness(0, "hash", number), size))
