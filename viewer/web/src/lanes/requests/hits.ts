// How much of a request's prompt was found in the cache.

import type { Columns } from "../../data/columns";
import { count, share } from "../../format";

export function hits(columns: Columns<"requests">, row: number, long = false): string {
  const prompt = columns.at("prompt_tokens", row), local = columns.at("local_cached_tokens", row);
  if (prompt === null || local === null) return long ? "prefix hits unknown" : "";
  const outside = columns.at("external_cached_tokens", row) ?? 0;
  const sum = `${count(local + outside)}/${count(prompt)} (${share(local + outside, prompt)})`;
  if (!long) return `hits ${sum}${outside ? `, ${count(outside)} external` : ""}`;
  return `prefix hits ${sum}${outside ? `: ${count(local)} on the GPU, ${count(outside)} from the connector` : ""}`;
}
