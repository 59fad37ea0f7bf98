"""The wrapper of a layer's call: the call itself, with timestamps before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvtrace.capture._native import TimestampedCall
from kvtrace.probes.device.cuda import Launch


class Ends(NamedTuple):
    """The launches that note a call's start and its end."""

    before: Launch
    after: Launch


def stamped(
    original: Callable[..., object],
    captured: Ends,
    called: Ends,
    stream: Callable[[], int],
    capturing: Callable[[], bool],
    failed: Callable[[Exception], None],
    *,
    in_graphs: bool,
    follows: bool,
) -> Callable[..., object]:
    """A layer's call with its stamps: `native/graph_timestamps.c`.

    Args:
        original: What vLLM calls.
        captured: Its stamps where the call is captured into a graph.
        called: Its stamps where it is not.
        stream: The handle of the stream that the call is to run on.
        capturing: Whether the call is being captured into a graph.
        failed: Called with the exception if a stamp fails; there are none around this call any more then.
        in_graphs: Whether there are stamps in full CUDA graphs, too.
        follows: Whether a call with stamps comes right before this one. In one graph nothing runs between the two, and
            the end of the first is the start of this one; called from Python, it starts when Python gets to it.
    """
    return TimestampedCall(original, *captured, *called, stream, capturing, failed, in_graphs, follows)
