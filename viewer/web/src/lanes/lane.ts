// The base of all lanes: an element with a gutter and a canvas, the time grid, scales, and rows picked by pixel.

import { colour } from "../colours";
import { type Columns, lastAtMost, type Numbers } from "../data/columns";
import type { Engine } from "../data/engine";
import type { Part } from "../data/levels";
import { el, outside } from "../dom";
import { count, shorten } from "../format";
import { LEFT, plotWidth, type Selection, toX, view } from "../view";

export const FONT = "10px system-ui, \"DejaVu Sans\", sans-serif";

// Of texts in `FONT`.
const widths = new Map<string, number>(), MOST_WIDTHS = 10_000;

export type Legend = [name: string, colour: string, shape?: string][];

// How a lane looks. Its descriptor has more, for the rest of the page.
export interface Look {
  // In addresses (`hide=`), and the element's `data-lane`.
  name: string;
  title: string;
  // Its meaning in a sentence: for the help and for screen readers.
  about: string;
  // In pixels; `tall` in a high window, `several` where several engines are shown.
  height?: { usual: number; tall?: number; several?: number };
  // Of a lane whose legend changes with what is in sight, `paint` calls `explain` instead.
  legend?(engine: Engine): { unit: string; entries: Legend };
}

// Where times are: pixels from the plot's left are `time * scale + origin`.
interface Places {
  scale: number;
  origin: number;
}

// The thing under the pointer: the selection that a click makes, and lines for the tooltip.
export interface Hit {
  selection: Selection | null;
  lines: (Node | string)[];
}

export abstract class Lane {
  readonly element: HTMLElement;
  protected readonly canvas = el("canvas");
  protected context!: CanvasRenderingContext2D;
  protected height = 0;
  private readonly unit = el("span", "unit");
  private readonly legend = el("ul", "legend");
  private explained = "";

  // True if places left of the plot belong to the marks beside them.
  readonly hitsGutter: boolean = false;

  constructor(readonly engine: Engine, private readonly look: Look) {
    const { name, title, about, height, legend } = look;
    this.element = el("div", "lane");
    this.element.dataset["lane"] = name;
    for (const [when, pixels] of Object.entries(height ?? {})) {
      this.element.style.setProperty(`--${when}`, `${pixels}px`);
    }
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", about);
    const run = view.engines.length > 1 ? [el("span", "run", outside(shorten(engine.title, 26)))] : [];
    this.element.append(el("div", "gutter", ...run, el("b", "", title), this.unit, this.legend), this.canvas);
    if (!legend) return;
    const { unit, entries } = legend(engine);
    this.explain(unit, entries);
  }

  get name(): string {
    return this.look.name;
  }

  abstract paint(): void;
  abstract hit(x: number, y: number): Hit | null;

  // Brings what was selected into sight, where the lane lists more than it has room for.
  reveal(_selection: Selection): void {}

  // Shows more or fewer rows around a place, in a lane that can.
  zoomRows(_factor: number, _y: number): boolean {
    return false;
  }

  // Numbers of the things it lists, from the top.
  get listed(): number[] {
    return [];
  }

  // True if the wheel scrolls in the lane.
  get scrolls(): boolean {
    return false;
  }

