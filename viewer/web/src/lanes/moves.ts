// Transfers between the GPU and other tiers, and what pinned blocks.

import { colour, PINS, pixel } from "../colours";
import { type Columns, perChunk } from "../data/columns";
import type { Engine } from "../data/engine";
import type { Found } from "../data/levels";
import { bandwidth, bytes, clock, count, duration, words } from "../format";
import { Image } from "../image";
import { isSelected, LEFT, plotWidth, view } from "../view";
import { greatest, type Hit, Lane } from "./lane";

// The time a copy took: on the GPU, as reported, or on the host; and when it began.
export function copyOf(columns: Columns, row: number): { start: number; took: number | null; by: string } {
  const device = columns.at("device_ns", row), reported = columns.at("reported_ns", row);
  const submitted = columns.num("start_ns")[row]!, begun = columns.at("started_ns", row),
    end = columns.at("end_ns", row);
  if (device !== null)
    return { start: end === null ? submitted : Math.max(submitted, end - device), took: device, by: "on the GPU" };
  if (reported !== null)
    return {
      start: end === null ? submitted : Math.max(submitted, end - reported),
      took: reported,
      by: "as the connector reports",
    };
  return { start: begun ?? submitted, took: end === null ? null : end - (begun ?? submitted), by: "on the host" };
}

// A chunk of transfers as numbers, so that drawing a frame looks up no text.
class Copies {
  readonly start: Float64Array;
  readonly end: Float64Array;
  // Bytes a nanosecond, which is GB/s; 0 where unknown.
  readonly rate: Float64Array;
  readonly up: Uint8Array;

  private constructor(columns: Columns) {
    const rows = columns.rows, directions = columns.codes("direction", ["load"]);
    [this.start, this.end, this.rate] = [new Float64Array(rows), new Float64Array(rows), new Float64Array(rows)];
    this.up = Uint8Array.from(directions, (code) => code + 1);
    for (let row = 0; row < rows; row++) {
      const { start, took } = copyOf(columns, row);
      this.start[row] = start;
      this.end[row] = start + (took ?? 0);
      this.rate[row] = took ? (columns.at("bytes", row) ?? 0) / took : 0;
    }
  }

  static readonly of = perChunk((columns) => new Copies(columns));
}

interface Bar {
  x: number;
  top: number;
  width: number;
  tall: number;
}

export class TransfersLane extends Lane {
  private found: Found = { parts: [], exact: true, settled: true };
  private most = 0;

  constructor(engine: Engine) {
    super(engine, "transfers", "Transfers", "Transfers of KV by direction; a bar is as high as its bandwidth");
  }

  static override offered(engine: Engine): boolean {
    return !engine.transfers.empty;
  }

  private get middle(): number {
    return Math.round(this.height / 2);
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.transfers.find(this.from, this.to);
    const chunks = this.found.parts.map(({ columns }) => Copies.of(columns));
    this.most = Math.max(0, ...chunks.map(({ rate }) => greatest(rate)));
    this.explain(this.most ? `up to ${this.most.toPrecision(3)} GB/s` : "bandwidth unknown", [[
      "load, to the GPU (up)",
      "load",
    ], ["store, from it (down)", "store"]]);
    this.context.fillStyle = colour("line");
    this.context.fillRect(LEFT, this.middle, plotWidth(), 1);
    const image = new Image(this.height, 0), [down, up] = [new Int16Array(image.width), new Int16Array(image.width)];
    for (const copies of chunks) {
      for (let row = 0; row < copies.start.length; row++) {
        const bar = this.bar(copies, row), tallest = copies.up[row] ? up : down;
        if (!bar) continue;
        for (let x = bar.x - LEFT, end = x + bar.width; x < end; x++) if (bar.tall > tallest[x]!) tallest[x] = bar.tall;
      }
    }
    for (let x = 0; x < image.width; x++) {
      image.bar(x, this.middle - up[x]!, 1, up[x]!, pixel("load"));
      image.bar(x, this.middle + 1, 1, down[x]!, pixel("store"));
    }
    image.put(this.context, 0);
    this.outline();
  }

  // Where a transfer is drawn; null where it is out of sight.
  private bar({ start, end, rate, up }: Copies, row: number): Bar | null {
    if (end[row]! < this.from || start[row]! > this.to) return null;
    const x = Math.round(Math.max(LEFT, this.x(start[row]!))), stop = Math.min(LEFT + plotWidth(), this.x(end[row]!));
    const tall = Math.round(Math.max(4, (this.most ? rate[row]! / this.most : 0) * (this.middle - 4)));
    return { x, top: up[row] ? this.middle - tall : this.middle + 1, width: Math.max(2, Math.round(stop - x)), tall };
  }

  private outline(): void {
    for (const { columns } of view.selection?.kind === "transfer" ? this.found.parts : []) {
      for (let row = 0; row < columns.rows; row++) {
        if (!isSelected("transfer", this.engine, idOf(columns, row))) continue;
        const bar = this.bar(Copies.of(columns), row);
        if (!bar) return;
        this.context.strokeStyle = colour("ink");
        this.context.lineWidth = 1.5;
        this.context.strokeRect(bar.x - 1.5, bar.top - 1.5, bar.width + 3, bar.tall + 3);
      }
    }
  }

