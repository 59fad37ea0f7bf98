// Statistics of a stretch of an engine's time, under the names that the totals of the whole recording have.

import { peek } from "./data/chunks";
import type { Columns, NumberName } from "./data/columns";
import type { EngineContents, Reference } from "./data/contents";
import type { TableName } from "./data/contract";
import { type Engine, overlapping } from "./data/engine";

export type Totals = EngineContents["totals"];

// Rows read for the statistics of a stretch; with more in it, a view answers no longer at once.
const MOST_STEPS = 80_000, MOST_REQUESTS = 40_000;

// Null while rows are being loaded; `undefined` where the stretch has too many.
export function statisticsOf(engine: Engine, from: number, to: number): Totals | null | undefined {
  const steps = rowsOf(engine.steps.finest, from, to, MOST_STEPS);
  const requests = rowsOf(engine.requests.finest, from, to, MOST_REQUESTS);
  if (!steps || !requests) return steps === undefined || requests === undefined ? undefined : null;
  const { limits, ...ofSteps } = stepStatistics(steps, from, to);
  // An index signature of numbers has no room for the limits.
  return {
    ...ofSteps,
    ...requestStatistics(requests, from, to, engine.totals["prefix_queried_tokens"] !== null),
    block_events: engine.totals["block_events"] ?? null,
    span_ns: engine.steps.empty ? null : to - from,
    limits,
  } as unknown as Totals;
}

function rowsOf<T extends TableName>(
  chunks: Reference<T>[],
  from: number,
  to: number,
  most: number,
): Columns<T>[] | null | undefined {
  const found = overlapping(chunks, from, to);
  if (found.reduce((sum, { rows }) => sum + rows, 0) > most) return undefined;
  const columns = found.map(({ id }) => peek(id));
  return columns.every((each) => each !== null) ? columns : null;
}

// Of the steps that began in it.
function stepStatistics(parts: Columns<"steps">[], from: number, to: number) {
  const durations: number[] = [], limits: Record<string, number> = {};
  const sums = { output_tokens: 0, evictions: 0, preemptions: 0, recomputed_tokens: 0 };
  let peak: number | null = null;
  for (const columns of parts) {
    const starts = columns.num("start_ns"), add = (name: NumberName<"steps">, row: number) =>
      columns.at(name, row) ?? 0;
    for (let row = 0; row < columns.rows; row++) {
      if (starts[row]! < from || starts[row]! >= to) continue;
      sums.output_tokens += add("output_tokens", row);
      sums.evictions += add("evicted_blocks", row);
      sums.preemptions += add("preempted_requests", row);
      sums.recomputed_tokens += add("resumed_tokens", row);
      durations.push(columns.at("duration_ns", row) ?? NaN);
      const used = columns.at("used_blocks", row), limit = columns.text("admission_limit", row);
      if (used !== null) peak = Math.max(peak ?? 0, used);
      if (limit !== null) limits[limit] = (limits[limit] ?? 0) + 1;
    }
  }
  return {
    ...sums,
    steps: durations.length,
    median_step_ns: quantile(durations, 0.5),
    peak_used_blocks: peak,
    limits,
  };
}

// Times to first token of the requests whose first token came in it, times per token of those that ended in it, prompt
// tokens of those that were first admitted in it.
function requestStatistics(parts: Columns<"requests">[], from: number, to: number, looked: boolean) {
  const first: number[] = [], perToken: number[] = [];
  let alive = 0, finished = 0, prompt = 0, hit = 0, external = 0;
  for (const columns of parts) {
    const at = (name: NumberName<"requests">, row: number) => columns.at(name, row);
    const inside = (ns: number | null): ns is number => ns !== null && ns >= from && ns < to;
    const starts = columns.num("start_ns"), ends = columns.num("end_ns");
    for (let row = 0; row < columns.rows; row++) {
      if (starts[row]! >= to || ends[row]! < from) continue;
      alive++;
      const token = at("first_token_ns", row), end = at("finished_ns", row), arrival = at("arrival_ns", row);
      const outputs = at("output_tokens", row) ?? 0;
      if (inside(token) && arrival !== null) first.push(token - arrival);
      if (inside(end)) finished++;
      if (inside(end) && token !== null && outputs > 1) perToken.push((end - token) / (outputs - 1));
      if (!inside(at("scheduled_ns", row))) continue;
      prompt += at("prompt_tokens", row) ?? 0;
      hit += at("local_cached_tokens", row) ?? 0;
      external += at("external_cached_tokens", row) ?? 0;
    }
  }
  return {
    requests: alive,
    finished_requests: finished,
    prompt_tokens: prompt,
    prefix_queried_tokens: looked ? prompt : null,
    prefix_hit_tokens: hit,
    external_hit_tokens: external,
    ttft_p50_ns: quantile(first, 0.5),
    ttft_p95_ns: quantile(first, 0.95),
    tpot_p50_ns: quantile(perToken, 0.5),
    tpot_p95_ns: quantile(perToken, 0.95),
  };
}

// The smallest value that at least this share of all values do not exceed.
function quantile(values: number[], share: number): number | null {
  const sorted = Float64Array.from(values.filter((value) => !Number.isNaN(value))).sort();
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? null;
}
