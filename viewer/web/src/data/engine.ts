// One engine of one run: its levels of detail, and where single steps and requests lie in them.

import { load } from "./chunks";
import { type Columns, lastAtMost, type Row } from "./columns";
import type { ChunkId, EngineContents, Reference, RunContents } from "./contents";
import { type LaneTable, type TableName, TABLES } from "./contract";
import { Levels } from "./levels";

export class Engine {
  readonly steps: Levels<"steps">;
  readonly requests: Levels<"requests">;
  readonly blocks: Levels<"blocks">;
  readonly kernels: Levels<"kernels" | "kernel_bins"> | null;
  // From the page's time to the engine's: with several runs, all begin at 0.
  shift = 0;
  // Requests met so far, by their key.
  private readonly known = new Map<number, Row<"requests">>();
  private readonly read = new Set<string>();
  private readonly tables = new Map<LaneTable, Levels>();
  private readonly closeUps = new Map<number, Levels<"accesses" | "access_bins">>();

  constructor(
    readonly run: RunContents,
    readonly contents: EngineContents,
    readonly index: number,
    readonly title: string,
  ) {
    this.steps = new Levels(contents.steps.levels, TABLES.steps.drawn);
    this.requests = new Levels(contents.requests.levels, TABLES.requests.drawn);
    this.blocks = new Levels(contents.blocks.levels, TABLES.blocks.drawn);
    const { kernels } = contents;
    this.kernels = kernels
      && new Levels<"kernels" | "kernel_bins">([kernels.overview, kernels.details], TABLES.kernels.drawn);
  }

  get facts() {
    return this.contents.facts;
  }
  get totals() {
    return this.contents.totals;
  }

  // True if the page has rows of a table.
  has(name: TableName): boolean {
    const { steps, requests, blocks, kernels } = this, own: Partial<Record<TableName, Levels | null>> = {
      steps,
      requests,
      blocks,
      kernels,
    };
    return (name in own ? own[name]?.empty : this.table(name as LaneTable).empty) === false;
  }

  // A table that the engine has as one list of chunks.
  table<T extends LaneTable>(name: T): Levels<T> {
    let levels = this.tables.get(name);
    if (!levels) {
      levels = new Levels<T>([this.contents[name] as Reference<T>[]], TABLES[name].drawn);
      this.tables.set(name, levels);
    }
    return levels;
  }

  // A step's KV accesses, if they are in the page.
  accesses(step: number): Levels<"accesses" | "access_bins"> | null {
    const entry = this.contents.close_ups.steps.find((each) => each.step === step);
    if (!entry) return null;
    let levels = this.closeUps.get(step);
    if (!levels) {
      const { overview, accesses } = entry;
      levels = new Levels(overview.length ? [overview, accesses] : [accesses], TABLES.accesses.drawn);
      this.closeUps.set(step, levels);
    }
    return levels;
  }

  // Blocks of the pool: as configured, or as far as their numbers were seen.
  get pool(): number {
    return (this.facts["blocks"] as number | null | undefined) ?? this.contents.blocks.blocks;
  }

  async step(step: number): Promise<Row<"steps"> | null> {
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

  async shares(step: number): Promise<Row<"shares">[]> {
    const reference = this.contents.shares.find((each) => each.first! <= step && step <= each.last!);
    if (!reference) return [];
    const columns = await load(reference.id), steps = columns.num("step"), found: Row<"shares">[] = [];
    for (let row = lastAtMost(steps, step - 1) + 1; row < columns.rows && steps[row] === step; row++)
      found.push({ columns, row });
    return found;
  }

  async preemptions(): Promise<Columns<"preemptions"> | null> {
    const [reference] = this.contents.requests.preemptions;
    return reference ? load(reference.id) : null;
  }

  learn(columns: Columns<"requests">): void {
    if (this.read.has(columns.id)) return;
    this.read.add(columns.id);
    const numbers = columns.num("request");
    for (let row = 0; row < columns.rows; row++) this.known.set(numbers[row]!, { columns, row });
  }

  // A request if its chunk has been met.
  met(request: number): Row<"requests"> | null {
    return this.known.get(request) ?? null;
  }

  async request(request: number): Promise<Row<"requests"> | null> {
    for (const reference of this.requests.finest) {
      if (this.known.has(request)) break;
      if (reference.first! <= request && request <= reference.last!) this.learn(await load(reference.id));
    }
    return this.met(request);
  }

  // The chunk that has the states of a chunk of requests.
  segmentsOf(requests: Columns<"requests">): ChunkId<"segments"> | null {
    return this.contents.requests.levels.flat().find((each) => each.id === requests.id)?.segments ?? null;
  }

  // What a reader knows it by.
  name(request: number): string {
    const row = this.met(request);
    return row ? labelOf(row) : `request ${request}`;
  }

  // The request that any id of a user's means, as `kvtrace explain` takes them: one that the client or vLLM knows, the
  // trace's number, session/turn, a session of one request, or the beginning of one of these. Null: none, or several.
  async findRequest(typed: string): Promise<number | null> {
    const wanted = typed.trim().replace(/…+$/, "");
    let found: number[] = [], best = WAYS.length;
    for (const reference of wanted ? this.requests.finest : []) {
      const columns = await load(reference.id);
      this.learn(columns);
      for (let row = 0; row < columns.rows; row++) {
        const way = WAYS.findIndex((matches) => matches({ columns, row }, wanted));
        if (way < 0 || way > best) continue;
        if (way < best) found = [];
        best = way;
        found.push(columns.num("request")[row]!);
        if (way === 0) return found[0]!;
      }
    }
    return found.length === 1 ? found[0]! : null;
  }
}

// How an id may mean a request; the first way that any request fits decides. `queries/identify.py` has the same.
const WAYS: ((row: Row<"requests">, wanted: string) => boolean)[] = [
  (row, wanted) => ids(row).includes(wanted),
  ({ columns, row }, wanted) => String(columns.at("request", row)) === wanted,
  ({ columns, row }, wanted) => `${columns.text("session", row)}/${columns.at("turn", row)}` === wanted,
  ({ columns, row }, wanted) => columns.text("session", row) === wanted,
  (row, wanted) => ids(row).some((id) => id.startsWith(wanted)),
  (row, wanted) => ids(row).some((id) => id.replace(/^\d+_/, "").startsWith(wanted)),
  ({ columns, row }, wanted) => `${columns.text("session", row) ?? ""}/${columns.at("turn", row)}`.startsWith(wanted),
];

function ids({ columns, row }: Row<"requests">): string[] {
  return [columns.text("external_id", row) ?? "", columns.text("internal_id", row) ?? ""];
}

// Its session and turn, where the client told them.
export function labelOf(found: Row<"requests">): string {
  const session = found.columns.text("session", found.row), turn = found.columns.at("turn", found.row);
  return session === null ? nameOf(found) : `${session}${turn === null ? "" : ` turn ${turn}`}`;
}

// The name the client knows, else vLLM's, else the trace's key.
export function nameOf({ columns, row }: Row<"requests">): string {
  return columns.text("external_id", row) ?? columns.text("internal_id", row)
    ?? `request ${columns.at("request", row)}`;
}

export function overlapping<T extends TableName>(references: Reference<T>[], from: number, to: number): Reference<T>[] {
  return references.filter((each) => (each.to_ns ?? Infinity) >= from && (each.from_ns ?? 0) <= to);
}
