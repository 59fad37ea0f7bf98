// The time axis above the lanes.

import { colour } from "../colours";
import { el } from "../dom";
import { clock } from "../format";
import { LEFT, toX, view } from "../view";
import { FONT, timeTicks } from "./lane";

export class Axis {
  readonly element = el("div", "axis");
  private readonly canvas = el("canvas");

  constructor(origin: string) {
    this.element.append(el("div", "gutter unit", `since the ${origin}`), this.canvas);
  }

  draw(): void {
    const ratio = devicePixelRatio || 1, height = this.element.clientHeight;
    const [wide, tall] = [Math.round(view.width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== tall)
      [this.canvas.width, this.canvas.height] = [wide, tall];
    this.canvas.style.width = `${view.width}px`;
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, view.width, height);
    context.font = FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const { times, tick } = timeTicks();
    for (const time of times) {
      const x = Math.round(toX(time)) + 0.5, label = clock(time, tick), half = context.measureText(label).width / 2;
      context.fillStyle = colour("soft");
      context.fillRect(x - 0.5, height - 4, 1, 4);
      context.fillStyle = colour("ink");
      if (x - half > LEFT - 20 && x + half < view.width) context.fillText(label, x, height / 2 - 1);
    }
  }
}
