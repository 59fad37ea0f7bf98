// The page's table of contents, as viewer/export.py writes it. docs/viewer.md describes it.

export const FORMAT = "kvtrace-page";
export const VERSION = 2;

export interface Reference {
  id: string;
  rows: number;
  from_ns?: number;
  to_ns?: number;
  first?: number;
  last?: number;
  segments?: string | null;
}

export type Value = string | number | boolean | null;
export type Facts = Record<string, Value>;

// Of a step: its blocks, and its accesses in two levels, the coarse one only if they are many.
export interface CloseUp {
  step: number;
  blocks: Reference[];
  overview: Reference[];
  accesses: Reference[];
  windows: Reference[];
}

export interface KernelContents {
  total: number;
  // From the first activity's start to the last one's end.
  from_ns: number;
  to_ns: number;
  // The part of it in which the engine worked, and how long each category ran then.
  measured_ns: number;
  busy_ns: Record<string, number>;
  overview: Reference[];
  details: Reference[];
}

export interface EngineContents {
  facts: Facts;
  totals: Record<string, number | null> & { limits: Record<string, number> };
  steps: { total: number; per_bar: number; cache_mismatches: number; levels: Reference[][] };
  shares: Reference[];
  requests: { total: number; levels: Reference[][]; preemptions: Reference[] };
  blocks: { total: number; blocks: number; levels: Reference[][] };
  transfers: Reference[];
  pins: Reference[];
  tiers: Reference[];
  tier_capacity: Record<string, number | null>;
  kernels: KernelContents | null;
  close_ups: { total: number; steps: CloseUp[] };
}

export interface RunContents {
  name: string;
  origin: string;
  origin_ns: string;
  first_ns: number | null;
  last_ns: number | null;
  // When the engine worked: a profile begins earlier, with the model's loading.
  work_ns: [number, number] | null;
  states: string[];
  block_states: string[];
  run: [string, string | null][];
  processes: Facts[];
  notes: { level: string; text: string }[];
  engines: EngineContents[];
}

export interface Contents {
  format: string;
  version: number;
  kvtrace_version: string;
  runs: RunContents[];
}
