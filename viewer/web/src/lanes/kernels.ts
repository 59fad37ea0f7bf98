// What the GPU did, from a profile: a row a stream where kernels can be told apart, shares by category where not.

import { KERNELS, colour, pixel } from "../colours";
import { peek } from "../data/chunks";
import { lastAtMost, type Columns } from "../data/columns";
import type { Engine } from "../data/engine";
import type { Found } from "../data/levels";
import { clock, count, duration, shorten, words } from "../format";
import { Image } from "../image";
import { LEFT, isSelected, plotWidth } from "../view";
import { Lane, type Hit } from "./lane";
import { idOf } from "./moves";

const TONES = new Map(KERNELS);
const SHOWN: [string, string][] = [
  ["attention", "attention"], ["gemm", "gemm"], ["KV write", "kv-write"], ["copies", "copy"], ["norm, activation", "norm"],
  ["communication", "communication"], ["sampling", "sampling"], ["other", "other-kernel"],
];

const MOST_STREAMS = 8;

export class KernelsLane extends Lane {
  private found: Found = { parts: [], exact: true, settled: true };
  private streams: string[] = [];

  constructor(engine: Engine) {
    super(engine, "kernels", "GPU kernels", "What the GPU did, by category");
  }

  static override offered(engine: Engine): boolean {
    return engine.kernels !== null && !engine.kernels.empty;
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.kernels!.find(this.from, this.to);
    if (this.found.exact) this.kernels(); else this.shares();
  }

  private kernels(): void {
    const found = new Set<string>();
    for (const { columns } of this.found.parts) this.eachInSight(columns, (row) => { found.add(stream(columns, row)); });
    this.streams = [...found].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).slice(0, MOST_STREAMS);
    this.explain(`${count(found.size)} stream${found.size === 1 ? "" : "s"}; gaps are idle`, this.legendOf());
    const each = Math.max(4, Math.floor(this.height / Math.max(1, this.streams.length))), image = new Image(this.height, 0);
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns");
      this.eachInSight(columns, (row) => {
        const top = this.streams.indexOf(stream(columns, row)) * each;
        if (top < 0) return;
        const x = Math.round(this.x(starts[row]!) - LEFT), end = Math.max(x + 1, Math.round(this.x(ends[row]!) - LEFT));
        const tone = pixel(TONES.get(columns.text("category", row) ?? "") ?? "other-kernel");
        for (let y = top + 1; y < Math.min(this.height, top + each - 1); y++) image.span(y, x, end, tone);
      });
    }
    image.put(this.context, 0);
    this.outline(each);
  }

  private outline(each: number): void {
    for (const { columns } of this.found.parts) {
      this.eachInSight(columns, (row) => {
        if (!isSelected("kernel", this.engine, idOf(columns, row))) return;
        const x = this.x(columns.num("start_ns")[row]!), end = this.x(columns.num("end_ns")[row]!);
        this.context.strokeStyle = colour("ink");
        this.context.lineWidth = 1.5;
        this.context.strokeRect(x - 1, this.streams.indexOf(stream(columns, row)) * each, Math.max(2, end - x) + 2, each);
      });
    }
  }

  // The share of each bin's time that each category ran, stacked.
  private shares(): void {
    this.explain("share of the time", this.legendOf());
    const toY = this.scale(1, [0, 0.5, 1], (value) => `${value * 100}%`);
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns"), busy = columns.num("busy_ns");
      let before = NaN, floor = 0;
      for (let row = 0; row < columns.rows; row++) {
        if (starts[row] !== before) [before, floor] = [starts[row]!, 0];
        const share = busy[row]! / (ends[row]! - starts[row]!), x = Math.max(LEFT, this.x(starts[row]!));
        const end = Math.min(LEFT + plotWidth(), this.x(ends[row]!));
        this.context.fillStyle = colour(TONES.get(columns.text("category", row) ?? "") ?? "other-kernel");
        if (end > x) this.context.fillRect(x, toY(Math.min(1, floor + share)), Math.max(1, end - x), toY(floor) - toY(Math.min(1, floor + share)));
        floor = Math.min(1, floor + share);
      }
    }
  }

  // Categories that occur in the recording.
  private legendOf(): [string, string][] {
    const tones = new Set<string>();
    for (const { id } of this.engine.contents.kernels!.overview) {
      const columns = peek(id);
      for (let row = 0; columns && row < columns.rows; row++) tones.add(TONES.get(columns.text("category", row) ?? "") ?? "other-kernel");
    }
    return SHOWN.filter(([, tone]) => tones.has(tone));
  }

  private eachInSight(columns: Columns, run: (row: number) => void): void {
    const starts = columns.num("start_ns"), ends = columns.num("end_ns");
    for (let row = Math.max(0, lastAtMost(starts, this.from) - 64); row < columns.rows && starts[row]! <= this.to; row++) {
      if (ends[row]! >= this.from) run(row);
    }
  }

  override hit(x: number, y: number): Hit | null {
    if (!this.found.exact) return { selection: null, lines: ["zoom in to see single kernels", clock(this.time(x), 1e5)] };
    const each = Math.max(4, Math.floor(this.height / Math.max(1, this.streams.length))), wanted = this.streams[Math.floor(y / each)];
    const slack = 2 * (this.to - this.from) / plotWidth(), time = this.time(x);
    let best: { columns: Columns; row: number } | null = null, nearest = slack;
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns");
      this.eachInSight(columns, (row) => {
        const off = Math.max(0, starts[row]! - time, time - ends[row]!);
        if (off < nearest && stream(columns, row) === wanted) [best, nearest] = [{ columns, row }, off];
      });
    }
    if (!best) return null;
    const { columns, row } = best as { columns: Columns; row: number };
    const start = columns.num("start_ns")[row]!, end = columns.num("end_ns")[row]!;
    return {
      selection: { kind: "kernel", engine: this.engine, id: idOf(columns, row), row: { columns, row }, span: [start, end] },
      lines: [shorten(columns.text("name", row) ?? "", 70), `${words(columns.text("category", row) ?? "")}, ${duration(end - start)} from ${clock(start, 1e3)}`, stream(columns, row)],
    };
  }
}

function stream(columns: Columns, row: number): string {
  return `GPU ${columns.at("device", row) ?? "?"}, stream ${columns.at("stream", row) ?? "?"}`;
}
