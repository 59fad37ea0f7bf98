// Lanes of lines over time, drawn by uPlot from at most two points a pixel.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour } from "../colours";
import { lastAtMost } from "../data/columns";
import type { Engine } from "../data/engine";
import { el } from "../dom";
import { clock, count } from "../format";
import { LEFT, plotWidth, RIGHT, view } from "../view";
import { eachRun, FONT, greatest, type Hit } from "./lane";
import { StepLane } from "./steps";

interface Line {
  name: string;
  tone: string;
}

// A uPlot chart under the lane's canvas; its axes and the gutter are in the lane's own places.
class Chart {
  private plot: uPlot | null = null;
  private tones = "";
  private readonly holder = el("div", "chart");

  constructor(lane: HTMLElement, private readonly lines: Line[]) {
    lane.prepend(this.holder);
  }

  draw(data: uPlot.AlignedData, from: number, to: number, most: number, height: number): void {
    const tones = [...this.lines.map((line) => colour(line.tone)), colour("grid"), colour("soft")].join();
    if (!this.plot || tones !== this.tones) {
      this.plot?.destroy();
      this.tones = tones;
      this.plot = this.make(height);
    }
    if (this.plot.width !== view.width || this.plot.height !== height) this.plot.setSize({ width: view.width, height });
    this.plot.batch(() => {
      this.plot!.setData(data, false);
      this.plot!.setScale("x", { min: from, max: to });
      this.plot!.setScale("y", { min: 0, max: most });
    });
  }

  private make(height: number): uPlot {
    const stepped = uPlot.paths.stepped!({ align: 1 });
    return new uPlot(
      {
        width: view.width,
        height,
        padding: [7, RIGHT, 5, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false, auto: false }, y: { auto: false } },
        axes: [{ show: false }, {
          size: LEFT,
          font: FONT,
          stroke: colour("soft"),
          gap: 3,
          space: 22,
          grid: { stroke: colour("grid"), width: 1 },
          ticks: { show: false },
          values: (_plot, values) => values.map((value) => (Number.isInteger(value) ? count(value) : "")),
        }],
        series: [
          {},
          ...this.lines.map((line): uPlot.Series => ({
            label: line.name,
            stroke: colour(line.tone),
            width: 1.6,
            paths: stepped,
            points: { show: false },
          })),
        ],
      },
      [[], ...this.lines.map(() => [])] as unknown as uPlot.AlignedData,
      this.holder,
    );
  }
}

export class QueueLane extends StepLane {
  private readonly chart: Chart;

  constructor(engine: Engine) {
    super(engine, "queue", "Queues", "Running and waiting requests");
    this.explain("requests after a step", [["running", "running", "line"], ["waiting", "waiting", "line"]]);
    this.chart = new Chart(this.element, [{ name: "running", tone: "running" }, { name: "waiting", tone: "waiting" }]);
  }

  override paint(): void {
    const xs: number[] = [], running: number[] = [], waiting: number[] = [];
    const picked = this.pick((columns) => columns.num("waiting"), true);
    eachRun(picked, (part, row, x) => {
      xs.push(this.time(x));
      running.push(this.cell("running", part, row));
      waiting.push(this.cell("waiting", part, row));
    });
    if (xs.length) {
      xs.push(this.time(LEFT + plotWidth()));
      running.push(running[running.length - 1]!);
      waiting.push(waiting[waiting.length - 1]!);
    }
    const most = Math.max(1, ...running, ...waiting);
    this.chart.draw([xs, running, waiting], this.from, this.to, most, this.height);
  }
}

// How full the offload tiers are.
export class TiersLane extends StepLane {
  private readonly chart: Chart;
  private readonly names: string[];

  constructor(engine: Engine) {
    super(engine, "tiers", "Offload tiers", "Blocks held by each offload tier");
    this.names = Object.keys(engine.contents.tier_capacity).length
      ? Object.keys(engine.contents.tier_capacity)
      : ["cpu"];
    const tones = ["host", "store", "load", "shared"];
    const capacity = engine.contents.tier_capacity;
    this.explain(
      "blocks held",
      this.names.map((
        name,
        i,
      ) => [capacity[name] ? `${name}, room for ${count(capacity[name])}` : name, tones[i % tones.length]!, "line"]),
    );
    this.chart = new Chart(this.element, this.names.map((name, i) => ({ name, tone: tones[i % tones.length]! })));
  }

  static override offered(engine: Engine): boolean {
    return !engine.tiers.empty;
  }

  override paint(): void {
    const { parts } = this.engine.tiers.find(-Infinity, Infinity), width = Math.ceil(plotWidth());
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
    for (const { columns } of this.engine.tiers.find(-Infinity, Infinity).parts) {
      const last = lastAtMost(columns.num("start_ns"), time);
      if (last >= 0)
        lines.push(`${columns.text("tier", last)}: ${count(columns.num("occupied_blocks")[last])} blocks held`);
    }
    return { selection: null, lines };
  }
}
