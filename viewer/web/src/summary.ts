// The head of the page: what was recorded, totals, notes; and the table of all runs.

import type { EngineContents, KernelContents } from "./data/contents";
import type { Limit } from "./data/contract";
import type { Engine } from "./data/engine";
import { button, byId, el, outside } from "./dom";
import { engineTitle } from "./engines";
import { commandLine, count, duration, share, shorten, utc, words } from "./format";
import { NAMES } from "./lanes/limits/limits";
import { stretchOf, tellScope } from "./scope";
import { statisticsOf } from "./statistics";
import { view } from "./view";

interface Total {
  name: string;
  value: string;
  more: string;
  meaning?: string;
}

// Times of a tool that counts from its own beginning. No recording is of the 1970s.
const CLOCKLESS_NS = 3e17;

export function showHead(): void {
  const runs = view.contents!.runs, engine = view.engines[0];
  const run = new Map(runs[0]?.run ?? []), model = engine?.facts["model"] as string | null | undefined;
  const vllm = (engine?.facts["vllm_version"] as string | null | undefined) ?? run.get("vllm_version");
  const parts = runs.length > 1
    ? [runs.map((each) => each.name).join("  vs  ")]
    : [model, vllm ? `vLLM ${vllm}` : null, commandLine(run.get("command"))].filter((part): part is string =>
      Boolean(part)
    );
  const what = byId("what");
  what.replaceChildren(outside(parts.join("  ·  ")));
  what.title = parts.join("\n");
  const origin = runs[0]?.origin_ns ?? "0", shift = engine?.shift ?? 0;
  if (runs.length > 1) byId("when").textContent = "0 s = first event of each run";
  else if (engine)
    byId("when").textContent = `0 s = ${Number(origin) + shift < CLOCKLESS_NS ? "first event" : utc(origin, shift)}`;
  byId("when").title = `${origin} ns since the UNIX epoch`;
  document.title = model ? `kvtrace: ${shorten(model, 40)}` : "kvtrace";
}

export function showNotes(): void {
  const several = view.contents!.runs.length > 1;
  const named = (name: string, text: string) => (name ? `${name}: ${text}` : text);
  const ofRuns = (level: string) =>
    view.contents!.runs.flatMap((run) =>
      run.notes.filter((note) => note.level === level).map(({ text }) => named(several ? run.name : "", text))
    );
  const ofEngines = view.engines.flatMap((engine) => engineNotes(engine).map((text) => named(engine.title, text)));
  const notes = [...ofRuns("warning"), ...ofEngines, ...ofRuns("info")];
  const box = byId("notes"), [first, ...more] = notes;
  box.hidden = first === undefined;
  box.querySelector("summary")!.textContent = more.length ? `${first} (and ${more.length} more)` : first ?? "";
  box.querySelector("ul")!.replaceChildren(...more.map((text) => el("li", "", text)));
}

function engineNotes(engine: Engine): string[] {
  const { steps, requests, blocks, kernels } = engine.contents, notes: string[] = [];
  if (!steps.total)
    notes.push("No scheduler steps were recorded for this engine: the lanes of steps, queues and KV pool are empty.");
  if (steps.total && !engine.totals["block_events"]) {
    notes.push(
      "No block events were recorded: evictions, the cached part of the free blocks and the KV map are unknown.",
    );
  }
  if (steps.cache_mismatches) {
    notes.push(
      `Free cached blocks follow from block events, whose total disagrees with the recorded one in `
        + `${count(steps.cache_mismatches)} of ${count(steps.total)} steps.`,
    );
  }
  const [, worked] = engine.run.work_ns ?? [0, 0];
  if (kernels && steps.total && kernels.to_ns < worked) {
    notes.push(
      `The GPU profile ends ${
        duration(worked - kernels.to_ns)
      } before the engine's last step: what the GPU did then is unknown.`,
    );
  }
  if (steps.levels.length > 1) {
    notes.push(
      `With more than some thousand of its ${count(steps.total)} steps in sight, up to ${
        count(steps.per_bar)
      } steps share a bar that shows the largest of them`
        + `${requests.levels.length > 1 ? ", the lanes list the longest requests" : ""}`
        + `${blocks.levels.length > 1 ? ", and the KV map shows some of the blocks" : ""}; zoom in for everything.`,
    );
  }
  return notes;
}

