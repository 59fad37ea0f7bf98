"""Tile level for FlashAttention 4: its kernel for Hopper, rewritten at load, records what Triton's do.

`rewrite` changes the syntax tree of the installed class, `recorder` is what the rewritten kernel calls, and `launch`
puts it in the place of vLLM's own. Ring, records, drain and ingest are those of Triton's kernels.
"""

from kvtrace.probes.device.tiles.fa4.launch import install

__all__ = ["install"]
