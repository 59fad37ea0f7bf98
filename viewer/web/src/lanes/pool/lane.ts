// How full the GPU's KV pool is, and how much was evicted from the prefix cache.

import { colour, pixel } from "../../colours";
import type { Engine } from "../../data/engine";
import { count } from "../../format";
import { Image } from "../../image";
import { LEFT } from "../../view";
import type { Descriptor } from "../descriptor";
import { eachRun, pickRows } from "../lane";
import { StepLane } from "../step-lane";

// The blocks that the lane is as high as: of a pool that is nearly empty all the time, the part that was ever touched.
function shownBlocks(engine: Engine): number {
  const touched = engine.contents.blocks.blocks;
  return touched && touched < engine.pool / 3 ? touched : engine.pool;
}

class PoolLane extends StepLane {
  constructor(engine: Engine) {
    super(engine, descriptor);
  }

  override paint(): void {
    const most = Math.max(1, shownBlocks(this.engine)), band = 14, floor = this.height - 6 - band;
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

export const descriptor: Descriptor = {
  name: "pool",
  place: 40,
  title: "KV pool (GPU)",
  about: "Blocks in use, free but cached, and free; blocks evicted",
  needs: ["steps"],
  height: { usual: 100, tall: 120, several: 112 },
  create: (engine) => new PoolLane(engine),
  legend(engine) {
    const size = engine.facts["block_size_tokens"] as number | null, shown = shownBlocks(engine);
    const part = shown < engine.pool ? `up to ${count(shown)} of ${count(engine.pool)}` : "";
    return {
      unit: part || (size ? `blocks of ${count(size)} tokens` : "blocks"),
      entries: [
        ["in use", "used"],
        ["free, still cached", "cached"],
        ["free", "free"],
        ["evicted (below)", "evicted"],
      ],
    };
  },
  words: [
    ["free, still cached", "free for reuse, and findable by its hash until then"],
    ["evicted", "a cached block was taken for something else"],
  ],
};
