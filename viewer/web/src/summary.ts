// The head of the page: what was recorded, totals, notes; and the table of all runs.

import { LIMITS, LIMIT_RANK } from "./colours";
import type { Engine } from "./data/engine";
import { byId, el, outside } from "./dom";
import { commandLine, count, duration, share, shorten, utc } from "./format";
import { view } from "./view";

interface Total { name: string; value: string; more: string; meaning?: string }

export function showHead(): void {
  const runs = view.contents!.runs, engine = view.engines[0];
  const run = new Map(runs[0]?.run ?? []), model = engine?.facts["model"] as string | null | undefined;
  const vllm = (engine?.facts["vllm_version"] as string | null | undefined) ?? run.get("vllm_version");
  const parts = runs.length > 1 ? [runs.map((each) => each.name).join("  vs  ")]
    : [model, vllm ? `vLLM ${vllm}` : null, commandLine(run.get("command"))].filter((part): part is string => Boolean(part));
  const what = byId("what");
  what.replaceChildren(outside(parts.join("  ·  ")));
  what.title = parts.join("\n");
  const origin = runs[0]?.origin_ns ?? "0";
  if (runs.length > 1) byId("when").textContent = "0 s = first event of each run";
  else if (origin !== "0") byId("when").textContent = `0 s = ${utc(origin, 0)}`;
  byId("when").title = `${origin} ns since the UNIX epoch`;
  document.title = model ? `kvtrace: ${shorten(model, 40)}` : "kvtrace";
}

export function showNotes(): void {
  const several = view.contents!.runs.length > 1;
  const notes = [
    ...view.contents!.runs.flatMap((run) => run.notes.map(({ text }) => (several ? `${run.name}: ${text}` : text))),
    ...view.engines.flatMap((engine) => engineNotes(engine).map((text) => (several ? `${engine.run.name}: ${text}` : text))),
  ];
  const box = byId("notes"), [first, ...more] = notes;
  box.hidden = first === undefined;
  box.querySelector("summary")!.textContent = more.length ? `${first} (and ${more.length} more)` : first ?? "";
  box.querySelector("ul")!.replaceChildren(...more.map((text) => el("li", "", text)));
}

function engineNotes(engine: Engine): string[] {
  const { steps, requests, blocks } = engine.contents, notes: string[] = [];
  if (!steps.total) notes.push("No scheduler steps were recorded for this engine: the lanes of steps, queues and KV pool are empty.");
  if (steps.total && !engine.totals["block_events"]) {
    notes.push("No block events were recorded: evictions, the cached part of the free blocks and the KV map are unknown.");
  }
  if (steps.cache_mismatches) {
    notes.push(`Free cached blocks follow from block events, whose total disagrees with the recorded one in ` +
      `${count(steps.cache_mismatches)} of ${count(steps.total)} steps.`);
  }
  if (steps.levels.length > 1) {
    notes.push(`With more than some thousand of its ${count(steps.total)} steps in sight, up to ${count(steps.per_bar)} steps share a bar that shows the largest of them` +
      `${requests.levels.length > 1 ? ", the lanes list the longest requests" : ""}` +
      `${blocks.levels.length > 1 ? ", and the KV map shows some of the blocks" : ""}; zoom in for everything.`);
  }
  return notes;
}

export function totalsOf(engine: Engine): Total[] {
  const { totals, pool } = engine, num = (name: string) => totals[name] as number | null;
  const limited = Object.entries(totals.limits).filter(([limit]) => limit !== "none");
  const [worst, most] = limited.sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
  const seconds = (num("span_ns") ?? 0) / 1e9, output = num("output_tokens"), peak = num("peak_used_blocks");
  return [
    { name: "Requests", value: count(num("requests")), more: `${count(num("finished_requests"))} finished` },
    { name: "Prompt tokens", value: count(num("prompt_tokens")), more: "of all requests" },
    {
      name: "Output tokens", value: count(output), more: seconds && output !== null ? `${count(output / seconds)} per second` : "",
      meaning: "from the first step's start to the last one's end",
    },
    { name: "Steps", value: count(num("steps")), more: num("median_step_ns") === null ? "" : `median ${duration(num("median_step_ns"))}` },
    {
      name: "Prefix hit rate", value: share(num("prefix_hit_tokens") ?? 0, num("prefix_queried_tokens")),
      more: num("prefix_queried_tokens") === null ? "no lookup recorded" : `${count(num("prefix_hit_tokens"))} / ${count(num("prefix_queried_tokens"))}`,
      meaning: "tokens found in the GPU prefix cache at each request's first admission",
    },
    { name: "Peak KV use", value: share(peak ?? 0, peak === null ? 0 : pool), more: `${count(peak)} / ${count(pool)} blocks` },
    {
      name: "Evicted blocks", value: totals["block_events"] ? count(num("evictions")) : "unknown", more: "from prefix cache",
      meaning: "blocks that were taken for new content and so are no longer findable by hash",
    },
    {
      name: "Preemptions", value: count(num("preemptions")), more: `${count(num("recomputed_tokens"))} recomputed`,
      meaning: `tokens computed again; preempted requests released the KV of ${count(num("released_tokens") ?? 0)}`,
    },
    {
      name: "Admission limited", value: share(limited.reduce((sum, [, n]) => sum + n, 0), num("steps")),
      more: worst ? `${LIMITS[LIMIT_RANK.get(worst) ?? 5]![1]} ${Math.round(100 * most / (num("steps") || 1))}%` : "of all steps",
      meaning: "share of steps after which the head of the waiting queue had to wait, and the most frequent reason",
    },
  ];
}

export function showCards(): void {
  const all = view.engines.map(totalsOf), several = all.length > 1;
  byId("cards").classList.toggle("several", several);
  byId("cards").replaceChildren(...(all[0] ?? []).map(({ name, meaning }, index) => {
    const card = el("div", "card", el("span", "", name));
    for (const totals of all) {
      const { value, more } = totals[index]!;
      card.append(el("b", "", value), ...(several ? [] : [el("span", "", more)]));
    }
    card.title = [`${name}: ${all.map((totals) => [totals[index]!.value, totals[index]!.more].filter(Boolean).join(", ")).join("; ")}`, meaning].filter(Boolean).join("\n");
    return card;
  }));
}

// A row a run, so that many can be read below each other.
export function showTable(): void {
  const dialog = byId<HTMLDialogElement>("table"), all = view.engines.map(totalsOf);
  const head = el("tr", "", el("th", "", "Run"), ...(all[0] ?? []).map(({ name }) => el("th", "", name)));
  const rows = view.engines.map((engine, index) => el("tr", "",
    el("th", "", outside(shorten(engine.run.name, 60))),
    ...all[index]!.map(({ value, more }) => el("td", "", el("b", "", value), el("span", "", more)))));
  const close = el("button", "", "Close");
  close.addEventListener("click", () => { dialog.close(); });
  dialog.replaceChildren(el("h2", "", "Totals"), el("table", "", el("thead", "", head), el("tbody", "", ...rows)), close);
  dialog.showModal();
}
