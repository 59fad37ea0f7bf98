// Finds what can be selected by what is typed.

import type { Engine } from "./data/engine";
import { byId, el, outside } from "./dom";
import { shorten } from "./format";
import type { Match } from "./lanes/descriptor";
import { SELECTABLES } from "./lanes/list";
import { view } from "./view";

const MOST = 12;

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

// Lists what an id in the address may mean, where it is none or several.
export function searchFor(typed: string): void {
  const text = typed.replace(/…+$/, "");
  byId<HTMLInputElement>("search").value = text;
  void search(text);
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
    for (const selectable of SELECTABLES) {
      found.push(...await selectable.search?.(engine, text) ?? []);
      if (mine !== turn) return;
    }
    found.push(...numbered(engine, text));
  }
  matches = found.slice(0, MOST);
  chosen = 0;
  paint();
}

// By their number, alone or after what they are.
function numbered(engine: Engine, text: string): Match[] {
  const [, kind, digits] = /^([a-z]+)?\s*(\d+)$/.exec(text) ?? [];
  if (digits === undefined) return [];
  return SELECTABLES.filter((each) => kind === undefined || kind === each.kind)
    .flatMap((each) => each.numbered?.(engine, Number(digits)) ?? []);
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
