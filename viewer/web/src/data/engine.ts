// One engine of one run: its levels of detail, and where single steps and requests lie in them.

import { load } from "./chunks";
import type { Columns } from "./columns";
import { lastAtMost } from "./columns";
import type { EngineContents, Reference, RunContents } from "./contents";
import { Levels } from "./levels";
import { Segments } from "./segments";

export interface Row {
  columns: Columns;
  row: number;
}

const BARS = 20_000, LANES = 12_000, CHANGES = 500_000, MOVES = 100_000, KERNELS = 200_000, ACCESSES = 100_000;

export class Engine {
  readonly steps: Levels;
  readonly requests: Levels;
  readonly blocks: Levels;
  readonly transfers: Levels;
  readonly pins: Levels;
  readonly tiers: Levels;
  readonly kernels: Levels | null;
  // From the page's time to the engine's: with several runs, all begin at 0.
  shift = 0;
  // Requests met so far, by their key.
  private readonly known = new Map<number, Row>();
  private readonly read = new Set<string>();
  private readonly closeUps = new Map<number, Levels>();

  constructor(
    readonly run: RunContents,
    readonly runIndex: number,
    readonly contents: EngineContents,
    readonly index: number,
    readonly title: string,
  ) {
    this.steps = new Levels(contents.steps.levels, BARS);
    this.requests = new Levels(contents.requests.levels, LANES);
    this.blocks = new Levels(contents.blocks.levels, CHANGES);
    this.transfers = new Levels([contents.transfers], MOVES);
    this.pins = new Levels([contents.pins], MOVES);
    this.tiers = new Levels([contents.tiers], MOVES);
    this.kernels = contents.kernels && new Levels([contents.kernels.overview, contents.kernels.details], KERNELS);
  }

  get facts() {
    return this.contents.facts;
  }
  get totals() {
    return this.contents.totals;
  }

  // A step's KV accesses, if they are in the page.
  accesses(step: number): Levels | null {
    const entry = this.contents.close_ups.steps.find((each) => each.step === step);
    if (!entry) return null;
    let levels = this.closeUps.get(step);
    if (!levels)
      this.closeUps.set(
        step,
        levels = new Levels(entry.overview.length ? [entry.overview, entry.accesses] : [entry.accesses], ACCESSES),
      );
    return levels;
  }

  // Blocks of the pool: as configured, or as far as their numbers were seen.
  get pool(): number {
    return (this.facts["blocks"] as number | null | undefined) ?? this.contents.blocks.blocks;
  }

  async step(step: number): Promise<Row | null> {
    const reference = this.steps.finest.find((each) => each.first! <= step && step <= each.last!);
    if (!reference) return null;
    const columns = await load(reference.id);
    const row = lastAtMost(columns.num("step"), step);
    return row >= 0 && columns.num("step")[row] === step ? { columns, row } : null;
  }

  // The step under way at a time of the engine.
  async stepAt(time: number): Promise<number | null> {
    const before = this.steps.finest.filter((each) => each.from_ns! <= time);
    const reference = before[before.length - 1];
    if (!reference) return null;
    const columns = await load(reference.id);
    return columns.num("step")[Math.max(0, lastAtMost(columns.num("start_ns"), time))] ?? null;
  }

  async shares(step: number): Promise<Row[]> {
    const reference = this.contents.shares.find((each) => each.first! <= step && step <= each.last!);
    if (!reference) return [];
    const columns = await load(reference.id), steps = columns.num("step"), found: Row[] = [];
    for (let row = lastAtMost(steps, step - 1) + 1; row < columns.rows && steps[row] === step; row++)
      found.push({ columns, row });
    return found;
  }

  async preemptions(): Promise<Columns | null> {
    const [reference] = this.contents.requests.preemptions;
    return reference ? load(reference.id) : null;
  }

  learn(columns: Columns): void {
    if (this.read.has(columns.id)) return;
    this.read.add(columns.id);
    const numbers = columns.num("request");
    for (let row = 0; row < columns.rows; row++) this.known.set(numbers[row]!, { columns, row });
  }

  // A request if its chunk has been met.
  met(request: number): Row | null {
    return this.known.get(request) ?? null;
  }

  async request(request: number): Promise<Row | null> {
    for (const reference of this.requests.finest) {
      if (this.known.has(request)) break;
      if (reference.first! <= request && request <= reference.last!) this.learn(await load(reference.id));
    }
    return this.met(request);
  }

  async segments(row: Row): Promise<Segments | null> {
    const all = this.contents.requests.levels.flat();
    const id = all.find((each) => each.id === row.columns.id)?.segments;
    return id ? Segments.of(await load(id), row.columns.rows) : null;
  }

  // The name the client knows, else vLLM's, else the trace's key.
  name(request: number): string {
    const row = this.met(request);
    return row ? nameOf(row) : `request ${request}`;
  }

  async findRequest(id: string): Promise<number | null> {
    for (const reference of this.requests.finest) {
      const columns = await load(reference.id);
      this.learn(columns);
      for (let row = 0; row < columns.rows; row++) {
        if (columns.text("external_id", row) === id || columns.text("internal_id", row) === id)
          return columns.at("request", row);
      }
    }
    return null;
  }
}

export function nameOf({ columns, row }: Row): string {
  return columns.text("external_id", row) ?? columns.text("internal_id", row)
    ?? `request ${columns.at("request", row)}`;
}

export function overlapping(references: Reference[], from: number, to: number): Reference[] {
  return references.filter((each) => (each.to_ns ?? Infinity) >= from && (each.from_ns ?? 0) <= to);
}
