// What lanes of scheduler steps share.

import { colour } from "../colours";
import type { Columns, NumberName } from "../data/columns";
import { type Found, NOTHING } from "../data/levels";
import { clock, count, duration, share } from "../format";
import { LEFT, plotWidth, view } from "../view";
import { type Hit, Lane, type Picked, pickRows } from "./lane";
import { limitText } from "./limits/limits";
import { NAMES, PHASES } from "./steps/phases";

// A lane whose pixels each show one step, or one bar of several.
export abstract class StepLane extends Lane {
  protected found: Found<"steps"> = NOTHING;
  protected picked: Picked | null = null;

  protected pick(values: (columns: Columns<"steps">) => ArrayLike<number>, held: boolean): Picked {
    this.found = this.engine.steps.find(this.from, this.to);
    return this.picked = pickRows(this.found.parts, this.places, values, held);
  }

  protected cell(name: NumberName<"steps">, part: number, row: number): number {
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

export function stepTitle(columns: Columns<"steps">, row: number): string {
  const step = columns.num("step")[row]!, steps = columns.num("steps")[row]!;
  return steps === 1 ? `Step ${count(step)}` : `Steps ${count(step)} to ${count(step + steps - 1)}`;
}

// As [prefill:Nb(Mt), ...], total, share cached, tokens computed.
export function composition(columns: Columns<"steps">, row: number): string {
  const parts = PHASES.filter((phase) => columns.at(`${phase}_requests`, row)).map((phase) => {
    const requests = count(columns.at(`${phase}_requests`, row)), tokens = count(columns.at(`${phase}_tokens`, row));
    return `${NAMES[phase][0]}:${requests}b(${tokens}t)`;
  });
  const forward = columns.at("scheduled_tokens", row) ?? 0;
  const cached = (columns.at("cached_tokens", row) ?? 0) + (columns.at("external_cached_tokens", row) ?? 0);
  if (columns.num("steps")[row] !== 1) return `[${parts.join(", ")}], ${count(forward)}t`;
  return `[${parts.join(", ")}, total ${count(forward + cached)}t, ${share(cached, forward + cached)} cached, forward ${
    count(forward)
  }t]`;
}

function stepLines(columns: Columns<"steps">, row: number): string[] {
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
