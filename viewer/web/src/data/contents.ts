// The page's table of contents, as viewer/export.py writes it. docs/viewer.md describes it.

import type { LaneTable, TableName } from "./contract";

// A chunk's name in the page; the type says of which table.
export type ChunkId<T extends TableName = TableName> = string & { readonly table?: T };

export interface Reference<T extends TableName = TableName> {
  id: ChunkId<T>;
  rows: number;
  from_ns?: number;
  to_ns?: number;
  first?: number;
  last?: number;
  segments?: ChunkId<"segments"> | null;
}

export type Value = string | number | boolean | null;
export type Facts = Record<string, Value>;

// Of a step: its blocks, and its accesses in two levels, the coarse one only if they are many.
export interface CloseUp {
  step: number;
  blocks: Reference<"access_blocks">[];
  overview: Reference<"access_bins">[];
  accesses: Reference<"accesses">[];
  windows: Reference<"windows">[];
}

export interface KernelContents {
  total: number;
  // From the first activity's start to the last one's end.
  from_ns: number;
  to_ns: number;
  // The part of it in which the engine worked, how long each category ran then, and how long anything did, over all GPUs.
  measured_ns: number;
  busy_ns: Record<string, number>;
  active_ns: number;
  gpus: number;
  overview: Reference<"kernel_bins">[];
  details: Reference<"kernels">[];
}

export type EngineContents = { [T in LaneTable]: Reference<T>[] } & {
  facts: Facts;
  // Of an engine that another tool told of, from its first moment to its last: its clock may be no other engine's.
  span_ns: [number, number] | null;
  totals: Record<string, number | null> & { limits: Record<string, number> };
  steps: { total: number; per_bar: number; cache_mismatches: number; levels: Reference<"steps">[][] };
  shares: Reference<"shares">[];
  requests: { total: number; levels: Reference<"requests">[][]; preemptions: Reference<"preemptions">[] };
  blocks: { total: number; blocks: number; levels: Reference<"blocks">[][] };
  tier_capacity: Record<string, number | null>;
  kernels: KernelContents | null;
  close_ups: { total: number; steps: CloseUp[] };
};

// As `kvtrace findings --json` has it.
export interface Finding {
  rule: string;
  text: string;
  cost_ms: number | null;
  basis: string;
  evidence: string;
  rows: number;
  remedy: string;
  worst: { kind: string; number: number; engine_id: number | null } | null;
}

export interface RunContents {
  name: string;
  origin: string;
  origin_ns: string;
  first_ns: number | null;
  last_ns: number | null;
  // When the engine worked: a profile begins earlier, with the model's loading.
  work_ns: [number, number] | null;
  run: [string, string | null][];
  processes: Facts[];
  // What cost most, the most first; `instead` where that is nothing.
  findings: { found: Finding[]; instead: string };
  notes: { level: string; text: string }[];
  engines: EngineContents[];
}

export interface Contents {
  format: string;
  version: number;
  kvtrace_version: string;
  runs: RunContents[];
}