// Of a profile alone, what the GPU did; of an engine what it did, and of a profiled one the GPU's share.
function totalsOf(contents: EngineContents): Total[] {
  const recorded = contents.steps.total > 0 || contents.requests.total > 0;
  return [
    ...(recorded || !contents.kernels ? engineTotals(contents) : []),
    ...(contents.kernels ? gpuTotals(contents.kernels, !recorded) : []),
  ];
}

function engineTotals({ totals, facts, blocks }: Pick<EngineContents, "totals" | "facts" | "blocks">): Total[] {
  const num = (name: string) => totals[name] as number | null,
    pool = (facts["blocks"] as number | null | undefined) ?? blocks.blocks;
  const limited = (Object.entries(totals.limits) as [Limit, number][]).filter(([limit]) => limit !== "none");
  const [worst, most] = limited.sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
  const seconds = (num("span_ns") ?? 0) / 1e9, output = num("output_tokens"), peak = num("peak_used_blocks"),
    finished = num("finished_requests");
  return [
    { name: "Requests", value: count(num("requests")), more: finished === null ? "" : `${count(finished)} finished` },
    {
      name: "TTFT",
      value: duration(num("ttft_p50_ns")),
      more: num("ttft_p95_ns") === null ? "" : `p95 ${duration(num("ttft_p95_ns"))}`,
      meaning: "from a request's arrival to its first token: the median, and what 95 of 100 requests stay within",
    },
    {
      name: "TPOT",
      value: duration(num("tpot_p50_ns")),
      more: num("tpot_p95_ns") === null ? "" : `p95 ${duration(num("tpot_p95_ns"))}`,
      meaning:
        "time between a request's output tokens after the first: the median request's mean, and that of the slower",
    },
    {
      name: "From prefix cache",
      value: share(num("prefix_hit_tokens") ?? 0, num("prefix_queried_tokens")),
      more: num("prefix_queried_tokens") === null
        ? "no lookup recorded"
        : num("external_hit_tokens")
        ? `of ${count(num("prefix_queried_tokens"))} prompt tokens, and ${
          share(num("external_hit_tokens")!, num("prefix_queried_tokens"))
        } external`
        : `of ${count(num("prefix_queried_tokens"))} prompt tokens`,
      meaning:
        `Of ${count(num("prefix_queried_tokens"))} prompt tokens, ${
          count(num("prefix_hit_tokens"))
        } found in the GPU prefix cache at each request's first admission`
        + (num("external_hit_tokens") ? `, and ${count(num("external_hit_tokens"))} loaded from outside the GPU` : ""),
    },
    {
      name: "Output tokens",
      value: count(output),
      more: seconds && output !== null ? `${count(output / seconds)} per second` : "",
      meaning: "from the first step's start to the last one's end",
    },
    {
      name: "Steps",
      value: count(num("steps")),
      more: num("median_step_ns") === null ? "" : `median ${duration(num("median_step_ns"))}`,
    },
    {
      name: "Peak KV use",
      value: share(peak ?? 0, peak === null ? 0 : pool),
      more: pool ? `of ${count(pool)} blocks` : "",
      meaning: `${count(peak)} blocks in use at most`,
    },
    {
      name: "Evicted blocks",
      value: totals["block_events"] ? count(num("evictions")) : "unknown",
      more: "from prefix cache",
      meaning: "blocks that were taken for new content and so are no longer findable by hash",
    },
    {
      name: "Preemptions",
      value: count(num("preemptions")),
      more: num("recomputed_tokens") === null ? "" : `${count(num("recomputed_tokens"))} tokens again`,
      meaning: `tokens computed again; preempted requests released the KV of ${count(num("released_tokens") ?? 0)}`,
    },
    {
      name: "Admission limited",
      value: share(limited.reduce((sum, [, n]) => sum + n, 0), num("steps")),
      more: worst
        ? `${NAMES[worst][0]} ${Math.round(100 * most / (num("steps") || 1))}%`
        : "of all steps",
      meaning: "share of steps after which the head of the waiting queue had to wait, and the most frequent reason",
    },
  ];
}

