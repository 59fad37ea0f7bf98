// The lanes of scheduler steps: what each computed, and why the head of the waiting queue had to wait.

import { colour, LIMIT_RANK, LIMITS, PHASES, pixel } from "../colours";
import { type Columns, perChunk } from "../data/columns";
import type { Engine } from "../data/engine";
import type { Found } from "../data/levels";
import { clock, count, duration, share } from "../format";
import { Image } from "../image";
import { LEFT, plotWidth, toX, view } from "../view";
import { eachRun, type Hit, Lane, type Picked, pickRows, wholeTicks } from "./lane";

// A lane whose pixels each show one step, or one bar of several.
export abstract class StepLane extends Lane {
  static override offered(engine: Engine): boolean {
    return !engine.steps.empty;
  }

  protected found: Found = { parts: [], exact: true, settled: true };
  protected picked: Picked | null = null;

  protected pick(values: (columns: Columns) => ArrayLike<number>, held: boolean): Picked {
    this.found = this.engine.steps.find(this.from, this.to);
    return this.picked = pickRows(this.found.parts, this.places, values, held);
  }

  protected cell(name: string, part: number, row: number): number {
    return this.found.parts[part]!.columns.num(name)[row]!;
  }

  protected greatestPicked(picked: Picked, value: (part: number, row: number) => number): number {
    let most = 0;
    for (let x = 0; x < picked.row.length; x++) {
      if (picked.row[x]! >= 0) most = Math.max(most, value(picked.part[x]!, picked.row[x]!));
    }
    return most;
  }

  // The step of a selected kernel, transfer or block: under async scheduling it is not the one above it.
  protected override paintSelection(): void {
    super.paintSelection();
    const step = view.relatedStep;
    if (!step || view.selection?.engine !== this.engine) return;
    const x = Math.max(LEFT, this.x(step[0])), end = Math.min(LEFT + plotWidth(), this.x(step[1]));
    if (end < LEFT || x > LEFT + plotWidth()) return;
    this.context.strokeStyle = colour("accent");
    this.context.lineWidth = 2;
    this.context.strokeRect(x, 1, Math.max(2, end - x), this.height - 2);
  }

  override hit(x: number): Hit | null {
    const at = Math.floor(x - LEFT), row = this.picked?.row[at] ?? -1;
    if (row < 0) return null;
    const { columns } = this.found.parts[this.picked!.part[at]!]!;
    const start = columns.num("start_ns")[row]!, end = columns.at("end_ns", row) ?? start;
    return {
      selection: {
        kind: "step",
        engine: this.engine,
        id: columns.num("step")[row]!,
        span: [start, end],
        row: { columns, row },
      },
      lines: stepLines(columns, row),
    };
  }
}

export function stepTitle(columns: Columns, row: number): string {
  const step = columns.num("step")[row]!, steps = columns.num("steps")[row]!;
  return steps === 1 ? `Step ${count(step)}` : `Steps ${count(step)} to ${count(step + steps - 1)}`;
}

// As [prefill:Nb(Mt), ...], total, share cached, tokens computed.
export function composition(columns: Columns, row: number): string {
  const parts = PHASES.filter(([phase]) => columns.at(`${phase}_requests`, row))
    .map(([phase, name]) =>
      `${name}:${count(columns.at(`${phase}_requests`, row))}b(${count(columns.at(`${phase}_tokens`, row))}t)`
    );
  const forward = columns.at("scheduled_tokens", row) ?? 0;
  const cached = (columns.at("cached_tokens", row) ?? 0) + (columns.at("external_cached_tokens", row) ?? 0);
  if (columns.num("steps")[row] !== 1) return `[${parts.join(", ")}], ${count(forward)}t`;
  return `[${parts.join(", ")}, total ${count(forward + cached)}t, ${share(cached, forward + cached)} cached, forward ${
    count(forward)
  }t]`;
}

export function limitText(columns: Columns, row: number): string {
  const limit = columns.text("admission_limit", row);
  if (limit === null) return "unknown";
  const name = LIMITS[LIMIT_RANK.get(limit) ?? LIMITS.length - 2]![1];
  const need = columns.at("limit_need_blocks", row);
  return limit === "kv_insufficient" && need !== null
    ? `${name}: need ${count(need)}, free ${count(columns.at("limit_free_blocks", row))} blocks`
    : name;
}

function stepLines(columns: Columns, row: number): string[] {
  const many = columns.num("steps")[row] !== 1;
  const evicted = columns.at("evicted_blocks", row), preempted = columns.at("preempted_requests", row);
  return [
    stepTitle(columns, row),
    `${clock(columns.at("start_ns", row), 1e5)}, ${many ? "longest " : ""}${duration(columns.at("duration_ns", row))}`,
    composition(columns, row),
    `${count(columns.at("running", row))} running, ${count(columns.at("waiting", row))} waiting; limit: ${
      limitText(columns, row)
    }`,
    `${count(columns.at("used_blocks", row))} blocks in use, ${count(columns.at("free_blocks", row))} free, `
    + `${count(columns.at("free_cached_blocks", row))} of them still cached`,
    ...(evicted || preempted ? [`${count(evicted)} blocks evicted, ${count(preempted)} requests preempted`] : []),
  ];
}

export class TokensLane extends StepLane {
  // Without steps it is there to say so.
  static override offered(): boolean {
    return true;
  }

