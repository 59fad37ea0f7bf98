// How full the GPU's KV pool is, and how much was evicted from the prefix cache.

import { colour, pixel } from "../colours";
import type { Engine } from "../data/engine";
import { count } from "../format";
import { Image } from "../image";
import { LEFT } from "../view";
import { eachRun, pickRows } from "./lane";
import { StepLane } from "./steps";

export class PoolLane extends StepLane {
  private readonly most: number;

  constructor(engine: Engine) {
    super(engine, "pool", "KV pool (GPU)", "Blocks in use, free but cached, and free; blocks evicted");
    const size = engine.facts["block_size_tokens"] as number | null;
    const pool = engine.pool, touched = engine.contents.blocks.blocks;
    // Of a pool that is nearly empty all the time, the part that was ever touched.
    this.most = touched && touched < pool / 3 ? touched : pool;
    const of = this.most < pool ? `up to ${count(touched)} of ${count(pool)}` : "";
    this.explain(of || (size ? `blocks of ${count(size)} tokens` : "blocks"), [
      ["in use", "used"],
      ["free, still cached", "cached"],
      ["free", "free"],
      ["evicted (below)", "evicted"],
    ]);
  }

  override paint(): void {
    const most = Math.max(1, this.most), band = 14, floor = this.height - 6 - band;
    // What follows from events can exceed the pool where they are incomplete; the notes say so.
    const toY = (value: number) => floor - Math.min(1, value / most) * (floor - 6);
    const image = new Image(this.height, 0),
      [inUse, cache, empty, gone] = ["used", "cached", "free", "evicted"].map(pixel);
    const fill = (low: number, high: number, x: number, width: number, tone: number) => {
      image.bar(x - LEFT, Math.round(toY(high)), width, Math.round(toY(low)) - Math.round(toY(high)), tone);
    };
    const evictions = pickRows(
      this.engine.steps.find(this.from, this.to).parts,
      this.places,
      (columns) => columns.num("evicted_blocks"),
      false,
    );
    const picked = this.pick((columns) => columns.num("used_blocks"), true);
    eachRun(picked, (part, row, x, width) => {
      const used = this.cell("used_blocks", part, row), cached = this.cell("free_cached_blocks", part, row) || 0;
      fill(0, used, x, width, inUse!);
      fill(used, used + cached, x, width, cache!);
      fill(used + cached, used + this.cell("free_blocks", part, row), x, width, empty!);
    });
    this.context.textAlign = "right";
    this.context.fillStyle = colour("soft");
    for (const value of [0, Math.round(most / 2), most])
      this.context.fillText(count(value), 163, Math.max(6, toY(value)));
    const evicted = Math.max(1, this.greatestPicked(evictions, (part, row) => this.cell("evicted_blocks", part, row)));
    eachRun(evictions, (part, row, x, width) => {
      const amount = this.cell("evicted_blocks", part, row);
      if (amount > 0)
        image.bar(
          x - LEFT,
          floor + 4,
          width > 3 ? width - 1 : width,
          Math.max(2, Math.round(amount / evicted * band)),
          gone!,
        );
    });
    image.put(this.context, 0);
  }
}
