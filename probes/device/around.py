"""What stands in for a layer's call: the call itself, with stamps before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtrace.probes.device.cuda import Launch
from kvtrace.stream import compiled


def stamped(
    original: Callable[..., Any],
    before: Launch,
    after: Launch,
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
        before: Launches the stamp of its start.
        after: Launches the stamp of its end.
        stream: The handle of the stream that the call is to run on.
        capturing: Whether the call is being captured into a graph.
        failed: Called with the exception if a launch fails; there are no stamps around this call any more then.
        in_graphs: Whether there are stamps in full CUDA graphs, too.
        follows: Whether a call with stamps comes right before this one. In one graph nothing runs between the two, and
            the end of the first is the start of this one; launched from Python, it starts when Python gets to it.
    """
    native = compiled()
    if native is not None:
        made: Callable[..., Any] = native.Stamped(
            original, before, after, stream, capturing, failed, in_graphs, follows
        )
        return made
    over = False

    def launched(launch: Launch) -> None:
        nonlocal over
        try:
            launch(stream())
        except Exception as error:  # never the engine's problem
            over = True
            failed(error)

    def around(*args: Any, **kwargs: Any) -> Any:
        captured = capturing()
        if over or (captured and not in_graphs):
            return original(*args, **kwargs)
        if not (follows and captured):
            launched(before)
        result = original(*args, **kwargs)
        if not over:
            launched(after)
        return result

    return around
