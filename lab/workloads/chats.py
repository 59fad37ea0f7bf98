"""Conversations in text: ShareGPT's file, and trajectories of agents in OpenAI's format, such as SWE-smith's."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.lab.workloads.agents import TOOL_S
from kvtrace.lab.workloads.model import Job, Turn
from kvtrace.lab.workloads.text import Tokenize, read_objects, tokenizer

_CALL = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=command>\s*([^\s<]+)")
_ASSISTANT = {"assistant", "gpt", "chatgpt", "bing", "bard"}


def sharegpt(path: str, *, jobs: int = 100, tokenizer_path: str | None = None) -> tuple[list[Job], list[str]]:
    """The first conversations of a ShareGPT file; every answer has the recorded length and text."""
    return _jobs(path, jobs, tokenizer_path, lambda entry: entry.get("conversations") or entry.get("items"), 0.0)


def trajectories(
    path: str,
    *,
    jobs: int = 30,
    tokenizer_path: str | None = None,
    tool_s: float | None = None,
    tool_scale: float = 1.0,
) -> tuple[list[Job], list[str]]:
    """Agents' conversations as `messages` in OpenAI's format, one a line; SWE-smith keeps them as JSON in a string.

    A turn ends with a message of the assistant. Its tool is that of `tool_calls`, or of a `<function=NAME>` in the
    text; of a shell, the command's first word; of an editor, with its command.

    Args:
        path: The file.
        jobs: Most conversations.
        tokenizer_path: A `tokenizer.json` or its folder; None estimates token counts.
        tool_s: Duration of every tool call, s; None takes those of `TOOL_S`.
        tool_scale: Factor on the durations.
    """

    def messages(entry: dict[str, Any]) -> Any:
        found = entry.get("messages") or entry.get("trajectory")
        return json.loads(found) if isinstance(found, str) else found

    return _jobs(path, jobs, tokenizer_path, messages, tool_s, tool_scale)


def _jobs(
    path: str, count: int, tokenizer_path: str | None, messages: Any, tool_s: float | None, tool_scale: float = 1.0
) -> tuple[list[Job], list[str]]:
    tokenize, note = tokenizer(tokenizer_path)
    made: list[Job] = []
    without = 0
    for number, entry in enumerate(read_objects(path)):
        if len(made) == count:
            break
        try:
            turns = _turns(messages(entry) or [], tokenize, tool_s, tool_scale)
        except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
            raise KvtraceError(f"{path}, entry {number + 1}: its messages are none: {error!r:.200}") from error
        if turns:
            name = entry.get("instance_id") or entry.get("traj_id") or entry.get("id") or "chat"
            made.append(Job(f"{name}#{number}", turns))
        else:
            without += 1
    notes = [note, *([f"{without} conversations without an answer were left out"] if without else [])]
    if not made:
        raise KvtraceError(f"{path} holds no conversation with an answer")
    return made, notes


def _turns(messages: list[dict[str, Any]], tokenize: Tokenize, tool_s: float | None, tool_scale: float) -> list[Turn]:
    turns, new = [], ""
    for message in messages:
        role = str(message.get("role") or message.get("from"))
        text = _text(message)
        if role not in _ASSISTANT:
            new += f"<{role}>{text}"
            continue
        answer = tokenize(text)
        if not new or not answer:
            continue
        tool = tool_of(message)
        seconds = (TOOL_S.get(tool, TOOL_S["others"]) * tool_scale if tool_s is None else tool_s) if tool else 0.0
        turns.append(Turn(tokenize(new), len(answer), tool, seconds, answer))
        new = ""
    if turns:  # nobody waits for the last call
        turns[-1] = Turn(turns[-1].new, turns[-1].output_tokens, turns[-1].tool, 0.0, turns[-1].answer)
    return turns


def _text(message: dict[str, Any]) -> str:
    content = message.get("content", message.get("value")) or ""
    if isinstance(content, list):  # parts
        content = "".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls") or []
    return str(content) + "".join(json.dumps(call.get("function", {}), sort_keys=True) for call in calls)


def tool_of(message: dict[str, Any]) -> str:
    """The tool that a message of the assistant calls; empty if none."""
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments) if arguments.startswith("{") else {}
        return _named(str(function.get("name", "")), str(arguments.get("command", "")))
    if found := _CALL.search(_text(message)):
        command = _PARAMETER.search(found[2])
        return _named(found[1], command[1] if command else "")
    return ""


def _named(name: str, command: str) -> str:
    word = next(itertools.chain(command.split(), [""]))
    if name in {"bash", "execute_bash", "shell", "terminal"}:
        return word or name
    if "editor" in name and word:
        return f"editor_{word}"
    return name