  // The transfer of this direction whose bar begins nearest.
  private nearest(x: number, y: number): { columns: Columns; row: number } | null {
    let best: { columns: Columns; row: number } | null = null, least = Infinity;
    for (const { columns } of this.found.parts) {
      const copies = Copies.of(columns);
      for (let row = 0; row < columns.rows; row++) {
        const bar = Boolean(copies.up[row]) === (y < this.middle) ? this.bar(copies, row) : null;
        if (!bar || x < bar.x - 3 || x > bar.x + bar.width + 3 || Math.abs(bar.x - x) >= least) continue;
        [best, least] = [{ columns, row }, Math.abs(bar.x - x)];
      }
    }
    return best;
  }

  override hit(x: number, y: number): Hit | null {
    const best = this.nearest(x, y);
    if (!best) return null;
    const { columns, row } = best, { start, took, by } = copyOf(columns, row);
    return {
      selection: {
        kind: "transfer",
        engine: this.engine,
        id: idOf(columns, row),
        row: best,
        span: [columns.num("start_ns")[row]!, columns.at("end_ns", row) ?? start + (took ?? 0)],
      },
      lines: [
        `${columns.text("direction", row)} ${columns.text("from_tier", row)} → ${columns.text("to_tier", row)}`,
        `${count(columns.at("blocks", row))} blocks, ${bytes(columns.at("bytes", row))}, ${
          bandwidth(columns.at("bytes", row), took)
        }`,
        `${duration(took)} ${by}, from ${clock(start, 1e5)}`,
      ],
    };
  }
}

const MOST_ROWS = 1e6;

// A row's number over all chunks of its kind, and back.
export const moveId = (chunk: number, row: number): number => chunk * MOST_ROWS + row;

export const idOf = (columns: Columns, row: number): number => moveId(Number(columns.id.split("-").pop()), row);

export const placeOf = (id: number): { chunk: number; row: number } => ({
  chunk: Math.floor(id / MOST_ROWS),
  row: id % MOST_ROWS,
});

const UNKNOWN = ["other", "other"] as const, CAUSES = PINS.map(([cause]) => cause);

// Each pin's cause, by its place in `PINS`; -1 of one that the page does not know.
export const causesOf = perChunk((columns) => columns.codes("cause", CAUSES));

export class PinsLane extends Lane {
  private found: Found = { parts: [], exact: true, settled: true };

  constructor(engine: Engine) {
    super(engine, "pins", "Pinned blocks", "Blocks held by something else than a running request, by cause");
  }

  static override offered(engine: Engine): boolean {
    return !engine.pins.empty;
  }

  // How many blocks each cause, by its place in `PINS`, holds at each pixel.
  private levels(): Map<number, Float64Array> {
    const width = Math.ceil(plotWidth()), levels = new Map<number, Float64Array>(), { scale, origin } = this.places;
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns"), causes = causesOf(columns);
      for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
        const end = Number.isNaN(ends[row]!) ? Infinity : ends[row]!, cause = causes[row]!;
        if (end < this.from) continue;
        let held = levels.get(cause);
        if (!held) levels.set(cause, held = new Float64Array(width + 1));
        const low = Math.max(0, Math.floor(starts[row]! * scale + origin)),
          high = Math.min(width, Math.max(low + 1, Math.ceil(end * scale + origin)));
        held[low]! += 1;
        held[high]! -= 1;
      }
    }
    for (const held of levels.values()) for (let x = 1; x <= width; x++) held[x]! += held[x - 1]!;
    return levels;
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.pins.find(this.from, this.to);
    const levels = this.levels(), width = Math.ceil(plotWidth()), sums = new Float64Array(width + 1);
    for (const held of levels.values()) for (let x = 0; x <= width; x++) sums[x]! += held[x]!;
    const most = Math.max(1, greatest(sums)), toY = this.scale(most, [0, most]);
    const here = [...PINS, UNKNOWN].map(([cause, tone], place) => ({
      cause,
      tone: pixel(tone),
      name: tone,
      held: levels.get(place < PINS.length ? place : -1),
    }));
    this.explain("blocks, by cause", here.filter(({ held }) => held).map(({ cause, name }) => [words(cause), name]));
    const floor = new Float64Array(width + 1), image = new Image(this.height, 0);
    for (const { held, tone } of here) {
      if (!held) continue;
      for (let x = 0; x < width; x++) {
        const top = Math.round(toY(floor[x]! + held[x]!));
        if (held[x]) image.bar(x, top, 1, Math.round(toY(floor[x]!)) - top, tone);
        floor[x]! += held[x]!;
      }
    }
    image.put(this.context, 0);
  }

  // The latest pin that holds at this time.
  override hit(x: number): Hit | null {
    const time = this.time(x), slack = (this.to - this.from) / plotWidth();
    let best: { columns: Columns; row: number } | null = null, held = 0;
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns");
      for (let row = 0; row < columns.rows && starts[row]! <= time + slack; row++) {
        if (ends[row]! < time - slack) continue;
        held++;
        best = { columns, row };
      }
    }
    if (!best) return null;
    const { columns, row } = best, start = columns.num("start_ns")[row]!, end = columns.at("end_ns", row);
    return {
      selection: { kind: "pin", engine: this.engine, id: idOf(columns, row), row: best, span: [start, end ?? this.to] },
      lines: [
        `${count(held)} blocks pinned here`,
        `latest: block ${count(columns.at("block", row))}, ${words(columns.text("cause", row) ?? "")}`,
        end === null
          ? "still held when the recording ended"
          : `for ${duration(end - start)}, ended: ${words(columns.text("end_reason", row) ?? "unknown")}`,
      ],
    };
  }
}