  constructor(engine: Engine) {
    super(
      engine,
      "steps",
      "Scheduled tokens",
      "Tokens scheduled in each step, by phase, under the step's token budget",
    );
    const bar = engine.contents.steps.per_bar;
    this.explain(bar > 1 ? "a bar; dashed: budget" : "dashed: the budget", [
      ...PHASES.map(([, name, tone]): [string, string] => [name, tone]),
      ["request preempted", "preempted", "triangle"],
    ]);
  }

  override paint(): void {
    this.timeGrid();
    if (this.engine.steps.empty) {
      this.say("No scheduler steps were recorded for this engine.");
      return;
    }
    const picked = this.pick((columns) => columns.num("scheduled_tokens"), false);
    const budget = (this.engine.facts["max_num_batched_tokens"] as number | null) ?? 0;
    const tokens = this.greatestPicked(picked, (part, row) => this.cell("scheduled_tokens", part, row));
    const most = Math.max(1, tokens, budget <= 3 * tokens ? budget : 0);
    const toY = this.scale(most, wholeTicks(most, 3)), floor = Math.round(toY(0)), image = new Image(this.height, 0);
    const phases = PHASES.map(([phase, , tone]) => [`${phase}_tokens`, pixel(tone)] as const);
    eachRun(picked, (part, row, x, width) => {
      let y = floor;
      for (const [tokens, tone] of phases) {
        const amount = this.cell(tokens, part, row);
        if (!(amount > 0)) continue;
        const size = Math.max(1, Math.round(floor - toY(amount)));
        image.bar(x - LEFT, y - size, width > 3 ? width - 1 : width, size, tone);
        y -= size;
      }
    });
    image.put(this.context, 0);
    if (budget && budget <= most) {
      this.context.fillStyle = colour("ink");
      this.context.globalAlpha = 0.7;
      for (let x = LEFT; x < LEFT + plotWidth(); x += 6) this.context.fillRect(x, Math.round(toY(budget)), 3, 1);
      this.context.globalAlpha = 1;
    }
    this.preemptions();
  }

  private preemptions(): void {
    const picked = pickRows(this.found.parts, this.places, (columns) => columns.num("preempted_requests"), false);
    this.context.fillStyle = colour("preempted");
    let last = -Infinity;
    eachRun(picked, (part, row, x, width) => {
      const middle = x + width / 2;
      if (!(this.cell("preempted_requests", part, row) > 0) || middle - last < 3) return;
      last = middle;
      this.context.beginPath();
      this.context.moveTo(middle - 4, 0);
      this.context.lineTo(middle + 4, 0);
      this.context.lineTo(middle, 7);
      this.context.fill();
    });
  }
}

// How much each row's limit has to be seen: minus its rank among the limits, or that of "other".
const urgency = perChunk((columns) =>
  columns.codes("admission_limit", LIMITS.map(([limit]) => limit)).map((rank) => -(rank < 0 ? LIMITS.length - 2 : rank))
);

export class LimitsLane extends StepLane {
  constructor(engine: Engine) {
    super(engine, "limits", "Admission limit", "What kept the head of the waiting queue from being admitted");
    const limits = engine.totals.limits;
    this.explain(
      "steps, by why its head waited",
      LIMITS.filter(([limit]) => limits[limit])
        .map(([limit, name, tone]) => [`${name}: ${count(limits[limit])}`, tone]),
    );
  }

  override paint(): void {
    const picked = this.pick(urgency, false),
      rank = (part: number, row: number) => -urgency(this.found.parts[part]!.columns)[row]!;
    const image = new Image(this.height, 0), none = pixel("none"), tones = LIMITS.map(([, , tone]) => pixel(tone));
    eachRun(picked, (index, row, x, width) => {
      const limited = this.cell("limited_steps", index, row),
        tall = Math.max(2, Math.round(16 * limited / this.cell("steps", index, row)));
      image.bar(x - LEFT, 3, width, 16, none);
      if (limited) image.bar(x - LEFT, 19 - tall, width, tall, tones[rank(index, row)]!);
    });
    image.put(this.context, 0);
    this.badges(picked, rank);
  }

  // Neighbours with one limit share a badge: what the head needed and what was free, from least to most.
  private badges(picked: Picked, rank: (part: number, row: number) => number): void {
    this.context.textAlign = "left";
    this.context.fillStyle = "#000";
    let start = -1, which = -1, need: number[] = [], free: number[] = [];
    const close = (end: number) => {
      if (which < 0 || which === LIMITS.length - 1) return;
      const name = LIMITS[which]![1],
        texts = need.length
          ? [
            `${name}: need ${range(need)}, free ${range(free)} blocks`,
            `need ${range(need)}, free ${range(free)}`,
            name,
          ]
          : [name];
      const text = texts.find((each) => this.widthOf(each) + 8 < end - start);
      if (text) this.context.fillText(text, start + 4, 11.5);
    };
    eachRun(picked, (part, row, x) => {
      const { columns } = this.found.parts[part]!;
      const full = this.cell("limited_steps", part, row) === this.cell("steps", part, row),
        next = full ? rank(part, row) : -1;
      if (next !== which) {
        close(x);
        [start, which, need, free] = [x, next, [], []];
      }
      const needed = columns.at("limit_need_blocks", row), had = columns.at("limit_free_blocks", row);
      if (needed !== null && had !== null) {
        need.push(needed);
        free.push(had);
      }
    });
    close(Math.min(toX(Infinity), LEFT + plotWidth()));
  }
}

function range(values: number[]): string {
  const low = Math.min(...values), high = Math.max(...values);
  return low === high ? count(low) : `${count(low)}–${count(high)}`;
}
