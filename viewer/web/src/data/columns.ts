// A decoded chunk: numbers as typed arrays (NaN where unknown), text by row.

import { DataType, Table, tableFromIPC, type Vector } from "apache-arrow";

export type Numbers = Float64Array | Int32Array | Int16Array | Int8Array;

export class Columns {
  readonly rows: number;
  private readonly decoded = new Map<string, Numbers>();
  private readonly vectors: Map<string, Vector>;
  private readonly deltas = new Set<string>();

  constructor(readonly id: string, bytes: Uint8Array) {
    const table: Table = tableFromIPC(bytes);
    this.rows = table.numRows;
    this.vectors = new Map(table.schema.fields.map((field, index) => [field.name, table.getChildAt(index)!]));
    for (const field of table.schema.fields) if (field.metadata.get("kvtrace") === "delta") this.deltas.add(field.name);
  }

  has(name: string): boolean {
    return this.vectors.has(name);
  }

  num(name: string): Numbers {
    let values = this.decoded.get(name);
    if (!values) this.decoded.set(name, values = this.decode(name));
    return values;
  }

  // The number in a row; null where it is unknown.
  at(name: string, row: number): number | null {
    const value = this.num(name)[row];
    return value === undefined || Number.isNaN(value) ? null : value;
  }

  text(name: string, row: number): string | null {
    return (this.vectors.get(name)?.get(row) as string | null | undefined) ?? null;
  }

  // Each row's text as its place among `names`; -1 of any other.
  codes(name: string, names: readonly string[]): Int8Array {
    const places = new Map<string | null, number>(names.map((each, place) => [each, place]));
    return Int8Array.from({ length: this.rows }, (_, row) => places.get(this.text(name, row)) ?? -1);
  }

  flag(name: string, row: number): boolean | null {
    return (this.vectors.get(name)?.get(row) as boolean | null | undefined) ?? null;
  }

  private decode(name: string): Numbers {
    const vector = this.vectors.get(name);
    if (!vector) return new Float64Array(this.rows).fill(NaN);
    const raw = vector.toArray() as ArrayLike<number | bigint>;
    if (this.deltas.has(name)) {
      const sums = new Float64Array(this.rows);
      for (let row = 0, sum = 0; row < this.rows; row++) sums[row] = sum += Number(raw[row]);
      return sums;
    }
    const wide = DataType.isInt(vector.type) && vector.type.bitWidth === 64;
    if (!vector.nullCount && !wide) return raw as Numbers;
    const values = new Float64Array(this.rows);
    for (let row = 0; row < this.rows; row++) {
      values[row] = vector.nullCount && !vector.isValid(row) ? NaN : Number(raw[row]);
    }
    return values;
  }
}

// What follows from a chunk alone, made once for each and kept as long as the chunk is.
export function perChunk<T extends object>(make: (columns: Columns) => T): (columns: Columns) => T {
  const made = new WeakMap<Columns, T>();
  return (columns) => {
    let found = made.get(columns);
    if (!found) made.set(columns, found = make(columns));
    return found;
  };
}

// The last position whose value is at most `wanted`, from `low` on and before `high`; `low - 1` if there is none.
export function lastAtMost(values: ArrayLike<number>, wanted: number, low = 0, high = values.length): number {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
