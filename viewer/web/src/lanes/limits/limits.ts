// Why the head of the waiting queue was not admitted: names and colours, first what has to be seen most.

import type { Columns } from "../../data/columns";
import type { Limit } from "../../data/contract";
import { count } from "../../format";

export const NAMES: Record<Limit, [name: string, tone: string]> = {
  kv_insufficient: ["KV insufficient", "kv-insufficient"],
  preempted: ["preempted", "preempted"],
  max_num_seqs: ["max_num_seqs", "max-seqs"],
  token_budget: ["token budget", "token-budget"],
  prefill_interval: ["waits for a prefill step", "paused"],
  paused: ["paused", "paused"],
  state_pending: ["state stored in this step", "other"],
  remote_kv: ["remote KV load", "connector"],
  connector_deferred: ["put off by its connector", "connector"],
  grammar: ["grammar", "grammar"],
  streaming_input: ["streaming input", "paused"],
  max_loras: ["max_loras", "loras"],
  other: ["other", "other"],
  none: ["nothing waits", "none"],
};

export const LIMITS = Object.keys(NAMES) as Limit[];

export function limitText(columns: Columns<"steps">, row: number): string {
  const limit = columns.text("admission_limit", row);
  if (limit === null) return "unknown";
  const [name] = NAMES[limit];
  const need = columns.at("limit_need_blocks", row);
  return limit === "kv_insufficient" && need !== null
    ? `${name}: need ${count(need)}, free ${count(columns.at("limit_free_blocks", row))} blocks`
    : name;
}
