"""Where stamps run: beside the main line in a CUDA graph under capture, on the main stream otherwise.

In a graph, a stamp on a branch of its own starts when the kernel before it has ended, and the main line does not wait
for it. All branches of a graph are joined to its main line just before its capture ends, or the capture would fail.
Only captures that go through `torch.cuda.CUDAGraph` are branched; in any other the stamps stay on the main line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Branch:
    """Follows torch's graph captures on the current device."""

    def __init__(self) -> None:
        import torch

        self.capturing = False
        self._torch = torch
        self._raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._device = torch.cuda.current_device()
        self._side: Any = torch.cuda.Stream(priority=-1)  # a stamp should not queue behind the kernel it precedes
        self._side_raw = int(self._side.cuda_stream)
        self._forked = False
        graph = torch.cuda.CUDAGraph
        self._originals = graph.capture_begin, graph.capture_end
        begin, end = self._originals

        def capture_begin(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = begin(this, *args, **kwargs)
            self.capturing = True
            return result

        def capture_end(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.capturing = False
            if self._forked:
                self._forked = False
                torch.cuda.current_stream().wait_stream(self._side)
            return end(this, *args, **kwargs)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end

    def main(self) -> int:
        """The current stream."""
        return self._raw_stream(self._device)

    def side(self) -> int:
        """The stream for a stamp of this moment; in a capture, one that has waited for the current stream."""
        if not self.capturing:
            return self._raw_stream(self._device)
        event = self._torch.cuda.Event()
        event.record()
        self._side.wait_event(event)
        self._forked = True
        return self._side_raw

    def undo(self) -> None:
        """Put torch's own capture methods back."""
        graph = self._torch.cuda.CUDAGraph
        graph.capture_begin, graph.capture_end = self._originals
