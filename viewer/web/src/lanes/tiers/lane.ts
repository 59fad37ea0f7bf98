// How full the offload tiers are.

import { lastAtMost } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { clock, count } from "../../format";
import { LEFT, plotWidth } from "../../view";
import { Chart, type Line } from "../chart";
import type { Descriptor } from "../descriptor";
import { greatest, type Hit } from "../lane";
import { StepLane } from "../step-lane";

const TONES = ["host", "store", "load", "shared"];

function linesOf({ contents: { tier_capacity } }: Engine): Line[] {
  const names = Object.keys(tier_capacity);
  return (names.length ? names : ["cpu"]).map((name, place) => ({ name, tone: TONES[place % TONES.length]! }));
}

class TiersLane extends StepLane {
  private readonly names = linesOf(this.engine).map(({ name }) => name);
  private readonly chart = new Chart(this.element, linesOf(this.engine));

  constructor(engine: Engine) {
    super(engine, descriptor);
  }

  override paint(): void {
    const { parts } = this.engine.table("tiers").find(-Infinity, Infinity), width = Math.ceil(plotWidth());
    const rows = this.names.map(() => new Array<number | null>(width + 1).fill(null));
    let most = Math.max(1, ...this.names.map((name) => this.engine.contents.tier_capacity[name] ?? 0));
    for (const { columns } of parts) {
      const starts = columns.num("start_ns"), held = columns.num("occupied_blocks");
      most = Math.max(most, greatest(held));
      for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
        const line = rows[this.names.indexOf(columns.text("tier", row) ?? "")];
        if (line) line[Math.max(0, Math.min(width, Math.round(this.x(starts[row]!) - LEFT)))] = held[row]!;
      }
    }
    for (const line of rows) for (let x = 1; x <= width; x++) line[x] ??= line[x - 1]!;
    const xs = Array.from({ length: width + 1 }, (_, x) => this.time(LEFT + x));
    this.chart.draw([xs, ...rows], this.from, this.to, most, this.height);
  }

  override hit(x: number): Hit | null {
    const time = this.time(x), lines = [clock(time, 1e5)];
    for (const { columns } of this.engine.table("tiers").find(-Infinity, Infinity).parts) {
      const last = lastAtMost(columns.num("start_ns"), time);
      if (last < 0) continue;
      lines.push(`${columns.text("tier", last)}: ${count(columns.num("occupied_blocks")[last])} blocks held`);
    }
    return { selection: null, lines };
  }
}

export const descriptor: Descriptor = {
  name: "tiers",
  place: 70,
  title: "Offload tiers",
  about: "Blocks held by each offload tier",
  needs: ["tiers"],
  height: { usual: 60 },
  create: (engine) => new TiersLane(engine),
  legend(engine) {
    const capacity = engine.contents.tier_capacity;
    const named = (name: string) => (capacity[name] ? `${name}, room for ${count(capacity[name])}` : name);
    return { unit: "blocks held", entries: linesOf(engine).map(({ name, tone }) => [named(name), tone, "line"]) };
  },
};
