// Lines over time, drawn by uPlot from at most two points a pixel.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour } from "../colours";
import { el } from "../dom";
import { count } from "../format";
import { LEFT, RIGHT, view } from "../view";
import { FONT } from "./lane";

export interface Line {
  name: string;
  tone: string;
}

// A uPlot chart under the lane's canvas; its axes and the gutter are in the lane's own places.
export class Chart {
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
