// A decoded chunk: numbers as typed arrays (NaN where unknown), text by row. Its columns are those of the contract.

import { DataType, Table, tableFromIPC, type Vector } from "apache-arrow";
import { type TableName, TABLES, type Tables } from "./contract";

export type Numbers = Float64Array | Int32Array | Int16Array | Int8Array;

// Columns of a type; of several tables those that all of them have.
type Names<T extends TableName, V> =
  & { [N in keyof Tables[T]]: Exclude<Tables[T][N], null> extends V ? N : never }[keyof Tables[T]]
  & string;
export type NumberName<T extends TableName> = Names<T, number>;
export type TextName<T extends TableName> = Names<T, string>;
export type FlagName<T extends TableName> = Names<T, boolean>;

// Where rows of any table are passed on, their columns are not checked.
export type Any = any;

export class Columns<T extends TableName = Any> {
  readonly rows: number;
  readonly table: T;
  private readonly decoded = new Map<string, Numbers>();
  private readonly vectors: Map<string, Vector>;
  private readonly deltas = new Set<string>();

  constructor(readonly id: string, bytes: Uint8Array) {
    const table: Table = tableFromIPC(bytes);
    this.rows = table.numRows;
    this.table = table.schema.metadata.get("kvtrace") as T;
    this.vectors = new Map(table.schema.fields.map((field, index) => [field.name, table.getChildAt(index)!]));
    for (const field of table.schema.fields) {
      if (field.metadata.get("kvtrace") === "delta") this.deltas.add(field.name);
    }
  }

  is<N extends TableName>(table: N): this is Columns<N> {
    return (this.table as TableName) === table;
  }

  num(name: NumberName<T>): Numbers {
    let values = this.decoded.get(name);
    if (!values) this.decoded.set(name, values = this.decode(name));
    return values;
  }

  // The number in a row; null where it is unknown.
  at<N extends NumberName<T>>(name: N, row: number): Tables[T][N] {
    const value = this.num(name)[row];
    return (value === undefined || Number.isNaN(value) ? null : value) as Tables[T][N];
  }

  text<N extends TextName<T>>(name: N, row: number): Tables[T][N] {
    return (this.vector(name)?.get(row) ?? null) as Tables[T][N];
  }

  flag<N extends FlagName<T>>(name: N, row: number): Tables[T][N] {
    return (this.vector(name)?.get(row) ?? null) as Tables[T][N];
  }

  // Each row's text as its place among `names`; -1 of any other.
  codes(name: TextName<T>, names: readonly string[]): Int8Array {
    const places = new Map<string | null, number>(names.map((each, place) => [each, place]));
    return Int8Array.from({ length: this.rows }, (_, row) => places.get(this.text(name, row) as string | null) ?? -1);
  }

  // A column; nothing where the contract allows a chunk to be without it.
  private vector(name: string): Vector | undefined {
    const vector = this.vectors.get(name);
    if (!vector && !TABLES[this.table]?.optional.includes(name)) {
      throw new Error(`no column ${name} in ${this.table} (chunk ${this.id})`);
    }
    return vector;
  }

  private decode(name: string): Numbers {
    const vector = this.vector(name);
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

// A row of a chunk.
export interface Row<T extends TableName = Any> {
  columns: Columns<T>;
  row: number;
}

// What follows from a chunk alone, made once for each and kept as long as the chunk is.
export function perChunk<T extends TableName, V extends object>(
  make: (columns: Columns<T>) => V,
): (columns: Columns<T>) => V {
  const made = new WeakMap<object, V>();
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
