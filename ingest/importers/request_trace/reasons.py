"""Why requests ended, in vLLM's words."""

from __future__ import annotations

from kvtrace.events import FinishReason


def finish_reason(text: object) -> str | None:
    """The reason as column `request.finish_reason` has it; None if none is told, `other` if it is another one."""
    if text is None:
        return None
    word = str(text).lower()
    return word if word in FinishReason.__members__ else FinishReason.other.name
