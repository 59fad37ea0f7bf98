// Finds requests, jobs, blocks and steps by what is typed.

import { load } from "./data/chunks";
import type { Engine } from "./data/engine";
import { nameOf } from "./data/engine";
import { byId, el, outside } from "./dom";
import { count, shorten } from "./format";
import { selectBlock, selectRequest, selectStep } from "./inspect/select";
import { show, view } from "./view";

const MOST = 12;

interface Match {
  label: string;
  more: string;
  run: () => void;
}

let matches: Match[] = [];
let chosen = 0;
let turn = 0;

export function listenToSearch(): void {
  const box = byId<HTMLInputElement>("search");
  box.addEventListener("input", () => void search(box.value));
  box.addEventListener("blur", () => {
    setTimeout(() => open(false), 150);
  });
  box.addEventListener("focus", () => open(matches.length > 0));
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : -1) + matches.length) % Math.max(1, matches.length);
      paint();
      event.preventDefault();
    }
    if (event.key === "Enter") take(chosen);
    if (event.key === "Escape") {
      box.blur();
      byId("lanes").focus({ preventScroll: true });
    }
  });
}

function take(index: number): void {
  matches[index]?.run();
  open(false);
  byId("search").blur();
  byId("lanes").focus({ preventScroll: true });
}

function open(now: boolean): void {
  byId("found").hidden = !now;
  byId("search").setAttribute("aria-expanded", String(now));
}

async function search(typed: string): Promise<void> {
  const mine = ++turn, text = typed.trim().toLowerCase();
  const found: Match[] = [];
  for (const engine of text ? view.engines : []) {
    const requests = await findRequests(engine, text);
    if (mine !== turn) return;
    found.push(...requests, ...numbers(engine, text));
  }
  matches = found.slice(0, MOST);
  chosen = 0;
  paint();
}

// Steps and blocks by their number, alone or after their name.
function numbers(engine: Engine, text: string): Match[] {
  const [, kind, digits] = /^(step|block)?\s*(\d+)$/.exec(text) ?? [];
  if (digits === undefined) return [];
  const number = Number(digits), found: Match[] = [], run = engine.title;
  if (kind !== "block" && engine.steps.finest.some((each) => each.first! <= number && number <= each.last!)) {
    found.push({ label: `Step ${count(number)}`, more: run, run: () => void selectStep(engine, number) });
  }
  if (kind !== "step" && number < engine.contents.blocks.blocks) {
    found.push({
      label: `KV block ${count(number)}`,
      more: run,
      run: () => selectBlock(engine, number, (view.from + view.to) / 2 + engine.shift),
    });
  }
  return found;
}

async function findRequests(engine: Engine, text: string): Promise<Match[]> {
  const found: Match[] = [], jobs = new Map<string, { requests: number; from: number; to: number }>();
  for (const reference of engine.requests.finest) {
    const columns = await load(reference.id);
    engine.learn(columns);
    for (let row = 0; row < columns.rows; row++) {
      const job = columns.text("session", row), name = nameOf({ columns, row }),
        inside = columns.text("internal_id", row) ?? "";
      if (job?.toLowerCase().includes(text)) {
        const entry = jobs.get(job) ?? { requests: 0, from: Infinity, to: -Infinity };
        entry.requests++;
        entry.from = Math.min(entry.from, columns.num("start_ns")[row]!);
        entry.to = Math.max(entry.to, columns.num("end_ns")[row]!);
        jobs.set(job, entry);
      }
      if (
        found.length < MOST
        && (name.toLowerCase().includes(text) || inside.toLowerCase().includes(text)
          || job?.toLowerCase().includes(text))
      ) {
        const request = columns.num("request")[row]!, turnOf = columns.at("turn", row);
        found.push({
          label: name,
          more: [job === null ? "" : `${job}${turnOf === null ? "" : ` turn ${turnOf}`}`, engine.title].filter(Boolean)
            .join(" · "),
          run: () => void selectRequest(engine, request),
        });
      }
    }
  }
  const exact = found.filter(({ label }) => label.toLowerCase() === text),
    rest = found.filter((match) => !exact.includes(match));
  const ofJobs = [...jobs].slice(0, 3).map(([job, { requests, from, to }]): Match => ({
    label: `Job ${job}`,
    more: `${count(requests)} requests`,
    run: () => {
      const room = (to - from) / 20;
      view.order = "job";
      show(from - engine.shift - room, to - engine.shift + room);
    },
  }));
  return [...exact, ...ofJobs, ...rest];
}

function nothing(): HTMLElement {
  const item = el("li", "unit", "No request, job, step or block has that.");
  item.setAttribute("role", "option");
  item.setAttribute("aria-disabled", "true");
  return item;
}

function paint(): void {
  const list = byId("found"), box = byId<HTMLInputElement>("search");
  const items = matches.map(({ label, more }, index) => {
    const item = el(
      "li",
      index === chosen ? "chosen" : "",
      outside(shorten(label, 60)),
      el("span", "unit", outside(shorten(more, 40))),
    );
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(index === chosen));
    item.addEventListener("mousedown", (event) => {
      event.preventDefault();
      take(index);
    });
    return item;
  });
  items.forEach((item, index) => {
    item.id = `found-${index}`;
  });
  list.replaceChildren(...(items.length || !box.value.trim() ? items : [nothing()]));
  open(list.children.length > 0);
  if (items.length) box.setAttribute("aria-activedescendant", `found-${chosen}`);
  else box.removeAttribute("aria-activedescendant");
}
