// Selects things by their numbers and brings them into sight.

import { load } from "../data/chunks";
import { type Columns, lastAtMost } from "../data/columns";
import type { TableName } from "../data/contract";
import type { Engine } from "../data/engine";
import type { Levels } from "../data/levels";
import { link } from "../dom";
import { count } from "../format";
import type { Selectable } from "../lanes/descriptor";
import { isSelected, relate, reveal, select, type Selection } from "../view";

export async function selectStep(engine: Engine, step: number): Promise<void> {
  const row = await engine.step(step);
  if (!row) return;
  const start = row.columns.num("start_ns")[row.row]!, end = row.columns.at("end_ns", row.row) ?? start;
  reveal(engine, start, end);
  select({ kind: "step", engine, id: step, row, span: [start, end] });
}

export async function selectRequest(engine: Engine, request: number): Promise<void> {
  const row = await engine.request(request);
  if (!row) return;
  const start = row.columns.num("start_ns")[row.row]!, end = row.columns.num("end_ns")[row.row]!;
  reveal(engine, start, end);
  select({ kind: "request", engine, id: request, row, span: [start, end] });
}

export function selectBlock(engine: Engine, block: number, time: number): void {
  select({ kind: "block", engine, id: block, time });
}

const MOST_ROWS = 1e6;

// A row's number over all chunks of its table.
export function rowId(columns: Columns, row: number): number {
  return Number(columns.id.split("-").pop()) * MOST_ROWS + row;
}

// Rows of a table with `start_ns` and `end_ns` as things to select: by their number over all chunks, one after another.
export function selectableRows<T extends TableName>(
  kind: string,
  levels: (engine: Engine) => Levels | null,
  describe: (selection: Selection<T>) => Promise<Node[]>,
): Selectable<T> {
  const chunks = (engine: Engine) => levels(engine)?.finest ?? [];
  const open = async (engine: Engine, id: number) => {
    const reference = chunks(engine)[Math.floor(id / MOST_ROWS)], row = id % MOST_ROWS;
    if (!reference || row >= reference.rows) return;
    const columns = await load(reference.id);
    const start = columns.num("start_ns")[row]!, end = columns.at("end_ns", row) ?? start;
    reveal(engine, start, end);
    select({ kind, engine, id, row: { columns, row }, span: [start, end] });
  };
  return {
    kind,
    describe,
    open: (engine, name) => open(engine, Number(name)),
    async first(engine, from, to) {
      const found = levels(engine)?.find(from, to);
      for (const { columns } of found?.exact ? found.parts : []) {
        const starts = columns.num("start_ns"), row = lastAtMost(starts, from) + 1;
        if (row >= columns.rows || starts[row]! > to) continue;
        await open(engine, rowId(columns, row));
        return true;
      }
      return false;
    },
    async next({ engine, id }, by) {
      const references = chunks(engine), chunk = Math.floor(id / MOST_ROWS), row = id % MOST_ROWS + by;
      const beside = references[chunk + by];
      if (row >= 0 && row < references[chunk]!.rows) await open(engine, id + by);
      else if (beside) await open(engine, (chunk + by) * MOST_ROWS + (by > 0 ? 0 : beside.rows - 1));
    },
  };
}

// Marks the step of what is selected, and the requests in it.
export async function relateStep({ engine, kind, id }: Selection, step: number | null): Promise<void> {
  const found = step === null ? null : await engine.step(step), shares = step === null ? [] : await engine.shares(step);
  if (!found || !isSelected(kind, engine, id)) return;
  const start = found.columns.num("start_ns")[found.row]!;
  relate(shares.map(({ columns, row }) => columns.num("request")[row]!), [
    start,
    found.columns.at("end_ns", found.row) ?? start,
  ]);
}

export function stepLink(engine: Engine, step: number | null): HTMLElement | null {
  return step === null ? null : link(`step ${count(step)}`, () => void selectStep(engine, step));
}
