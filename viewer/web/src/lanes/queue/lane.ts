// Running and waiting requests.

import type { Engine } from "../../data/engine";
import { LEFT, plotWidth } from "../../view";
import { Chart } from "../chart";
import type { Descriptor } from "../descriptor";
import { eachRun } from "../lane";
import { StepLane } from "../step-lane";

const LINES = ["running", "waiting"].map((name) => ({ name, tone: name }));

class QueueLane extends StepLane {
  private readonly chart = new Chart(this.element, LINES);

  constructor(engine: Engine) {
    super(engine, descriptor);
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

export const descriptor: Descriptor = {
  name: "queue",
  place: 30,
  title: "Queues",
  about: "Running and waiting requests",
  needs: ["steps"],
  height: { usual: 66, tall: 76, several: 78 },
  create: (engine) => new QueueLane(engine),
  legend: () => ({ unit: "requests after a step", entries: LINES.map(({ name, tone }) => [name, tone, "line"]) }),
};
