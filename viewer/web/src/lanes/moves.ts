// Transfers between the GPU and other tiers, and what pinned blocks.

import { PINS, colour } from "../colours";
import type { Columns } from "../data/columns";
import type { Engine } from "../data/engine";
import type { Found } from "../data/levels";
import { bandwidth, bytes, clock, count, duration, words } from "../format";
import { LEFT, isSelected, plotWidth } from "../view";
import { Lane, greatest, type Hit } from "./lane";

// The time a copy took: on the GPU, as reported, or on the host; and when it began.
export function copyOf(columns: Columns, row: number): { start: number; took: number | null; by: string } {
  const device = columns.at("device_ns", row), reported = columns.at("reported_ns", row);
  const submitted = columns.num("start_ns")[row]!, begun = columns.at("started_ns", row), end = columns.at("end_ns", row);
  if (device !== null) return { start: end === null ? submitted : Math.max(submitted, end - device), took: device, by: "on the GPU" };
  if (reported !== null) return { start: end === null ? submitted : Math.max(submitted, end - reported), took: reported, by: "as the connector reports" };
  return { start: begun ?? submitted, took: end === null ? null : end - (begun ?? submitted), by: "on the host" };
}

export class TransfersLane extends Lane {
  private found: Found = { parts: [], exact: true, settled: true };
  private drawn: { x: number; end: number; top: number; bottom: number; columns: Columns; row: number }[] = [];

  constructor(engine: Engine) {
    super(engine, "transfers", "Transfers", "Transfers of KV by direction; a bar is as high as its bandwidth");
  }

  static override offered(engine: Engine): boolean {
    return !engine.transfers.empty;
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.transfers.find(this.from, this.to);
    this.drawn = [];
    const rate = (columns: Columns, row: number) => {
      const { took } = copyOf(columns, row), size = columns.at("bytes", row);
      return took && size !== null ? size / took : 0;
    };
    let most = 0;
    for (const { columns } of this.found.parts) for (let row = 0; row < columns.rows; row++) most = Math.max(most, rate(columns, row));
    this.explain(most ? `up to ${most.toPrecision(3)} GB/s` : "bandwidth unknown", [["load, to the GPU (up)", "load"], ["store, from it (down)", "store"]]);
    const middle = Math.round(this.height / 2);
    this.context.fillStyle = colour("line");
    this.context.fillRect(LEFT, middle, plotWidth(), 1);
    for (const { columns } of this.found.parts) {
      for (let row = 0; row < columns.rows; row++) this.bar(columns, row, middle, most ? rate(columns, row) / most : 0);
    }
  }

  private bar(columns: Columns, row: number, middle: number, share: number): void {
    const { start, took } = copyOf(columns, row);
    const x = Math.max(LEFT, this.x(start)), end = Math.min(LEFT + plotWidth(), this.x(start + (took ?? 0)));
    if (end < LEFT || x > LEFT + plotWidth()) return;
    const up = columns.text("direction", row) === "load", tall = Math.max(4, share * (middle - 4));
    const top = up ? middle - tall : middle + 1, width = Math.max(2, end - x);
    this.context.fillStyle = colour(up ? "load" : "store");
    this.context.fillRect(x, top, width, tall);
    if (isSelected("transfer", this.engine, idOf(columns, row))) {
      this.context.strokeStyle = colour("ink");
      this.context.lineWidth = 1.5;
      this.context.strokeRect(x - 1.5, top - 1.5, width + 3, tall + 3);
    }
    this.drawn.push({ x, end: x + width, top: up ? 0 : middle, bottom: up ? middle : this.height, columns, row });
  }

  override hit(x: number, y: number): Hit | null {
    const near = this.drawn.filter((each) => each.x - 3 <= x && x <= each.end + 3 && each.top <= y && y <= each.bottom);
    const best = near.sort((a, b) => Math.abs(a.x - x) - Math.abs(b.x - x))[0];
    if (!best) return null;
    const { columns, row } = best, { start, took, by } = copyOf(columns, row);
    return {
      selection: {
        kind: "transfer", engine: this.engine, id: idOf(columns, row), row: { columns, row },
        span: [columns.num("start_ns")[row]!, columns.at("end_ns", row) ?? start + (took ?? 0)],
      },
      lines: [
        `${columns.text("direction", row)} ${columns.text("from_tier", row)} → ${columns.text("to_tier", row)}`,
        `${count(columns.at("blocks", row))} blocks, ${bytes(columns.at("bytes", row))}, ${bandwidth(columns.at("bytes", row), took)}`,
        `${duration(took)} ${by}, from ${clock(start, 1e5)}`,
      ],
    };
  }
}

const MOST_ROWS = 1e6;

// A row's number over all chunks of its kind, and back.
export const moveId = (chunk: number, row: number): number => chunk * MOST_ROWS + row;

export const idOf = (columns: Columns, row: number): number => moveId(Number(columns.id.split("-").pop()), row);

export const placeOf = (id: number): { chunk: number; row: number } => ({ chunk: Math.floor(id / MOST_ROWS), row: id % MOST_ROWS });

export class PinsLane extends Lane {
  private found: Found = { parts: [], exact: true, settled: true };

  constructor(engine: Engine) {
    super(engine, "pins", "Pinned blocks", "Blocks held by something else than a running request, by cause");
  }

  static override offered(engine: Engine): boolean {
    return !engine.pins.empty;
  }

  // How many blocks each cause holds at each pixel.
  private levels(): Map<string, Float64Array> {
    const width = Math.ceil(plotWidth()), levels = new Map<string, Float64Array>();
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns");
      for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
        const end = Number.isNaN(ends[row]!) ? Infinity : ends[row]!;
        if (end < this.from) continue;
        const cause = columns.text("cause", row) ?? "";
        let held = levels.get(cause);
        if (!held) levels.set(cause, held = new Float64Array(width + 1));
        const low = Math.max(0, Math.floor(this.x(starts[row]!) - LEFT)), high = Math.min(width, Math.max(low + 1, Math.ceil(this.x(end) - LEFT)));
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
    this.explain("blocks, by cause", PINS.filter(([cause]) => levels.has(cause)).map(([cause, tone]) => [words(cause), tone]));
    const floor = new Float64Array(width + 1);
    for (const [cause, tone] of PINS) {
      const held = levels.get(cause);
      if (!held) continue;
      this.context.fillStyle = colour(tone);
      for (let x = 0; x < width; x++) {
        if (held[x]) this.context.fillRect(LEFT + x, toY(floor[x]! + held[x]!), 1, toY(floor[x]!) - toY(floor[x]! + held[x]!));
        floor[x]! += held[x]!;
      }
    }
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
        `${count(held)} blocks pinned here`, `latest: block ${count(columns.at("block", row))}, ${words(columns.text("cause", row) ?? "")}`,
        end === null ? "still held when the recording ended" : `for ${duration(end - start)}, ended: ${words(columns.text("end_reason", row) ?? "unknown")}`,
      ],
    };
  }
}
