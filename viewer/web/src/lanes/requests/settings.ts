// Which requests are listed, and in which order.

import type { NumberName, Row } from "../../data/columns";

export const ORDERS = {
  latency: "longest first",
  first: "slowest first token",
  token: "slowest per token",
  wait: "longest in queue",
  missed: "most tokens to compute",
  preemptions: "most preempted",
  arrival: "by arrival",
  job: "by session",
};
export type Order = keyof typeof ORDERS;

const between = (from: NumberName<"requests">, to: NumberName<"requests">) => ({ columns, row }: Row<"requests">) =>
  (columns.at(to, row) ?? NaN) - (columns.at(from, row) ?? NaN) || 0;
const number = ({ columns, row }: Row<"requests">, name: NumberName<"requests">) => columns.at(name, row) ?? 0;

// By which a list has the worst first; what is unknown comes last.
export const COSTS: Record<Exclude<Order, "arrival" | "job">, (row: Row<"requests">) => number> = {
  latency: between("start_ns", "end_ns"),
  first: between("arrival_ns", "first_token_ns"),
  token: (row) => between("first_token_ns", "finished_ns")(row) / Math.max(1, number(row, "output_tokens") - 1),
  wait: between("queued_ns", "scheduled_ns"),
  missed: (row) =>
    number(row, "prompt_tokens") - number(row, "local_cached_tokens") - number(row, "external_cached_tokens"),
  preemptions: (row) => number(row, "preemptions"),
};

export const USUAL: Order = "latency";
export const settings: { order: Order; inWindow: boolean } = { order: USUAL, inWindow: true };
