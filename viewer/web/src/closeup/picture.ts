// The picture of a step's KV accesses: layer by time above, block by time below, both zoomed as one.

import { colour, pixel } from "../colours";
import { type Columns, lastAtMost, type Numbers, perChunk } from "../data/columns";
import type { AccessKind } from "../data/contract";
import { type Found, type Levels, NOTHING } from "../data/levels";
import { count, duration } from "../format";
import { FONT } from "../lanes/lane";

export const EDGE = 62, LAYERS = 190, BLOCKS = 340, GAP = 24, BELOW = 30, RIGHT = 10;
const NARROWEST_NS = 200, FEWEST = 4;

export const KINDS: Record<AccessKind, [name: string, tone: string]> = {
  attention: ["read by attention", "read"],
  k_read: ["K read", "read"],
  v_read: ["V read", "read-v"],
  write: ["written", "write"],
  k_write: ["K written", "write"],
  v_write: ["V written", "write-v"],
};

type Accesses = "accesses" | "access_bins";
export const ORDER = Object.keys(KINDS) as AccessKind[];

// Of an access or a layer's window.
export const kindOf = (columns: Columns, row: number): AccessKind => columns.text("kind", row);
const isWrite = (kind: AccessKind): boolean => kind.includes("write");

// What a place in the picture shows.
export interface Spot {
  columns: Columns;
  row: number;
  exact: boolean;
}

// Each access's kind, by its place in `ORDER`.
const codesOf = perChunk((columns: Columns<Accesses>) => columns.codes("kind", ORDER));

export class Picture {
  readonly first: number;
  readonly last: number;
  from: number;
  to: number;
  // The blocks in sight, by their rank among those of the step.
  low = 0;
  high: number;
  readonly layers: number[];
  // Kinds of access that occur, in the order of the legend.
  readonly order: AccessKind[];
  found: Found<Accesses> = NOTHING;

  constructor(
    readonly canvas: HTMLCanvasElement,
    readonly accesses: Levels<Accesses>,
    readonly windows: Columns<"windows">,
    readonly blocks: Numbers,
    private readonly width: number,
  ) {
    const starts = windows.num("start_ns"), ends = windows.num("end_ns"), spans = accesses.finest;
    this.first = this.from = Math.min(...starts, ...spans.map((each) => each.from_ns ?? Infinity));
    this.last = this.to = Math.max(...ends, ...spans.map((each) => each.to_ns ?? -Infinity));
    this.high = blocks.length;
    const occur = new Set(Array.from({ length: windows.rows }, (_, row) => kindOf(windows, row)));
    this.order = ORDER.filter((kind) => occur.has(kind));
    this.layers = [...new Set(windows.num("layer"))].sort((a, b) => a - b);
  }

  get height(): number {
    return LAYERS + GAP + BLOCKS + BELOW;
  }
  private get plot(): number {
    return this.width - EDGE - RIGHT;
  }
  x(time: number): number {
    return EDGE + (time - this.from) / (this.to - this.from) * this.plot;
  }
  time(x: number): number {
    return this.from + (x - EDGE) / this.plot * (this.to - this.from);
  }
  rank(y: number): number {
    return this.low + (y - LAYERS - GAP) / BLOCKS * (this.high - this.low);
  }

