// The keys: everything that the mouse does can be done with them.

import type { Engine } from "./data/engine";
import { byId } from "./dom";
import { toggleFindings } from "./findings";
import { showHelp } from "./help";
import type { Lane } from "./lanes/lane";
import { LANES, selectableOf, SELECTABLES } from "./lanes/list";
import { showTable } from "./summary";
import { back, pan, select, show, showAll, view, zoom } from "./view";

let lanesOf: () => Lane[] = () => [];
// The engine that keys act on while nothing is selected.
let turn = 0;

export function listenToKeys(lanes: () => Lane[]): void {
  lanesOf = lanes;
  document.addEventListener("keydown", onKey);
}

const engineNow = (): Engine | undefined =>
  view.selection?.engine ?? view.engines[turn % Math.max(1, view.engines.length)];

const laneOf = (engine: Engine, name: string): Lane | undefined =>
  lanesOf().find((lane) => lane.name === name && lane.engine === engine);

// The engine's lane whose own a kind of thing is.
const laneOfKind = (engine: Engine, kind: string): Lane | undefined => {
  const name = LANES.find(({ selects }) => selects?.kind === kind)?.name;
  return name === undefined ? undefined : laneOf(engine, name);
};

function onKey(event: KeyboardEvent): void {
  const inside = (event.target as Element).closest("input, select, textarea, dialog");
  if (inside || event.ctrlKey || event.metaKey || event.altKey) return;
  const now = view.selection, area = byId("lanes"), panel = byId("inspector");
  // The panel scrolls.
  if (event.target === panel && ["ArrowUp", "ArrowDown"].includes(event.key)) return;
  const keys: Record<string, () => void> = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    "0": showAll,
    Backspace: back,
    ArrowLeft: () => pan(-0.15),
    ArrowRight: () => pan(0.15),
    ",": () => void neighbour(-1),
    ".": () => void neighbour(1),
    s: () => void nextKind(),
    e: nextEngine,
    Escape: () => panel.contains(document.activeElement) ? area.focus() : select(null),
    z: () => {
      if (!now?.span) return;
      const [from, to] = now.span, room = Math.max(1e3, to - from) / 2;
      show(from - now.engine.shift - room, to - now.engine.shift + room);
    },
    t: showTable,
    f: toggleFindings,
    "/": () => byId("search").focus(),
    "?": showHelp,
    ...(document.activeElement === area ? { Enter: () => panel.focus() } : {}),
  };
  const run = keys[event.key] ?? laneKey(event.key);
  if (!run) return;
  event.preventDefault();
  run();
}

function laneKey(key: string): (() => void) | undefined {
  const engine = engineNow();
  for (const { name, keys } of engine ? LANES : []) {
    const found = keys?.find((each) => each.keys.includes(key)), lane = laneOf(engine!, name);
    if (found && lane) return () => found.run(lane, key, engine!);
  }
  return undefined;
}

// The one before or after what is selected; without a selection the first step in sight.
async function neighbour(by: 1 | -1): Promise<void> {
  const now = view.selection, engine = engineNow();
  if (now) await selectableOf(now.kind)?.next(now, by, laneOfKind(now.engine, now.kind));
  else if (engine) await first(engine, SELECTABLES[0]!.kind);
}

// The first of the next kind of which there is any in sight.
async function nextKind(): Promise<void> {
  const engine = engineNow(), kinds = SELECTABLES.map(({ kind }) => kind);
  const from = view.selection ? kinds.indexOf(view.selection.kind) + 1 : 0;
  for (let i = 0; engine && i < kinds.length; i++) if (await first(engine, kinds[(from + i) % kinds.length]!)) return;
}

function nextEngine(): void {
  turn = (engineNow() ? view.engines.indexOf(engineNow()!) : 0) + 1;
  const engine = view.engines[turn % view.engines.length], kind = view.selection?.kind ?? SELECTABLES[0]!.kind;
  if (engine) void first(engine, kind);
}

async function first(engine: Engine, kind: string): Promise<boolean> {
  const lane = laneOfKind(engine, kind);
  return await selectableOf(kind)?.first(engine, view.from + engine.shift, view.to + engine.shift, lane) ?? false;
}
