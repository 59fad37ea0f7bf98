// The panel beside the lanes: everything known about what is selected, or about the run.

import { button, byId, el } from "../dom";
import { selectableOf } from "../lanes/list";
import { select, type Selection, show, view } from "../view";
import { describeRun } from "./run";

let turn = 0;

export async function inspect(): Promise<void> {
  const panel = byId("inspector"), mine = ++turn, now = view.selection;
  const shown = now
    ? await selectableOf(now.kind)!.describe(now)
    : view.engines.flatMap((engine) => describeRun(engine));
  if (mine !== turn) return;
  // A link that was followed is gone; who came by keyboard goes on in what it led to.
  const inside = panel !== document.activeElement && panel.contains(document.activeElement);
  panel.replaceChildren(...(now ? [actions(now), ...shown] : shown));
  panel.dataset["shows"] = now?.kind ?? "run";
  panel.scrollTop = 0;
  if (inside) panel.focus({ preventScroll: true });
  byId("said").textContent = now ? panel.querySelector("h2")?.textContent ?? "" : "";
}

function actions(now: Selection): HTMLElement {
  const row = el("div", "actions");
  if (view.engines.length > 1) row.append(el("span", "tag", el("bdi", "", now.engine.title)));
  const span = now.span;
  if (span) {
    row.append(button("Zoom to it", () => {
      const width = Math.max(1e3, span[1] - span[0]);
      show(span[0] - now.engine.shift - width / 2, span[1] - now.engine.shift + width / 2);
    }, "Show its time (z)"));
  }
  row.append(button("Close", () => select(null), "Esc"));
  return row;
}