  draw(): void {
    if (this.element.hidden || !this.inSight()) return;
    this.begin();
    try {
      this.paint();
      this.paintSelection();
    } catch (error) {
      throw new Error(`lane ${this.name}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
    }
  }

  protected explain(unit: string, legend: Legend): void {
    // What is the same stays: any change makes the browser lay out the page again.
    const key = `${unit}\n${legend.join("\n")}`;
    if (key === this.explained) return;
    this.explained = key;
    this.unit.textContent = unit;
    this.legend.replaceChildren(...legend.map(([name, tone, shape]) => {
      const swatch = el("span", `swatch ${shape ?? ""}`);
      swatch.style.background = tone.startsWith("rgb") ? tone : `var(--${tone})`;
      return el("li", "", swatch, name);
    }));
  }

  protected inSight(): boolean {
    const parent = this.element.parentElement!;
    const top = this.element.offsetTop - parent.scrollTop;
    return top < parent.clientHeight && top + this.element.offsetHeight > 0;
  }

  protected begin(): void {
    const ratio = devicePixelRatio || 1;
    this.height = this.element.clientHeight;
    const [wide, tall] = [Math.round(view.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== tall) {
      [this.canvas.width, this.canvas.height] = [wide, tall];
      this.canvas.style.width = `${view.width}px`;
      this.canvas.style.height = `${this.height}px`;
    }
    this.context = this.canvas.getContext("2d")!;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, view.width, this.height);
    this.context.font = FONT;
    this.context.textBaseline = "middle";
  }

  // The engine's time at a place and back.
  protected x(time: number): number {
    return toX(time - this.engine.shift);
  }
  protected get from(): number {
    return view.from + this.engine.shift;
  }
  protected get to(): number {
    return view.to + this.engine.shift;
  }

  protected time(x: number): number {
    return this.from + (x - LEFT) / plotWidth() * (view.to - view.from);
  }

  // The same for many times.
  protected get places(): Places {
    const scale = plotWidth() / (view.to - view.from);
    return { scale, origin: -this.from * scale };
  }

  protected timeGrid(): void {
    this.context.fillStyle = colour("grid");
    for (const time of timeTicks().times) this.context.fillRect(Math.round(toX(time)), 0, 1, this.height);
  }

  // Horizontal scale from 0 to `most`: grid lines and labels; gives value -> y.
  protected scale(most: number, ticks: number[], format: (value: number) => string = count): (value: number) => number {
    const top = 8, bottom = this.height - 6;
    const toY = (value: number) => bottom - value / most * (bottom - top);
    this.context.textAlign = "right";
    for (const value of ticks) {
      const y = Math.round(toY(value));
      this.context.fillStyle = colour("grid");
      this.context.fillRect(LEFT, y, plotWidth(), 1);
      this.context.fillStyle = colour("soft");
      this.context.fillText(format(value), LEFT - 5, Math.min(this.height - 6, Math.max(6, y)));
    }
    return toY;
  }

  // Measuring takes the browser long, and what is written is mostly what was written before.
  protected widthOf(text: string): number {
    let width = widths.get(text);
    if (width === undefined) {
      if (widths.size > MOST_WIDTHS) widths.clear();
      widths.set(text, width = this.context.measureText(text).width);
    }
    return width;
  }

  protected say(text: string): void {
    this.context.fillStyle = colour("soft");
    this.context.textAlign = "left";
    this.context.fillText(text, LEFT + 8, this.height / 2, plotWidth() - 16);
  }

  // A selected stretch of time stands out in every lane of its engine.
  protected paintSelection(): void {
    const now = view.selection;
    if (!now?.span || now.engine !== this.engine) return;
    const x = Math.max(LEFT, this.x(now.span[0])), end = Math.min(view.width, this.x(now.span[1]));
    if (end < LEFT || x > view.width) return;
    this.context.globalAlpha = now.kind === "request" ? 0.05 : 0.08;
    this.context.fillStyle = colour("ink");
    this.context.fillRect(x, 0, Math.max(1, end - x), this.height);
    this.context.globalAlpha = now.kind === "request" ? 0.35 : 0.8;
    for (const edge of [x, end]) this.context.fillRect(Math.round(edge), 0, 1, this.height);
    this.context.globalAlpha = 1;
  }
}

function niceTick(span: number, most: number): number {
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((digit) => digit * power).find((tick) => tick >= rough) ?? 10 * power;
}

export function timeTicks(): { times: number[]; tick: number } {
  const tick = niceTick(view.to - view.from, Math.max(2, plotWidth() / 110)), times: number[] = [];
  for (let time = Math.ceil(view.from / tick) * tick; time <= view.to; time += tick) times.push(time || 0);
  return { times, tick };
}

export function wholeTicks(most: number, wanted: number): number[] {
  const tick = Math.max(1, niceTick(most, wanted)), ticks: number[] = [];
  for (let value = 0; value <= most; value += tick) ticks.push(value);
  return ticks;
}

// Which row of which part each pixel column of the plot shows; -1 where nothing is.
export interface Picked {
  part: Int16Array;
  row: Int32Array;
}

// Where several rows share a pixel, the one with the greatest value shows. `held`: a row lasts until the next one starts.
export function pickRows(
  parts: Part<"steps">[],
  { scale, origin }: Places,
  values: (columns: Columns<"steps">) => ArrayLike<number>,
  held: boolean,
): Picked {
  const width = Math.ceil(plotWidth());
  const picked: Picked = { part: new Int16Array(width).fill(-1), row: new Int32Array(width).fill(-1) };
  const best = new Float64Array(width).fill(-Infinity), { part: pickedPart, row: pickedRow } = picked;
  const from = -origin / scale, to = (width - origin) / scale;
  for (let index = 0; index < parts.length; index++) {
    const { columns } = parts[index]!, rows = columns.rows, value = values(columns);
    const starts = columns.num("start_ns"), ends = held ? starts : columns.num("end_ns");
    for (let row = Math.max(0, lastAtMost(starts, from) - (held ? 0 : 8)); row < rows; row++) {
      const start = starts[row]!;
      if (start > to) break;
      const end = held
        ? (row + 1 < rows
          ? starts[row + 1]!
          : parts[index + 1]?.columns.num("start_ns")[0] ?? columns.num("end_ns")[row]!)
        : ends[row]!;
      const low = Math.max(0, Math.floor(start * scale + origin));
      // An unknown end is no number, and compares as smaller.
      const stop = Math.round(end * scale + origin), high = Math.min(width, stop > low ? stop : low + 1);
      if (stop < 0) continue;
      const amount = value[row]!;
      for (let at = low; at < high; at++) {
        if (amount > best[at]! || pickedRow[at]! < 0) {
          pickedPart[at] = index;
          pickedRow[at] = row;
          best[at] = amount;
        }
      }
    }
  }
  return picked;
}

// Calls `run(part, row, x, width)` for each stretch of pixels that shows one row.
export function eachRun(picked: Picked, run: (part: number, row: number, x: number, width: number) => void): void {
  const { part, row } = picked;
  for (let x = 0; x < row.length;) {
    let end = x + 1;
    while (end < row.length && row[end] === row[x] && part[end] === part[x]) end++;
    if (row[x]! >= 0) run(part[x]!, row[x]!, LEFT + x, end - x);
    x = end;
  }
}

export function greatest(values: Numbers): number {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}
