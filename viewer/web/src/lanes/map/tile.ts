// A chunk of the KV map: each block's changes, found by the block.

import { type Columns, lastAtMost, type Numbers, perChunk } from "../../data/columns";

export class Tile {
  // Blocks in the chunk, ascending, and where the changes of each begin.
  readonly blocks: Int32Array;
  readonly first: Int32Array;
  readonly time: Numbers;
  readonly state: Numbers;
  readonly owner: Numbers;
  // 1 where this change took a cached block for something else.
  readonly evicted: Numbers;

  private constructor(columns: Columns<"blocks">) {
    const block = columns.num("block"), blocks: number[] = [], first: number[] = [];
    for (let row = 0; row < columns.rows; row++) {
      if (row && block[row] === block[row - 1]) continue;
      blocks.push(block[row]!);
      first.push(row);
    }
    first.push(columns.rows);
    this.blocks = Int32Array.from(blocks);
    this.first = Int32Array.from(first);
    this.time = columns.num("time_us");
    this.state = columns.num("state");
    this.owner = columns.num("owner");
    this.evicted = columns.num("evicted");
  }

  static readonly of = perChunk((columns: Columns<"blocks">) => new Tile(columns));

  // The position of a block among this chunk's; of a chunk that shows only some, of the nearest one.
  nearest(block: number): number {
    const low = lastAtMost(this.blocks, block);
    if (low < 0) return this.blocks.length ? 0 : -1;
    const next = this.blocks[low + 1];
    return next !== undefined && next - block < block - this.blocks[low]! ? low + 1 : low;
  }
}
