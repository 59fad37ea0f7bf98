"""Requests that vLLM skips before it asks for their blocks, and two that share less than a block.

Run as `python blocked.py CONFIG_JSON`, under `kvtrace record`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 4096


def make_tokenizer(folder: Path) -> None:
    """Printable ASCII characters are a token each, for a grammar."""
    from tokenizers import Tokenizer, models

    words = ["<unk>", "<s>", "</s>", *map(chr, range(32, 127))]
    words += [f"word{number}" for number in range(len(words), VOCABULARY)]
    vocabulary = {word: number for number, word in enumerate(words)}
    folder.mkdir()
    Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))


def main(config: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams

    make_tokenizer(Path(config["engine"]["tokenizer"]))
    llm = LLM(**config["engine"])

    def ask(cases: dict[str, Any], adapters: list[LoRARequest | None]) -> None:
        """Send a prompt for each case, all at once."""
        prompts = [{"prompt_token_ids": [40 + number] * 50} for number in range(len(cases))]
        parameters = [
            SamplingParams(
                max_tokens=3, temperature=0, extra_args={"kvtrace_session": case}, structured_outputs=grammar
            )
            for case, grammar in cases.items()
        ]
        llm.generate(prompts, parameters, use_tqdm=False, lora_request=adapters)

    one, two = (LoRARequest(f"adapter-{number}", number, config["adapter"]) for number in (1, 2))
    ask({"adapter": None, "another-adapter": None, "same-adapter": None}, [one, two, one])
    words = (
        f"{number * 7919 % 100_003:05}" for number in range(8000)
    )  # so many take longer to compile than to schedule
    grammar = StructuredOutputsParams(regex="|".join(words))
    ask({"grammar": grammar, "plain": None}, [None, None])
    for case, token in (("first", 91), ("second", 92), ("third", 93)):
        tags = SamplingParams(max_tokens=1, extra_args={"kvtrace_session": case})
        llm.generate([{"prompt_token_ids": [90] * (100 if token < 93 else 20) + [token] * 200}], tags, use_tqdm=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
