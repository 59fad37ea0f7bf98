"""Tile level: Triton's attention and cache write rewritten at load so that each program tells what it read and when.

`rewrite` changes the syntax tree of the installed source, `source` finds its way around in that tree, `clock` is what
the rewritten kernels call, `ring` is the memory they write to, `launch` puts them in the place of vLLM's own and
`drain` brings home what they wrote.
"""
