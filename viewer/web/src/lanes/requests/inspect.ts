// The panel of a request: why it waited, why its lookup missed, what preempted it.

import { load } from "../../data/chunks";
import type { Columns, NumberName, Row } from "../../data/columns";
import { REQUEST_STATES } from "../../data/contract";
import { type Engine, labelOf, nameOf } from "../../data/engine";
import { el, facts, link, outside, type Pair, section } from "../../dom";
import { clock, count, duration, shorten, times, words } from "../../format";
import { selectRequest, selectStep, stepLink } from "../../inspect/select";
import { isSelected, relate, type Selection } from "../../view";
import { NAMES } from "../limits/limits";
import { hits } from "./hits";
import { Segments } from "./segments";

export async function describeRequest({ engine, id }: Selection): Promise<Node[]> {
  const found = await engine.request(id);
  if (!found) return [el("p", "", `Request ${count(id)} is not in this page.`)];
  const { columns, row } = found, at = (name: NumberName<"requests">) => columns.at(name, row);
  const between = (
    from: NumberName<"requests">,
    to: NumberName<"requests">,
  ) => (at(from) === null || at(to) === null ? null : duration(at(to)! - at(from)!));
  const preempted = at("preemptions") ?? 0, step = (number: number | null) => stepLink(engine, number);
  return [
    el("p", "kind", "Request"),
    el("h2", "", outside(labelOf(found))),
    ...section("", [
      ["id", labelOf(found) === nameOf(found) ? null : nameOf(found)],
      ["vLLM's id", columns.text("internal_id", row) === nameOf(found) ? null : columns.text("internal_id", row)],
      ["tenant", columns.text("tenant", row)],
      ["LoRA adapter", columns.text("lora", row)],
      ["prefix hits", hits(columns, row, true).replace("prefix hits ", "")],
      ["prompt", `${count(at("prompt_tokens"))} tokens`],
      ["output", `${count(at("output_tokens"))} of at most ${count(at("max_tokens"))} tokens`],
      [
        "steps",
        at("steps") === null
          ? null
          : el("span", "", `${count(at("steps"))}: `, step(at("first_step"))!, " to ", step(at("last_step"))!),
      ],
      ["ended by", columns.text("finish_reason", row)],
    ]),
    ...waited(columns, row, step),
    ...await missed(engine, columns, row),
    ...(preempted ? await evicted(engine, id, preempted, at("recomputed_tokens")) : []),
    ...section("Times", [
      ["to first token (TTFT)", between("arrival_ns", "first_token_ns") ?? between("queued_ns", "first_token_ns")],
      ["per token (TPOT)", perToken(at("first_token_ns"), at("finished_ns"), at("output_tokens"))],
      ["end to end", between("queued_ns", "finished_ns")],
      ["tool gap before it", at("gap_start_ns") === null ? null : duration(at("start_ns")! - at("gap_start_ns")!)],
      ["queued", clock(at("queued_ns"), 1e5)],
      ["first scheduled", clock(at("scheduled_ns"), 1e5)],
      ["first token", clock(at("first_token_ns"), 1e5)],
      ["finished", at("finished_ns") === null ? "not in this recording" : clock(at("finished_ns"), 1e5)],
    ]),
    ...await spent(engine, found),
  ];
}

function waited(columns: Columns<"requests">, row: number, step: (number: number | null) => Node | null): Node[] {
  const at = (name: NumberName<"requests">) => columns.at(name, row), queued = at("queued_ns"),
    scheduled = at("scheduled_ns");
  if (queued === null) return [];
  const limit = columns.text("wait_limit", row), head = at("head_steps");
  const name = limit === null ? null : NAMES[limit][0];
  const waitedFor = scheduled === null ? "never admitted" : duration(scheduled - queued);
  const pairs: Pair[] = [["in the queue", waitedFor]];
  if (name === null) pairs.push(["as its head", "in no step: it went straight in, or waited behind others"]);
  else {
    pairs.push(["as its head", `${count(head)} step${head === 1 ? "" : "s"}, mostly for: ${name}`], [
      "first in",
      step(at("wait_step")),
    ]);
    if (at("wait_need_blocks") !== null)
      pairs.push([
        "then needed",
        `${count(at("wait_need_blocks"))} blocks, ${count(at("wait_free_blocks"))} free`,
      ]);
  }
  return section("Why did it wait", pairs);
}

