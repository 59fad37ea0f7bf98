// Selects things by their numbers and brings them into sight.

import { load } from "../data/chunks";
import type { Reference } from "../data/contents";
import type { Engine, Row } from "../data/engine";
import { moveId, placeOf } from "../lanes/moves";
import { type Kind, reveal, select } from "../view";

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

const movesOf = (
  { contents }: Engine,
  kind: Kind,
): Reference[] => (kind === "transfer"
  ? contents.transfers
  : kind === "pin"
  ? contents.pins
  : contents.kernels?.details ?? []);

// The transfer, pin or kernel before or after one.
export async function selectNextMove(engine: Engine, kind: Kind, id: number, by: 1 | -1): Promise<void> {
  const references = movesOf(engine, kind), { chunk, row } = placeOf(id), next = row + by,
    beside = references[chunk + by];
  if (next >= 0 && next < references[chunk]!.rows) await selectMove(engine, kind, id + by);
  else if (beside) await selectMove(engine, kind, moveId(chunk + by, by > 0 ? 0 : beside.rows - 1));
}

// A transfer, pin or kernel, by its number over all chunks of its kind.
export async function selectMove(engine: Engine, kind: Kind, id: number): Promise<void> {
  const { chunk, row } = placeOf(id), reference = movesOf(engine, kind)[chunk];
  if (!reference || row >= reference.rows) return;
  const columns = await load(reference.id), found: Row = { columns, row };
  const start = columns.num("start_ns")[row]!, end = columns.at("end_ns", row) ?? start;
  reveal(engine, start, end);
  select({ kind, engine, id, row: found, span: [start, end] });
}
