// Which stretch of time the cards are about: what is in view, what is selected, or the whole recording.

import type { Engine } from "./data/engine";
import { byId } from "./dom";
import { clock } from "./format";
import { view } from "./view";

type Scope = "view" | "selection" | "trace";

let scope: Scope = "view";

// The stretch in the engine's time; null: the whole recording.
export function stretchOf(engine: Engine): [number, number] | null {
  const selected = view.selection, span = selected?.span;
  if (scope === "trace" || (scope === "selection" && !span)) return null;
  if (scope === "selection") {
    const by = engine.shift - selected!.engine.shift;
    return [span![0] + by, Math.max(span![1], span![0] + 1) + by];
  }
  const [from, to] = [view.from + engine.shift, view.to + engine.shift], { run } = engine;
  const [first, last] = run.work_ns ?? [run.first_ns ?? -Infinity, run.last_ns ?? Infinity];
  return from <= first && to >= last ? null : [from, to];
}

export function listenToScope(changed: () => void): void {
  const list = byId<HTMLSelectElement>("numbers");
  list.addEventListener("change", () => {
    scope = list.value as Scope;
    changed();
  });
}

// What the cards are about now. `tooMuch`: there were too many rows in that stretch, and they are about the whole.
export function tellScope(tooMuch: boolean): void {
  const list = byId<HTMLSelectElement>("numbers"), engine = view.engines[0], told = byId("numbers-of");
  const stretch = engine ? stretchOf(engine) : null;
  list.value = scope;
  list.parentElement!.hidden = view.engines.every(({ steps, requests }) => steps.empty && requests.empty);
  if (tooMuch) told.textContent = "too much to count: whole trace";
  else if (!stretch || scope === "view") told.textContent = stretch || scope === "trace" ? "" : "whole trace";
  else {
    const [from, to] = stretch.map((time) => time - engine!.shift) as [number, number], fine = (to - from) / 100;
    told.textContent = `${clock(from, fine).replace(" s", "")}–${clock(to, fine)}`;
  }
}

// In the page's address; nothing if it is the usual one.
export const scopeChoice = (): string => (scope === "view" ? "" : scope);

export function chooseScope(wanted: string): void {
  scope = wanted === "selection" || wanted === "trace" ? wanted : "view";
}
