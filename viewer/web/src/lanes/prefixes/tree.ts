// The hot prefixes of an engine and the levels of each, by their number.

import { load, peek } from "../../data/chunks";
import { type Columns, lastAtMost, perChunk, type Row } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { count } from "../../format";

export interface Tree {
  prefixes: Columns<"prefixes">;
  levels: Columns<"prefix_levels">;
  users: Columns<"prefix_users">;
}

const tables = (engine: Engine) => {
  const { prefixes, prefix_levels, prefix_users } = engine.contents;
  return [prefixes[0], prefix_levels[0], prefix_users[0]] as const;
};

// Null while it is being loaded, and where the page has none.
export function treeOf(engine: Engine): Tree | null {
  const [first, second, third] = tables(engine);
  if (!first || !second || !third) return null;
  const prefixes = peek(first.id), levels = peek(second.id), users = peek(third.id);
  return prefixes && levels && users ? { prefixes, levels, users } : null;
}

export async function loadTree(engine: Engine): Promise<Tree | null> {
  const chunks = tables(engine);
  await Promise.all(chunks.map((each) => each && load(each.id)));
  return treeOf(engine);
}

// Rows of a prefix in a table that is ordered by prefix: from, and up to without.
export function rowsOf(columns: Columns<"prefix_levels"> | Columns<"prefix_users">, prefix: number): [number, number] {
  const numbers = columns.num("prefix");
  return [lastAtMost(numbers, prefix - 1) + 1, lastAtMost(numbers, prefix) + 1];
}

// Users of each prefix in words: the session that alone has it, or how many.
const whose = perChunk((users: Columns<"prefix_users">) => {
  const names = new Map<number, string[]>(), numbers = users.num("prefix");
  for (let row = 0; row < users.rows; row++) {
    const found = names.get(numbers[row]!) ?? [];
    names.set(numbers[row]!, [...found, users.text("session", row) ?? ""]);
  }
  return names;
});

export function usersOf({ prefixes, users }: Tree, row: number): string {
  const names = whose(users).get(prefixes.num("prefix")[row]!) ?? [], sessions = prefixes.num("sessions")[row]!;
  if (sessions > 1) return `${count(sessions)} sessions`;
  return names.find(Boolean) ?? `${count(prefixes.num("lookups")[row])} requests`;
}

export function placeOf({ columns, row }: Row<"prefixes">): string {
  const before = columns.num("before_tokens")[row]!;
  return `${count(columns.num("tokens")[row])} tokens${before ? ` after ${count(before)}` : ", from the start"}`;
}
