"""Takes secrets out of texts before they are written to a run directory."""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "***"

_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|credential|auth", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?[kKmMgG]?")
_COUNT_OF_TOKENS = re.compile(r"tokens$|token[-_.]\w", re.IGNORECASE)
_KNOWN_SECRET = re.compile(r"\b(hf_|sk-|ghp_|github_pat_|xox[a-z]-)[A-Za-z0-9_-]{8,}")
_ASSIGNMENT = re.compile(r"(?P<name>[^\s=,;&\"'{}]+)=")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_JSON_PAIR = re.compile(rf"(?P<name>{_QUOTED})(?P<between>\s*:\s*)(?P<value>{_QUOTED})")
_TEXT_OPTION = re.compile(rf"(?P<name>--?[\w.-]+)(?P<between>\s+|=)(?P<value>{_QUOTED}|'[^']*'|[^\s'\"]+)")
_TEXT_HEADER = re.compile(r"(?P<name>[\w-]+)(?P<between>:\s+)(?P<value>[^'\"]+)")


def redact(command: Sequence[str]) -> list[str]:
    """The command with every value that its name marks as secret replaced by `***`.

    A name is secret if it contains key, token, secret, password, passwd, credential or auth. Values are found in
    `--name value...`, `--name=value`, `NAME=value`, in JSON and in shell text given as one argument; so are passwords
    in URLs and tokens of a known shape. Tokenizers and numbers of tokens (`--max-num-batched-tokens 8192`) are kept.
    """
    result: list[str] = []
    hiding = False
    for position, argument in enumerate(command):
        is_option = argument.startswith("-")
        if hiding and not argument.startswith("--"):
            result.append(REDACTED)
            continue
        value = command[position + 1] if position + 1 < len(command) else ""
        hiding = is_option and "=" not in argument and _is_secret(argument, value)
        result.append(argument if hiding else _redact_argument(argument))
    return result


def _is_secret(name: str, value: str) -> bool:
    name = re.sub("tokenizer", "", name, flags=re.IGNORECASE)
    if _COUNT_OF_TOKENS.search(name) and _NUMBER.fullmatch(value):
        name = re.sub("token", "", name, flags=re.IGNORECASE)
    return _SECRET_NAME.search(name) is not None


def _redact_argument(argument: str) -> str:
    for assignment in _ASSIGNMENT.finditer(argument):
        if _is_secret(assignment["name"], argument[assignment.end() :]):
            return argument[: assignment.end()] + REDACTED
    argument = _JSON_PAIR.sub(_redact_pair, argument)
    if " " in argument:
        argument = _TEXT_OPTION.sub(_redact_pair, argument)
        argument = _TEXT_HEADER.sub(_redact_pair, argument)
    argument = _URL_PASSWORD.sub(rf"\g<1>{REDACTED}@", argument)
    return _KNOWN_SECRET.sub(REDACTED, argument)


def _redact_pair(match: re.Match[str]) -> str:
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    if not _is_secret(match["name"].strip('"'), match["value"].strip("\"'")):
        return match[0]
    return f"{match['name']}{match['between']}{quote}{REDACTED}{quote}"