// On its first admission; the price is the trace's own cost model's.
async function missed(engine: Engine, columns: Columns<"requests">, row: number): Promise<Node[]> {
  const verdict = columns.text("miss_verdict", row), at = (name: NumberName<"requests">) => columns.at(name, row);
  if (verdict === null) return [];
  const other = at("miss_request"), lost = at("miss_lost_ns");
  if (other !== null) {
    await engine.request(other);
    if (isSelected("request", engine, columns.at("request", row)!)) relate([other]);
  }
  const step = lost === null ? null : await engine.stepAt(lost);
  const why = el("p", "why", outside(columns.text("miss_why", row) ?? "unknown"));
  return [
    el("h3", "", "Why did it miss"),
    why,
    facts([
      ["verdict", words(verdict)],
      [
        verdict === "evicted" ? "evicted by" : "other request",
        other === null ? null : link(shorten(engine.name(other), 34), () => void selectRequest(engine, other)),
      ],
      [
        "lost",
        lost === null || step === null
          ? null
          : el("span", "", `${clock(lost, 1e5)}, `, link(`step ${count(step)}`, () => void selectStep(engine, step))),
      ],
      ["avoidable", at("avoidable_tokens") === null ? null : `${count(at("avoidable_tokens"))} tokens`],
      [
        "their price",
        !at("avoidable_tokens") || at("avoidable_duration_ns") === null ? null : duration(at("avoidable_duration_ns")),
      ],
    ]),
  ];
}

async function evicted(engine: Engine, request: number, preempted: number, again: number | null): Promise<Node[]> {
  const columns = await engine.preemptions(), list = el("ul", "plain"), takers: number[] = [];
  for (let row = 0; columns && row < columns.rows; row++) {
    if (columns.num("request")[row] !== request) continue;
    const step = columns.num("step")[row]!, taker = columns.at("preempted_for", row),
      resumed = columns.at("resume_step", row);
    const item = el(
      "li",
      "",
      "in ",
      link(`step ${count(step)}`, () => void selectStep(engine, step)),
      ` (${clock(columns.at("start_ns", row), 1e5)}): ${count(columns.at("computed_tokens", row))} tokens of KV lost; `,
    );
    if (taker !== null) {
      await engine.request(taker);
      takers.push(taker);
      item.append(
        "for ",
        link(shorten(engine.name(taker), 30), () => void selectRequest(engine, taker)),
        ", which needed blocks; ",
      );
    }
    item.append(
      `${count(columns.at("taken_blocks", row))} of its ${count(columns.at("blocks", row))} blocks were taken at once`,
    );
    if (resumed !== null) {
      item.append(
        "; admitted again in ",
        link(`step ${count(resumed)}`, () => void selectStep(engine, resumed)),
        `, ${duration(columns.at("resume_ns", row)! - columns.num("start_ns")[row]!)} later`,
      );
    } else item.append("; not admitted again");
    list.append(item);
  }
  if (isSelected("request", engine, request)) relate(takers);
  return [
    el("h3", "", `Preempted ${times(preempted)}: who evicted it`),
    list,
    ...section("", [["computed again", `${count(again)} tokens`]]),
  ];
}

const perToken = (first: number | null, end: number | null, outputs: number | null): string | null =>
  first === null || end === null || outputs === null || outputs < 2 ? null : duration((end - first) / (outputs - 1));

async function spent(engine: Engine, found: Row<"requests">): Promise<Node[]> {
  const id = engine.segmentsOf(found.columns);
  if (!id) return [];
  const segments = Segments.of(await load(id), found.columns.rows);
  const [low, high] = segments.range(found.row), states = REQUEST_STATES, sums = states.map(() => 0);
  for (let i = low; i < high; i++) sums[segments.state[i]!]! += segments.duration[i]!;
  const all = sums.reduce((sum, ns) => sum + ns, 0);
  if (!all) return [];
  const bar = el("div", "bar");
  states.forEach((name, state) => {
    const part = el("span");
    part.style.flex = `${sums[state]! / all} 0 0`;
    part.style.background = `var(--${name})`;
    bar.append(part);
  });
  return [
    el("h3", "", "Where its time went"),
    bar,
    facts(states.flatMap((name, state): Pair[] => (sums[state] ? [[name, duration(sums[state])]] : []))),
  ];
}
