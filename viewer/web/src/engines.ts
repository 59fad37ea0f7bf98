// Which engines of which runs are shown: all of a run's, or one of them.

import type { EngineContents, RunContents } from "./data/contents";
import { Engine } from "./data/engine";
import { byId, el, outside } from "./dom";
import { count, shorten } from "./format";
import { view } from "./view";

const ALL = "all", MOST_AT_FIRST = 4;

// Of each run the number of an engine in it, or all of them.
let chosen: string[] = [];

const runsOf = (): RunContents[] => view.contents!.runs;

// Runs to compare begin with all their engines, unless those are many; one run begins with its first engine. Of another
// tool's files, with the first that has times.
function usual(): string[] {
  const runs = runsOf(), all = runs.reduce((sum, run) => sum + run.engines.length, 0);
  return runs.map(({ engines }) =>
    runs.length > 1 && all <= MOST_AT_FIRST ? ALL : String(Math.max(0, engines.findIndex((each) => each.span_ns)))
  );
}

// The choice as in the address: nothing if it is the usual one.
export const engineChoice = (): string => (chosen.join() === usual().join() ? "" : chosen.join());

// Takes a choice as in the address.
export function chooseEngines(wanted: string): void {
  const given = wanted.split(",");
  chosen = usual().map((first, run) => {
    const engine = given[run] ?? "";
    return engine === ALL || (/^\d+$/.test(engine) && Number(engine) < runsOf()[run]!.engines.length) ? engine : first;
  });
  const several = runsOf().length > 1;
  view.engines = runsOf().flatMap((run, number) =>
    run.engines.flatMap((contents, index) => {
      if (chosen[number] !== ALL && Number(chosen[number]) !== index) return [];
      const engine = new Engine(run, contents, index, engineTitle(run, contents));
      if (several) engine.shift = run.first_ns ?? 0;
      else if (chosen[number] !== ALL) engine.shift = contents.span_ns?.[0] ?? 0; // its clock may be no other engine's
      return [engine];
    })
  );
  for (const list of lists()) list.value = chosen[Number(list.dataset["run"])]!;
}

// The run's name where there are several, the engine's where the run has several.
export function engineTitle(run: RunContents, { facts }: EngineContents): string {
  const rank = facts["dp_rank"],
    engine = `engine ${String(facts["engine_id"])}${
      rank === null || rank === undefined ? "" : `, DP rank ${String(rank)}`
    }`;
  const parts = [runsOf().length > 1 ? run.name : "", run.engines.length > 1 ? engine : ""];
  return parts.filter(Boolean).join(" · ");
}

const lists = (): HTMLSelectElement[] => [...byId("engine-choice").querySelectorAll("select")];

// A list for each run that has several engines.
export function offerEngines(changed: (choice: string) => void): void {
  const box = byId("engine-choice"), runs = runsOf();
  box.replaceChildren(...runs.flatMap((run, number) => {
    if (run.engines.length < 2) return [];
    const list = el("select");
    list.dataset["run"] = String(number);
    list.id = number ? `engine-${number}` : "engine";
    list.append(
      ...[...run.engines.entries()].map(([index, { facts, totals }]) => {
        const rank = facts["dp_rank"] === null || facts["dp_rank"] === undefined
          ? ""
          : `, DP rank ${String(facts["dp_rank"])}`;
        return option(
          String(index),
          `${String(facts["engine_id"])}${rank}: ${count(totals["requests"])} requests, ${
            count(totals["steps"])
          } steps`,
        );
      }),
      option(ALL, `all ${count(run.engines.length)}, below each other`),
    );
    list.addEventListener("change", () => {
      chosen[number] = list.value;
      changed(chosen.join());
    });
    return [el("label", "", runs.length > 1 ? outside(`${shorten(run.name, 16)}: `) : "Engine ", list)];
  }));
  box.hidden = !box.children.length;
}

function option(value: string, text: string): HTMLOptionElement {
  const made = el("option", "", text);
  made.value = value;
  return made;
}
