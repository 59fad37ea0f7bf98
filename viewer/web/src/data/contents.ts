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
  kernels: { total: number; overview: Reference[]; details: Reference[] } | null;
  close_ups: { total: number; steps: { step: number; accesses: Reference[]; windows: Reference[] }[] };
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
