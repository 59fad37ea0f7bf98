// Tokens that each scheduler step computed.

import "./style.css";
import { showCloseUp } from "../../closeup/dialog";
import { colour, pixel } from "../../colours";
import { lastAtMost } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { count } from "../../format";
import { Image } from "../../image";
import { selectStep } from "../../inspect/select";
import { LEFT, plotWidth, view } from "../../view";
import type { Descriptor, Selectable } from "../descriptor";
import { eachRun, type Legend, pickRows, wholeTicks } from "../lane";
import { StepLane } from "../step-lane";
import { describeStep } from "./inspect";
import { NAMES, PHASES } from "./phases";

class TokensLane extends StepLane {
  constructor(engine: Engine) {
    super(engine, descriptor);
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
    const phases = PHASES.map((phase) => [`${phase}_tokens`, pixel(NAMES[phase][1])] as const);
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

const step: Selectable<"steps"> = {
  kind: "step",
  describe: describeStep,
  open: (engine, name) => selectStep(engine, Number(name)),
  async first(engine, from, to) {
    for (const { columns } of engine.steps.find(from, to).parts) {
      const starts = columns.num("start_ns"), row = Math.max(0, lastAtMost(starts, from));
      if (row >= columns.rows || starts[row]! > to) continue;
      await selectStep(engine, columns.num("step")[row]!);
      return true;
    }
    return false;
  },
  next: ({ engine, id, row: place }, by) =>
    selectStep(engine, id + by * (by > 0 ? place?.columns.at("steps", place.row) ?? 1 : 1)),
  numbered(engine, number) {
    if (!engine.steps.finest.some((each) => each.first! <= number && number <= each.last!)) return null;
    return { label: `Step ${count(number)}`, more: engine.title, run: () => void selectStep(engine, number) };
  },
};

// Without steps it is there to say so.
export const descriptor: Descriptor = {
  name: "steps",
  place: 10,
  title: "Scheduled tokens",
  about: "Tokens scheduled in each step, by phase, under the step's token budget",
  needs: [],
  height: { usual: 112, tall: 140, several: 128 },
  create: (engine) => new TokensLane(engine),
  legend(engine) {
    const entries: Legend = [...PHASES.map((phase) => NAMES[phase]), ["request preempted", "preempted", "triangle"]];
    return { unit: engine.contents.steps.per_bar > 1 ? "a bar; dashed: budget" : "dashed: the budget", entries };
  },
  selects: step,
  keys: [{
    keys: ["c"],
    help: ["c", "close-up of the selected step's KV accesses, where recorded"],
    run() {
      if (view.selection?.kind === step.kind) void showCloseUp(view.selection.engine, view.selection.id);
    },
  }],
  words: [
    ["prefill", "tokens of a prompt whose rest fits in the step"],
    ["chunked prefill", "a part of a prompt"],
    ["resumed", "tokens computed again because a preemption freed their KV"],
  ],
};
