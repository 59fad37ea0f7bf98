"""Stand-in for a layer's call: the call itself, with stamps before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvtrace.capture.stream import compiled
from kvtrace.probes.device.cuda import Launch


class Ends(NamedTuple):
    """Functions that stamp a call's start and its end."""

    before: Launch
    after: Launch


def stamped(
    original: Callable[..., Any],
    captured: Ends,
    called: Ends,
    stream: Callable[[], int],
    capturing: Callable[[], bool],
    failed: Callable[[Exception], None],
    *,
    in_graphs: bool,
    follows: bool,
) -> Callable[..., Any]:
    """A layer's call with its stamps; in compiled code where there is some.

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
    native = compiled()
    if native is not None:
        made: Callable[..., Any] = native.Stamped(
            original, *captured, *called, stream, capturing, failed, in_graphs, follows
        )
        return made
    over = False

    def stamp(launch: Launch) -> None:
        nonlocal over
        try:
            launch(stream())
        except Exception as error:  # never the engine's problem
            over = True
            failed(error)

    def around(*args: Any, **kwargs: Any) -> Any:
        in_graph = capturing()
        if over or (in_graph and not in_graphs):
            return original(*args, **kwargs)
        ends = captured if in_graph else called
        if not (follows and in_graph):
            stamp(ends.before)
        result = original(*args, **kwargs)
        if not over:
            stamp(ends.after)
        return result

    return around