  show(from: number, to: number): void {
    const width = Math.min(this.last - this.first, Math.max(NARROWEST_NS, to - from)), middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - width / 2, this.first), this.last - width);
    this.to = this.from + width;
  }

  zoom(factor: number, around = (this.from + this.to) / 2): void {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(share: number): void {
    const by = Math.max(this.first - this.from, Math.min(this.last - this.to, share * (this.to - this.from)));
    [this.from, this.to] = [this.from + by, this.to + by];
  }

  zoomBlocks(factor: number, around = (this.low + this.high) / 2): void {
    const all = this.blocks.length, size = Math.min(all, Math.max(FEWEST, (this.high - this.low) * factor));
    this.low = Math.min(all - size, Math.max(0, around - (around - this.low) * size / (this.high - this.low)));
    this.high = this.low + size;
  }

  panBlocks(share: number): void {
    const by = Math.max(-this.low, Math.min(this.blocks.length - this.high, share * (this.high - this.low)));
    [this.low, this.high] = [this.low + by, this.high + by];
  }

  paint(): void {
    const ratio = devicePixelRatio || 1, { canvas, width, height } = this;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    const context = canvas.getContext("2d")!;
    context.scale(ratio, ratio);
    context.font = FONT;
    context.textBaseline = "middle";
    this.axis(context);
    this.paintLayers(context);
    this.found = this.accesses.find(this.from, this.to);
    this.paintBlocks(context);
    this.labels(context);
  }

  private axis(context: CanvasRenderingContext2D): void {
    context.textAlign = "center";
    for (let part = 0; part <= 8; part++) {
      const time = this.from + (this.to - this.from) * part / 8, x = this.x(time);
      context.fillStyle = colour("grid");
      context.fillRect(Math.round(x), 0, 1, this.height - BELOW + 4);
      context.fillStyle = colour("soft");
      context.fillText(`+${duration(time - this.first)}`, Math.min(x, this.width - 26), this.height - BELOW + 12);
    }
    context.textAlign = "left";
    context.fillText("time since the first", 0, this.height - 5);
  }

  private paintLayers(context: CanvasRenderingContext2D): void {
    const { windows } = this, rank = new Map(this.layers.map((layer, index) => [layer, index])),
      each = LAYERS / this.layers.length;
    context.save();
    context.beginPath();
    context.rect(EDGE, 0, this.plot, LAYERS);
    context.clip();
    for (let row = 0; row < windows.rows; row++) {
      const x = this.x(windows.num("start_ns")[row]!), end = this.x(windows.num("end_ns")[row]!),
        kind = kindOf(windows, row);
      // A line a kind within a layer's row.
      const lines = this.order.length, tall = Math.max(1, each / lines),
        y = rank.get(windows.num("layer")[row]!)! * each + this.order.indexOf(kind) * each / lines;
      context.fillStyle = colour(KINDS[kind][1]);
      context.globalAlpha = windows.flag("observed", row) === false ? 0.5 : 1;
      context.fillRect(x, y, Math.max(1, end - x), tall);
    }
    context.restore();
  }

  // A row's blocks as ranks: from the first up to, without, the second.
  private ranks(columns: Columns<Accesses>): (row: number) => [number, number] {
    const block = columns.num("block"), last = columns.is("access_bins") ? columns.num("last_block") : block;
    return (row) => [lastAtMost(this.blocks, block[row]!), lastAtMost(this.blocks, last[row]!) + 1];
  }

  private paintBlocks(context: CanvasRenderingContext2D): void {
    const wide = Math.floor(this.plot), image = new ImageData(wide, BLOCKS),
      pixels = new Uint32Array(image.data.buffer);
    const scale = wide / (this.to - this.from), tall = BLOCKS / (this.high - this.low);
    // Writes over reads: they are few, and would be hidden.
    for (const writes of [false, true]) {
      for (const { columns } of this.found.parts) {
        const starts = columns.num("start_ns"), ends = columns.num("end_ns"), codes = codesOf(columns),
          ranks = this.ranks(columns);
        const tones = ORDER.map((kind) => pixel(KINDS[kind][1])), wanted = ORDER.map((kind) =>
          isWrite(kind) === writes
        );
        for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
          if (!wanted[codes[row]!] || ends[row]! < this.from) continue;
          const [low, high] = ranks(row), top = Math.max(0, Math.floor((low - this.low) * tall));
          const bottom = Math.min(BLOCKS, Math.max(top + 1, Math.floor((high - this.low) * tall - (tall > 4 ? 1 : 0))));
          const x = Math.max(0, Math.floor((starts[row]! - this.from) * scale)),
            end = Math.min(wide, Math.max(x + 1, Math.round((ends[row]! - this.from) * scale)));
          if (high <= this.low || low >= this.high) continue;
          for (let y = top; y < bottom; y++) pixels.fill(tones[codes[row]!]!, y * wide + x, y * wide + end);
        }
      }
    }
    const layer = document.createElement("canvas");
    [layer.width, layer.height] = [wide, BLOCKS];
    layer.getContext("2d")!.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(layer, EDGE, LAYERS + GAP);
  }

  private labels(context: CanvasRenderingContext2D): void {
    context.fillStyle = colour("soft");
    context.textAlign = "left";
    context.fillText("layer", 0, 6);
    context.fillText("block", 0, LAYERS + GAP + 6);
    context.textAlign = "right";
    const each = LAYERS / this.layers.length, every = Math.max(1, Math.ceil(13 / each));
    this.layers.forEach((layer, index) => {
      if (index % every === 0) context.fillText(count(layer), EDGE - 6, Math.max(6, (index + 0.5) * each));
    });
    const tall = BLOCKS / (this.high - this.low), step = Math.max(1, Math.ceil(13 / tall));
    for (let rank = Math.ceil(this.low); rank < this.high; rank += step) {
      const y = LAYERS + GAP + (rank + 0.5 - this.low) * tall;
      if (y < LAYERS + GAP + BLOCKS)
        context.fillText(count(this.blocks[rank]), EDGE - 6, Math.max(LAYERS + GAP + 6, y));
    }
  }

  // The layer's window or the access at a place; the last drawn, where several are.
  at(x: number, y: number): Spot | null {
    if (x < EDGE || y < 0 || y > LAYERS + GAP + BLOCKS || (y > LAYERS && y < LAYERS + GAP)) return null;
    const time = this.time(x), slack = 1.5 * (this.to - this.from) / this.plot,
      inside = (columns: Columns, row: number) =>
        columns.num("start_ns")[row]! <= time + slack && columns.num("end_ns")[row]! >= time - slack;
    if (y <= LAYERS) {
      const layer = this.layers[Math.floor(y / LAYERS * this.layers.length)], { windows } = this;
      for (let row = windows.rows - 1; row >= 0; row--)
        if (windows.num("layer")[row] === layer && inside(windows, row)) return { columns: windows, row, exact: true };
      return null;
    }
    const rank = Math.floor(this.rank(y)), rows: Spot[] = [];
    for (const { columns } of this.found.parts) {
      const ranks = this.ranks(columns);
      for (let row = 0; row < columns.rows; row++) {
        if (!inside(columns, row)) continue;
        const [low, high] = ranks(row);
        if (low <= rank && rank < high) rows.push({ columns, row, exact: this.found.exact });
      }
    }
    return rows.findLast(({ columns, row }) => isWrite(kindOf(columns, row))) ?? rows[rows.length - 1] ?? null;
  }
}
