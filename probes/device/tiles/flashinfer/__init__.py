"""Tile level for FlashInfer on Hopper: its headers, rewritten before it compiles them, record what Triton's kernels do.

`rewrite` changes the text of the installed headers, `recorder` is what the rewritten kernel calls, and `overlay` lays
both before FlashInfer's own where it compiles attention. Ring, records, drain and ingest are those of Triton's kernels.
"""
