// The page's address holds the view: #from=1.5&to=2.5&request=ID&lanes=steps,map&colour=owner (times in seconds).

import { engineChoice } from "./engines";
import { LANES, selectableOf, SELECTABLES } from "./lanes/list";
import { chooseScope, scopeChoice } from "./scope";
import { searchFor } from "./search";
import { select, show, view } from "./view";

const QUIET_MS = 250, MOST_ID = 300;

let waiting = 0;
let written = "";

export function watchAddress(openEngines: (choice: string) => void, showLanes: () => void): void {
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) !== written) void openAddress(openEngines, showLanes);
  });
}

// Writes the address a moment after the last change.
export function keepAddress(): void {
  clearTimeout(waiting);
  waiting = window.setTimeout(() => {
    written = addressOf().toString();
    if (location.hash.slice(1) !== written) history.replaceState(null, "", `#${written}`);
  }, QUIET_MS);
}

function addressOf(): URLSearchParams {
  const address = new URLSearchParams(), now = view.selection;
  if (engineChoice()) address.set("engine", engineChoice());
  if (view.from > view.first || view.to < view.last) {
    address.set("from", (view.from / 1e9).toFixed(6));
    address.set("to", (view.to / 1e9).toFixed(6));
  }
  if (now) {
    const name = selectableOf(now.kind)?.name?.(now) ?? String(now.id);
    address.set(now.kind, name.length > MOST_ID ? `#${now.id}` : name);
    if (now.time !== undefined) address.set("at", (now.time / 1e9).toFixed(6));
    if (view.engines.length > 1) address.set("run", String(view.engines.indexOf(now.engine)));
  }
  for (const lane of LANES) lane.address?.write(address);
  if (scopeChoice()) address.set("numbers", scopeChoice());
  if (view.hidden.size) address.set("hide", [...view.hidden].join(","));
  return address;
}

export async function openAddress(openEngines: (choice: string) => void, showLanes: () => void): Promise<void> {
  const wanted = new URLSearchParams(location.hash.slice(1)),
    number = (name: string) => Number(wanted.get(name) ?? NaN);
  openEngines(wanted.get("engine") ?? "");
  view.hidden = new Set((wanted.get("hide") ?? "").split(",").filter(Boolean));
  for (const lane of LANES) lane.address?.read(wanted);
  chooseScope(wanted.get("numbers") ?? "");
  showLanes();
  const [from, to] = [number("from") * 1e9, number("to") * 1e9];
  if (to > from) show(from, to, false);
  select(null);
  // Without `run` the first engine that has it is meant.
  const told = view.engines[number("run") || 0] ?? view.engines[0],
    time = (number("at") || (from + to) / 2e9 || 0) * 1e9;
  const engines = told && wanted.has("run") ? [told] : view.engines;
  for (const selectable of SELECTABLES) {
    const name = wanted.get(selectable.kind);
    if (name === null) continue;
    for (const engine of engines) {
      await selectable.open(engine, name, time);
      if (view.selection) break;
    }
    if (!view.selection && selectable.kind === "request") searchFor(name);
  }
  if (to > from) show(from, to, false);
}
