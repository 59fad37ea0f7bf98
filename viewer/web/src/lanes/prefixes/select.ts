// Selects a hot prefix and shows it.

import type { Engine } from "../../data/engine";
import { reveal, select } from "../../view";
import { loadTree } from "./tree";

export async function selectPrefix(engine: Engine, number: number): Promise<boolean> {
  const tree = await loadTree(engine), columns = tree?.prefixes;
  const row = columns ? columns.num("prefix").indexOf(number) : -1;
  if (!columns || row < 0) return false;
  const span: [number, number] = [columns.num("start_ns")[row]!, columns.num("end_ns")[row]!];
  reveal(engine, ...span);
  select({ kind: "prefix", engine, id: number, span });
  return true;
}
