from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.format.secrets import REDACTED, redact

WORDS = st.sampled_from(["key", "token", "secret", "password", "auth", "API_KEY", "Token", "PassWord"])
AROUND = st.text("abcxyz-_", max_size=6).map(lambda text: text.strip("-"))
NAMES = st.builds(lambda before, word, after: f"{before}{word}{after}", AROUND, WORDS, AROUND).filter(
    lambda name: "tokenizer" not in name.lower()
)
SECRETS = st.text("ABCDEFGHJKLMNPQRSTUVW0123456789", min_size=12, max_size=40).map(lambda text: f"Q{text}Z")
PLAIN = st.lists(st.sampled_from(["vllm", "serve", "--port", "1", "--model=m", "-x", "--", "{}", "é", ""]), max_size=5)
FORMS = st.sampled_from(
    [
        lambda name, secret: [f"--{name}", secret],
        lambda name, secret: [f"-{name}", secret],
        lambda name, secret: [f"--{name}", "first", secret],
        lambda name, secret: [f"--{name}={secret}"],
        lambda name, secret: [f"{name}={secret}"],
        lambda name, secret: [f"--env={name}={secret}"],
        lambda name, secret: ["-c", f"cd /x && {name}={secret} vllm serve {{}}"],
        lambda name, secret: ["-c", f"vllm serve --{name} '{secret}' --port 1"],
        lambda name, secret: ["--config", json.dumps({"a": 1, name: secret})],
    ]
)


@given(PLAIN, PLAIN, NAMES, SECRETS, FORMS)
def test_a_secret_is_never_in_the_result(
    before: list[str], after: list[str], name: str, secret: str, form: Callable[[str, str], list[str]]
) -> None:
    result = redact([*before, *form(name, secret), *after])

    assert secret not in " ".join(result)
    assert REDACTED in " ".join(result)


@given(PLAIN)
def test_a_command_without_secrets_stays_as_it_is(command: list[str]) -> None:
    assert redact(command) == command


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "m", "--max-num-batched-tokens", "8192", "--port", "1"],
        ["vllm", "serve", "m", "--max-num-batched-tokens=8k"],
        ["vllm", "serve", "m", "--long-prefill-token-threshold", "4"],
        ["vllm", "serve", "m", "--tokenizer", "t", "--tokenizer-mode=slow"],
        ["python", "bench.py", "--hf-overrides", '{"num_hidden_layers": 2}'],
    ],
)
def test_what_only_looks_like_a_secret_is_kept(command: list[str]) -> None:
    assert redact(command) == command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["vllm", "--api-key", "a", "b", "--port", "1"], ["vllm", "--api-key", "***", "***", "--port", "1"]),
        (["env", "HF_TOKEN=a", "vllm"], ["env", "HF_TOKEN=***", "vllm"]),
        (["vllm", "--hf-token", "1234"], ["vllm", "--hf-token", "***"]),
        (["x", "http://me:pass@host/path"], ["x", "http://me:***@host/path"]),
        (["x", "-H", "Authorization: Bearer abc"], ["x", "-H", "Authorization: ***"]),
        (["x", "hf_abcdefghijkl"], ["x", "***"]),
        (["x", "--use-auth", "--port", "1"], ["x", "--use-auth", "--port", "1"]),
        (["x", "--api-key"], ["x", "--api-key"]),
    ],
)
def test_forms(command: list[str], expected: list[str]) -> None:
    assert redact(command) == expected
