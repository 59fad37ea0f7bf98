// The panel of a step.

import { showCloseUp } from "../../closeup/dialog";
import type { NumberName, Row } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { button, el, link, type Pair, section } from "../../dom";
import { clock, count, duration, share, shorten, utc, words } from "../../format";
import { selectRequest, selectStep } from "../../inspect/select";
import { isSelected, relate, type Selection } from "../../view";
import { limitText } from "../limits/limits";
import { composition, stepTitle } from "../step-lane";
import { NAMES, PHASES } from "./phases";

const MOST_SHARES = 100;

type At = (name: NumberName<"steps">) => number | null;

export async function describeStep({ engine, id, row: place }: Selection<"steps">): Promise<Node[]> {
  const found = place ?? await engine.step(id);
  if (!found) return [el("p", "", `Step ${count(id)} is not in this page.`)];
  const { columns, row } = found, at: At = (name) => columns.at(name, row), many = columns.num("steps")[row]! > 1;
  const closeUp = engine.contents.close_ups.steps.find((each) => each.step === id);
  const most = many ? "most " : "";
  return [
    el("h2", "", stepTitle(columns, row)),
    el("p", "composition", composition(columns, row)),
    el(
      "div",
      "actions",
      button("‹ Previous", () => void selectStep(engine, id - 1), ","),
      button("Next ›", () => void selectStep(engine, id + (at("steps") ?? 1)), "."),
      ...(closeUp ? [button("KV accesses", () => void showCloseUp(engine, id), "Close-up of this step (c)")] : []),
    ),
    ...(many
      ? [
        el(
          "p",
          "",
          `${count(at("steps"))} steps drawn as one: tokens are those of the step with the most, blocks those of the `
            + "step that used the most, evictions, preemptions and outputs their sums. Zoom in for single steps.",
        ),
      ]
      : []),
    ...section("Time", [
      ["start", clock(at("start_ns"), 1e3)],
      ["UTC", utc(engine.run.origin_ns, at("start_ns") ?? 0).slice(11)],
      [many ? "longest step" : "duration", duration(at("duration_ns"))],
      [`${most}in schedule`, duration(at("schedule_ns"))],
      [`${most}until output`, duration(at("model_ns"))],
      [`${most}in update`, duration(at("update_ns"))],
    ]),
    ...tokens(at),
    ...await waiting(engine, found),
    ...section("KV blocks after it", [
      ["in use", `${count(at("used_blocks"))} (${share(at("used_blocks"), engine.pool)})`],
      ["free, still cached", count(at("free_cached_blocks"))],
      ["free", count(at("free_blocks"))],
      ["evicted", count(at("evicted_blocks"))],
      ["requests preempted", count(at("preempted_requests"))],
    ]),
    ...gpu(at),
    ...(many ? [] : await preempted(engine, id)),
    ...(many ? [] : await shares(engine, id)),
  ];
}

function tokens(at: At): Node[] {
  return section("Tokens scheduled", [
    ...PHASES.filter((phase) => at(`${phase}_tokens`)).map((phase): Pair => {
      return [NAMES[phase][0], `${count(at(`${phase}_tokens`))} in ${count(at(`${phase}_requests`))} requests`];
    }),
    [
      "of the budget",
      `${count(at("scheduled_tokens"))} / ${count(at("budget_tokens"))} (${
        share(at("scheduled_tokens"), at("budget_tokens"))
      })`,
    ],
    ["found in the cache", at("cached_tokens") ? `${count(at("cached_tokens"))} on the GPU` : null],
    ["found by the connector", at("external_cached_tokens") ? count(at("external_cached_tokens")) : null],
    ["output tokens", count(at("output_tokens"))],
  ]);
}

async function waiting(engine: Engine, { columns, row }: Row<"steps">): Promise<Node[]> {
  const at: At = (name) => columns.at(name, row), head = at("limit_request");
  if (head !== null) await engine.request(head);
  return section("Why the next request waited", [
    ["limit", limitText(columns, row)],
    [
      "head of the queue",
      head === null || !at("limited_steps")
        ? null
        : link(shorten(engine.name(head), 40), () => void selectRequest(engine, head)),
    ],
    ["running", count(at("running"))],
    ["waiting", count(at("waiting"))],
  ]);
}

function gpu(at: At): Node[] {
  return section("On the GPU", [
    ["kernels", at("gpu_kernels") === null ? null : count(at("gpu_kernels"))],
    ...(["busy", "idle", "launch_gap", "attention", "gemm", "kv_write"] as const).map((name): Pair => {
      const time = at(`gpu_${name}_ns`);
      return [words(name), time === null ? null : duration(time)];
    }),
  ]);
}

async function preempted(engine: Engine, step: number): Promise<Node[]> {
  const columns = await engine.preemptions();
  if (!columns) return [];
  const list = el("ul", "plain"), steps = columns.num("step");
  for (let row = 0; row < columns.rows; row++) {
    if (steps[row] !== step) continue;
    const victim = columns.num("request")[row]!, taker = columns.at("preempted_for", row);
    await engine.request(victim);
    const item = el(
      "li",
      "",
      link(shorten(engine.name(victim), 30), () => void selectRequest(engine, victim)),
      ` lost ${count(columns.at("computed_tokens", row))} tokens of KV in ${count(columns.at("blocks", row))} blocks; `,
    );
    if (taker !== null) {
      await engine.request(taker);
      item.append(
        "for ",
        link(shorten(engine.name(taker), 30), () => void selectRequest(engine, taker)),
        ", which needed blocks",
      );
    } else item.append("no other request got blocks then");
    list.append(item);
  }
  return list.children.length ? [el("h3", "", "Preempted in this step"), list] : [];
}

async function shares(engine: Engine, step: number): Promise<Node[]> {
  const found = await engine.shares(step),
    tokens = ({ columns, row }: Row<"shares">) => columns.at("scheduled_tokens", row) ?? 0;
  if (!found.length) return [];
  // Those that took most of the step come first.
  found.sort((a, b) => tokens(b) - tokens(a));
  if (isSelected("step", engine, step)) relate(found.map(({ columns, row }) => columns.num("request")[row]!));
  for (const { columns, row } of found.slice(0, MOST_SHARES)) await engine.request(columns.num("request")[row]!);
  const list = el("ul", "plain shares");
  for (const { columns, row } of found.slice(0, MOST_SHARES)) {
    const request = columns.num("request")[row]!, blocks = columns.at("new_blocks", row);
    list.append(
      el(
        "li",
        "",
        el("i", `swatch ${columns.text("phase", row) ?? ""}`),
        link(shorten(engine.name(request), 26), () => void selectRequest(engine, request)),
        el("span", "", `${count(columns.at("scheduled_tokens", row))}t${blocks ? `, +${count(blocks)} blocks` : ""}`),
      ),
    );
  }
  if (found.length > MOST_SHARES) list.append(el("li", "", `and ${count(found.length - MOST_SHARES)} more`));
  return [el("h3", "", `Requests in it (${count(found.length)})`), list];
}
