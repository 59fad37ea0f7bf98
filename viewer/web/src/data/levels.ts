// A long table in levels of detail: of a stretch of time, the finest level that is not too much and has been loaded.

import { peek } from "./chunks";
import type { Any, Columns } from "./columns";
import type { Reference } from "./contents";
import type { TableName } from "./contract";

export interface Part<T extends TableName> {
  columns: Columns<T>;
  reference: Reference<T>;
}

export interface Found<T extends TableName> {
  parts: Part<T>[];
  // Every row there is of that stretch, not a summary or a choice.
  exact: boolean;
  // What was wanted is there; otherwise a coarser level stands in until it is.
  settled: boolean;
}

export const NOTHING = { parts: [], exact: true, settled: true };

export class Levels<T extends TableName = Any> {
  readonly rows: number;

  // `levels`: coarsest first; the last one holds everything. `budget`: rows that may be drawn at once.
  constructor(private readonly levels: Reference<T>[][], private readonly budget: number) {
    this.rows = this.finest.reduce((sum, reference) => sum + reference.rows, 0);
  }

  get finest(): Reference<T>[] {
    return this.levels[this.levels.length - 1] ?? [];
  }

  get empty(): boolean {
    return this.levels.every((references) => !references.length);
  }

  find(from: number, to: number): Found<T> {
    const last = this.levels.length - 1;
    let settled = true;
    for (let level = last; level >= 0; level--) {
      const references = this.levels[level]!.filter((each) =>
        (each.to_ns ?? Infinity) >= from && (each.from_ns ?? 0) <= to
      );
      if (level && !this.levels[level]!.length) continue;
      const rows = references.reduce((sum, each) => sum + each.rows, 0);
      // Where two neighbouring chunks meet, both are drawn, however large they are.
      if (level && rows > this.budget && references.length > 2) continue;
      const parts = references.map((reference) => ({ reference, columns: peek(reference.id) }));
      if (parts.every((part) => part.columns) || !level) {
        const there = parts.filter((part): part is Part<T> => part.columns !== null);
        return { parts: there, exact: level === last, settled: settled && there.length === parts.length };
      }
      settled = false;
    }
    return { parts: [], exact: true, settled };
  }
}
