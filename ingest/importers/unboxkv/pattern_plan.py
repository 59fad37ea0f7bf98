"""Requests and blocks of a step's lines: UnBoxKV-IO tells requests apart by their place in the batch only.

Prompts come in the order of `seq_lens`. A decoding row is the request whose table starts with the first block it reads;
without reads, the request that owns the block it writes to; a row that begins a new block unread is taken to be the
next one in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtrace.ingest.importers.unboxkv.pattern_file import Layout, Pattern


@dataclass
class Request:
    """A request as the patterns show it."""

    number: int  # from 1, in order of first appearance
    prompt_tokens: int | None
    tokens: int = 0  # whose KV exists
    decoded: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def outputs(self) -> int:
        """Output tokens it had at the last step: its prefill gives the first one."""
        return self.decoded + (self.prompt_tokens is not None)


@dataclass
class Row:
    """A request's share of a step: its place in the batch and what it wrote."""

    request: Request | None  # None: it cannot be told
    decode: bool
    tokens: int
    computed: int
    blocks_before: int  # in its table
    blocks: int  # in its table after the step


_NOBODY = Row(None, False, 0, 0, 0, 0)


@dataclass
class StepPlan:
    """A step's rows, in the order of the batch, and how many tokens of it nobody can be named for."""

    step: int
    opened_ns: int
    rows: list[Row]
    unknown_tokens: int = 0


class Planner:
    """Follows the requests of a run from step to step."""

    def __init__(self, layout: Layout | None, block_tokens: int) -> None:
        self.requests: list[Request] = []
        self._layout = layout
        self._block_tokens = block_tokens

    def plan(self, step: int, opened_ns: int, written: Pattern | None, read: Pattern | None) -> StepPlan:
        """The rows of a step, from one layer's lines. Steps must come in order."""
        first = written or read
        tokens_of = first.tokens_of if first else ()
        tokens = None if written is None or written.writes is None else len(written.writes)
        tables = self._tables(read)
        prompts, decodes = self._split(list(tokens_of), tokens, None if read is None else len(tables))
        rows: list[Row] = []
        blocks, places = self._slots(written)
        chunks = self._chunks(prompts, None if tokens is None else tokens - decodes)
        at = 0
        for length, chunk in zip(prompts, chunks or [0] * len(prompts), strict=True):
            rows.append(self._prefill(length, chunk, blocks[at : at + chunk]) if chunks else _NOBODY)
            at += chunk
        unknown = 0 if chunks or tokens is None else tokens - decodes
        blocks, places = blocks[at + unknown :], places[at + unknown :]
        owners = self._owners(tables, blocks, places, decodes)
        for nth, request in enumerate(owners):
            table = tables[nth] if nth < len(tables) else []
            rows.append(self._decode(request, table, blocks[nth : nth + 1], places[nth : nth + 1]))
        return StepPlan(step, opened_ns, rows, unknown)

    def _split(self, tokens_of: list[int], tokens: int | None, read_rows: int | None) -> tuple[list[int], int]:
        """The prompts' lengths and the number of decoding rows."""
        ones = all(length == 1 for length in tokens_of)
        if ones and (read_rows == len(tokens_of) or (read_rows is None and self.requests)):
            return [], len(tokens_of)
        if read_rows is not None:
            return tokens_of, read_rows
        return tokens_of, max(0, (tokens or 0) - sum(tokens_of))

    def _chunks(self, prompts: list[int], tokens: int | None) -> list[int] | None:
        """Tokens of each prompt in this step; None if a step's chunks of several prompts cannot be told apart."""
        if tokens is None or sum(prompts) == tokens:
            return prompts
        return [tokens] if len(prompts) == 1 and 0 <= tokens < prompts[0] else None

    def _slots(self, written: Pattern | None) -> tuple[list[int], list[int]]:
        if written is None or written.writes is None or self._layout is None:
            return [], []
        return self._layout.blocks_of(written.writes).tolist(), self._layout.places_of(written.writes).tolist()

    def _tables(self, read: Pattern | None) -> list[list[int]]:
        """The block table of each reading row, as its warps' lists show it."""
        if read is None or read.reads is None:
            return []
        tables = []
        for row in read.reads.k:
            found = {}
            for slot in (row[:, 2] >= 0).nonzero()[0].tolist():
                warp, nth = divmod(slot, read.reads.entries_a_warp)
                found[nth * read.reads.warps + warp] = int(row[slot, 2])
            tables.append([found[position] for position in sorted(found)])
        return tables

    def _prefill(self, length: int, chunk: int, blocks: list[int]) -> Row:
        going_on = next((r for r in self.requests if r.tokens == length - chunk > 0 and not r.decoded), None)
        request = going_on or self._new(length)
        request.prompt_tokens = length
        before, computed = len(request.blocks), request.tokens
        request.blocks += [block for block in dict.fromkeys(blocks) if block not in request.blocks[-1:]]
        request.tokens += chunk
        return Row(request, False, chunk, computed, before, len(request.blocks))

    def _decode(self, request: Request, table: list[int], blocks: list[int], places: list[int]) -> Row:
        if not request.tokens:  # its prefill is not in the data: of its length, only whole blocks are known
            request.tokens = max(0, (len(table) - 1) * self._block_tokens)
        before, computed = len(request.blocks), request.tokens
        if table[before:] and table[:before] == request.blocks:
            request.blocks += table[before:]
        elif blocks and (places == [0] or not request.blocks) and blocks[0] not in request.blocks[-1:]:
            request.blocks += blocks
        request.tokens += 1
        request.decoded += 1
        return Row(request, True, 1, computed, before, len(request.blocks))

    def _owners(self, tables: list[list[int]], blocks: list[int], places: list[int], rows: int) -> list[Request]:
        by_first = {r.blocks[0]: r for r in self.requests if r.blocks}
        by_last = {r.blocks[-1]: r for r in self.requests if r.blocks}
        found: list[Request | None] = [None] * rows
        for row in range(rows):
            if row < len(tables) and tables[row]:
                found[row] = by_first.get(tables[row][0])
            elif row < len(blocks) and places[row] > 0:
                found[row] = by_last.get(blocks[row])
        named = {request.number for request in found if request}
        others = iter([r for r in self.requests if r.number not in named])
        return [request or (None if row < len(tables) else next(others, None)) or self._new(None)
                for row, request in enumerate(found)]  # fmt: skip

    def _new(self, prompt_tokens: int | None) -> Request:
        self.requests.append(Request(len(self.requests) + 1, prompt_tokens))
        return self.requests[-1]
