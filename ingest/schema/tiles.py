"""The tables of tile records."""

from __future__ import annotations

from kvtrace.events import Field
from kvtrace.ingest.schema.declare import BIGINT, INTEGER, Table


def _table(name: str, doc: str, **fields: str) -> Table:
    keys = {
        "process_id": "The worker (`process.process_id`).",
        "engine_id": "The engine that scheduled the step.",
        "step": "Scheduler step.",
    }
    return Table(
        name,
        doc,
        tuple(
            Field(column, BIGINT if column.endswith("_ns") or column in ("slot",) else INTEGER, text)
            for column, text in (keys | fields).items()
        ),
    )


TILE_STEP = _table(
    "tile_step",
    "Steps whose tiles are in this trace (`--kv-level tile`), and what was checked of them.",
    opened_ns="When the GPU came to the step's forward pass.",
    programs="Attention programs recorded.",
    tiles="Tiles of K and V that they read.",
    writes="Cache-write programs recorded.",
    checked_programs="Programs whose block sum was compared with the listed blocks.",
    wrong_programs="Those where it differed: they read other blocks than the layer that lists them.",
    lost_steps="Steps dropped since the recorded one before, for want of room in the ring.",
    filtered_steps="Steps left out since then, by the filters or the rate limit.",
)

GPU_PROGRAM = _table(
    "gpu_program",
    "A program (thread block) of attention: a few queries of one request, one KV head, one layer (observed).",
    program="Index in the step.",
    layer="Layer, as in kv_layer.",
    head="KV head of this rank.",
    row="Row of the batch (`batch_row`).",
    query_block="Which of the request's groups of queries.",
    first_tile="First tile it read, from the start of the sequence.",
    tiles="Tiles it read.",
    tile_tokens="Tokens a tile.",
    start_ns="When it began, before its first tile.",
    end_ns="When its last tile's V was used.",
)

GPU_TILE = _table(
    "gpu_tile",
    "A tile of K and V read by a program (observed). Loads are pipelined: times are when it needed the tile.",
    program="The program (`gpu_program.program`).",
    tile="The tile, counted from the start of the sequence.",
    start_ns="When the program turned to it.",
    k_ns="When the scores with its K were there.",
    v_ns="When its V went into the output.",
    v_start_ns="When the program turned to its V, where that was recorded; NULL: at k_ns.",
)

GPU_BLOCK_LIST = _table(
    "gpu_block_list",
    "Physical blocks as the first layer and head of a KV cache group read them from the block table (observed; of "
    "imported patterns also the blocks that a prefill wrote, in order).",
    layer="The layer that listed them.",
    row="Row of the batch.",
    first_token="First token of the request in the block (or in the tile, where tiles are smaller).",
    kernel_block="The block in the kernel's count.",
    kernel_block_tokens="Tokens of such a block; the block manager's may be larger.",
)

GPU_WRITE = _table(
    "gpu_write",
    "A token's K and V stored in the cache by one program (observed). A store is timed when it is issued.",
    layer="Layer.",
    token="Token of the batch.",
    part="Which part of the heads, where a token is written by several programs.",
    slot="The slot: kernel block times its tokens, plus place.",
    start_ns="When the program began.",
    k_ns="When K was stored.",
    v_ns="When V was stored.",
    v_start_ns="When it began to store V, where that was recorded; NULL: at k_ns.",
)

TILE_TABLES = (TILE_STEP, GPU_PROGRAM, GPU_TILE, GPU_BLOCK_LIST, GPU_WRITE)
