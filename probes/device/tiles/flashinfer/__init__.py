"""Tile level for FlashInfer on Hopper: its headers, rewritten before it compiles them, record what Triton's kernels do.

`rewrite` changes the text of the installed headers, `recorder` is what the rewritten kernels call, `overlay` lays both
before FlashInfer's own where it compiles attention, and `launch` puts the result in place. Ring, records, drain and
ingest are those of Triton's kernels.
"""

from kvtrace.probes.device.tiles.flashinfer.launch import install

__all__ = ["install"]
