// The stretches of the request lanes of a chunk, found by the request's row.

import type { Columns, Numbers } from "../../data/columns";

const made = new WeakMap<Columns<"segments">, Segments>();

export class Segments {
  readonly state: Numbers;
  readonly start: Numbers;
  readonly duration: Numbers;
  readonly step: Numbers;
  private readonly first: Int32Array;

  private constructor(columns: Columns<"segments">, requests: number) {
    this.state = columns.num("state");
    this.start = columns.num("start_ns");
    this.duration = columns.num("duration_ns");
    this.step = columns.num("step");
    this.first = new Int32Array(requests + 1);
    const rows = columns.num("row");
    for (let i = 0; i < columns.rows; i++) this.first[rows[i]! + 1]!++;
    for (let row = 0; row < requests; row++) this.first[row + 1]! += this.first[row]!;
  }

  static of(columns: Columns<"segments">, requests: number): Segments {
    let segments = made.get(columns);
    if (!segments) made.set(columns, segments = new Segments(columns, requests));
    return segments;
  }

  // The positions of a request's stretches: from the first up to, without, the second.
  range(row: number): [number, number] {
    return [this.first[row] ?? 0, this.first[row + 1] ?? 0];
  }
}