// `long`: every category that took its share.
function gpuTotals({ total, busy_ns, active_ns, gpus, measured_ns }: KernelContents, long: boolean): Total[] {
  const busy = Object.entries(busy_ns).sort((a, b) => b[1] - a[1]), all = busy.reduce((sum, [, ns]) => sum + ns, 0);
  const meaning = `kernels, copies or fills ran in ${duration(active_ns)} of the profile's ${duration(measured_ns)}`
    + `${long ? "" : " while the engine worked"}${gpus > 1 ? ` on ${count(gpus)} GPUs` : ""}; they took `
    + `${duration(all)}, which overlap on several streams`;
  const [top, most] = busy[0] ?? ["", 0];
  const whole: Total = {
    name: "GPU active",
    value: share(active_ns, gpus * measured_ns),
    more: `${words(top)} ${share(most, all)} of it`,
    meaning,
  };
  if (!long) return [whole];
  return [
    { name: "GPU activities", value: count(total), more: `in ${duration(measured_ns)}` },
    whole,
    ...busy.slice(0, 6).map(([category, ns]): Total => ({
      name: words(category),
      value: share(ns, all),
      more: duration(ns),
      meaning: "of the time that kernels, copies and fills took",
    })),
  ];
}

const MOST_COLUMNS = 4;

// Of the stretch of time that the cards are about; null while its rows are being loaded.
function totalsInScope(engine: Engine): { totals: Total[]; tooMuch: boolean } | null {
  const stretch = stretchOf(engine), { contents } = engine;
  const recorded = contents.steps.total > 0 || contents.requests.total > 0;
  if (!stretch || !recorded) return { totals: totalsOf(contents), tooMuch: false };
  const totals = statisticsOf(engine, ...stretch);
  if (totals === null) return null;
  if (!totals) return { totals: totalsOf(contents), tooMuch: true };
  return { totals: engineTotals({ ...contents, totals }), tooMuch: false };
}

const QUIET_MS = 80;

let waiting = 0;

// Counts again a moment after the last change: while the view moves, frames come first.
export function keepCards(): void {
  clearTimeout(waiting);
  waiting = window.setTimeout(showCards, QUIET_MS);
}

let told = "";

export function showCards(): void {
  const found = view.engines.slice(0, MOST_COLUMNS).map(totalsInScope), several = view.engines.length > 1;
  if (found.some((each) => each === null)) return;
  const shown = found.map((each) => each!.totals), box = byId("cards");
  tellScope(found.some((each) => each!.tooMuch));
  const key = JSON.stringify([shown, several, view.engines.length]);
  if (key === told) return;
  told = key;
  const names = [...new Set(shown.flatMap((totals) => totals.map(({ name }) => name)))];
  box.classList.toggle("several", several);
  box.replaceChildren(...names.map((name) => {
    const all = shown.map((totals) => totals.find((each) => each.name === name)),
      card = el("div", "card", el("span", "", name));
    for (const total of all)
      card.append(el("b", "", total?.value ?? "–"), ...(several || !total ? [] : [el("span", "", total.more)]));
    if (view.engines.length > MOST_COLUMNS)
      card.append(el("span", "", `${count(view.engines.length - MOST_COLUMNS)} more: Table`));
    card.title = [
      `${name}: ${all.map((total) => [total?.value ?? "–", total?.more].filter(Boolean).join(" ")).join("; ")}`,
      all.find(Boolean)?.meaning,
    ].filter(Boolean).join("\n");
    return card;
  }));
}

// A row an engine of every run, so that many can be read below each other.
export function showTable(): void {
  const dialog = byId<HTMLDialogElement>("table"), runs = view.contents!.runs;
  const all = runs.flatMap((run) =>
    run.engines.map((contents) => ({ title: engineTitle(run, contents) || run.name, totals: totalsOf(contents) }))
  );
  const names = [...new Set(all.flatMap(({ totals }) => totals.map(({ name }) => name)))];
  const cell = (tag: "td" | "th", scope: string, ...children: (Node | string)[]) => {
    const made = el(tag, "", ...children);
    if (scope) made.setAttribute("scope", scope);
    return made;
  };
  const head = el("tr", "", cell("th", "col", "Run"), ...names.map((name) => cell("th", "col", name)));
  const rows = all.map(({ title, totals }) =>
    el(
      "tr",
      "",
      cell("th", "row", outside(shorten(title, 60))),
      ...names.map((name) => {
        const total = totals.find((each) => each.name === name);
        return cell("td", "", el("b", "", total?.value ?? "–"), el("span", "", total?.more ?? ""));
      }),
    )
  );
  const area = el("div", "wide", el("table", "", el("thead", "", head), el("tbody", "", ...rows)));
  area.tabIndex = 0;
  area.setAttribute("role", "region");
  area.setAttribute("aria-label", "Totals by run");
  dialog.replaceChildren(el("h2", "", "Totals"), area, button("Close", () => dialog.close(), "Esc"));
  dialog.showModal();
}
