// Why the head of the waiting queue had to wait.

import "./style.css";
import { inkOn, pixel } from "../../colours";
import { type Columns, perChunk } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { count } from "../../format";
import { Image } from "../../image";
import { LEFT, plotWidth, toX } from "../../view";
import type { Descriptor } from "../descriptor";
import { eachRun, type Picked } from "../lane";
import { StepLane } from "../step-lane";
import { LIMITS, NAMES } from "./limits";

// How much each row's limit has to be seen: minus its place among the limits, or that of "other".
const OTHER = LIMITS.indexOf("other");
const urgency = perChunk((columns: Columns<"steps">) =>
  columns.codes("admission_limit", LIMITS).map((place) => -(place < 0 ? OTHER : place))
);

class LimitsLane extends StepLane {
  constructor(engine: Engine) {
    super(engine, descriptor);
  }

  override paint(): void {
    const picked = this.pick(urgency, false),
      rank = (part: number, row: number) => -urgency(this.found.parts[part]!.columns)[row]!;
    const image = new Image(this.height, 0), none = pixel("none"),
      tones = LIMITS.map((limit) => pixel(NAMES[limit][1]));
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
    let start = -1, which = -1, need: number[] = [], free: number[] = [];
    const close = (end: number) => {
      if (which < 0 || LIMITS[which] === "none") return;
      const [name, tone] = NAMES[LIMITS[which]!],
        texts = need.length
          ? [
            `${name}: need ${range(need)}, free ${range(free)} blocks`,
            `need ${range(need)}, free ${range(free)}`,
            name,
          ]
          : [name];
      const text = texts.find((each) => this.widthOf(each) + 8 < end - start);
      if (!text) return;
      this.context.fillStyle = inkOn(pixel(tone));
      this.context.fillText(text, start + 4, 11.5);
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

export const descriptor: Descriptor = {
  name: "limits",
  place: 20,
  title: "Admission limit",
  about: "What kept the head of the waiting queue from being admitted",
  needs: ["steps"],
  height: { usual: 38 },
  create: (engine) => new LimitsLane(engine),
  legend({ totals: { limits } }) {
    const seen = LIMITS.filter((limit) => limits[limit]);
    return {
      unit: "steps, by reason",
      entries: seen.map((limit) => [`${NAMES[limit][0]}: ${count(limits[limit])}`, NAMES[limit][1]]),
    };
  },
  words: [
    ["KV insufficient", "the head of the waiting queue needs more blocks than are free"],
    ["token budget", "the step's tokens were used up"],
    ["max_num_seqs", "as many requests run as may"],
    ["waits for a prefill step", "prefills run in every so many steps (prefill_schedule_interval)"],
    ["state stored in this step", "it hits a Mamba state that another request stores in the same step"],
  ],
};
