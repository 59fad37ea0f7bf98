// The copies that transfers made.

import { type Columns, perChunk } from "../../data/columns";

// The time a copy took: on the GPU, as reported, or on the host; and when it began.
export function copyOf(columns: Columns<"transfers">, row: number): { start: number; took: number | null; by: string } {
  const device = columns.at("device_ns", row), reported = columns.at("reported_ns", row);
  const submitted = columns.num("start_ns")[row]!, begun = columns.at("started_ns", row),
    end = columns.at("end_ns", row);
  const ending = (took: number) => (end === null ? submitted : Math.max(submitted, end - took));
  if (device !== null) return { start: ending(device), took: device, by: "on the GPU" };
  if (reported !== null) return { start: ending(reported), took: reported, by: "as the connector reports" };
  return { start: begun ?? submitted, took: end === null ? null : end - (begun ?? submitted), by: "on the host" };
}

// A chunk of transfers as numbers, so that drawing a frame looks up no text.
export class Copies {
  readonly start: Float64Array;
  readonly end: Float64Array;
  // Bytes a nanosecond, which is GB/s; 0 where unknown.
  readonly rate: Float64Array;
  readonly up: Uint8Array;

  private constructor(columns: Columns<"transfers">) {
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

  static readonly of = perChunk((columns: Columns<"transfers">) => new Copies(columns));
}
