// The keys: everything that the mouse does can be done with them.

import { showCloseUp } from "./closeup/dialog";
import { lastAtMost } from "./data/columns";
import type { Engine } from "./data/engine";
import { byId } from "./dom";
import { showHelp } from "./help";
import { selectBlock, selectMove, selectNextMove, selectRequest, selectStep } from "./inspect/select";
import { MapLane } from "./lanes/kvmap";
import type { Lane } from "./lanes/lane";
import { idOf } from "./lanes/moves";
import { RequestsLane } from "./lanes/requests";
import { showTable } from "./summary";
import { back, changed, type Kind, pan, reveal, select, show, showAll, view, zoom } from "./view";

const KINDS: Kind[] = ["step", "request", "block", "transfer", "pin", "kernel"];
const BLOCKS_FACTOR = 2;

let lanesOf: () => Lane[] = () => [];
// The engine that keys act on while nothing is selected.
let turn = 0;

export function listenToKeys(lanes: () => Lane[]): void {
  lanesOf = lanes;
  document.addEventListener("keydown", onKey);
}

const engineNow = (): Engine | undefined =>
  view.selection?.engine ?? view.engines[turn % Math.max(1, view.engines.length)];

function laneOf<T extends Lane>(kind: abstract new(engine: Engine) => T): T | undefined {
  return lanesOf().find((lane): lane is T => lane instanceof kind && lane.engine === engineNow());
}

const requestLane = (): RequestsLane | undefined => laneOf(RequestsLane);

function onKey(event: KeyboardEvent): void {
  if (
    (event.target as Element).closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey
    || event.altKey
  ) return;
  const now = view.selection, area = byId("lanes"), panel = byId("inspector");
  const scrolls = event.target === panel;
  const keys: Record<string, () => void> = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    "0": showAll,
    Backspace: back,
    ArrowLeft: () => pan(-0.15),
    ArrowRight: () => pan(0.15),
    ...(scrolls ? {} : { ArrowUp: () => requestLane()?.scroll(-3), ArrowDown: () => requestLane()?.scroll(3) }),
    ",": () => void neighbour(-1),
    ".": () => void neighbour(1),
    s: () => void nextKind(),
    e: nextEngine,
    Escape: () => {
      if (panel.contains(document.activeElement)) area.focus();
      else select(null);
    },
    "[": () => zoomBlocks(BLOCKS_FACTOR),
    "]": () => zoomBlocks(1 / BLOCKS_FACTOR),
    z: () => {
      if (now?.span) {
        const room = Math.max(1e3, now.span[1] - now.span[0]) / 2;
        show(now.span[0] - now.engine.shift - room, now.span[1] - now.engine.shift + room);
      }
    },
    c: () => {
      if (now?.kind === "step") void showCloseUp(now.engine, now.id);
    },
    p: () => void nextPreemption(),
    m: () => {
      view.mapColour = ({ state: "owner", owner: "age", age: "state" } as const)[view.mapColour];
      changed();
    },
    t: showTable,
    "/": () => byId("search").focus(),
    "?": showHelp,
    ...(document.activeElement === area ? { Enter: () => panel.focus() } : {}),
  };
  const run = keys[event.key];
  if (!run) return;
  event.preventDefault();
  run();
}

// Around the selected block, else from the top.
function zoomBlocks(factor: number): void {
  const lane = laneOf(MapLane), now = view.selection;
  lane?.zoomBlocks(factor, now?.kind === "block" ? lane.placeOf(now.id) : 0);
}

// The one before or after what is selected; without a selection the first step in sight.
async function neighbour(by: 1 | -1): Promise<void> {
  const now = view.selection, engine = engineNow();
  if (!engine) return;
  switch (now?.kind) {
    case "request": {
      const listed = requestLane()?.requests ?? [], next = listed[listed.indexOf(now.id) + by];
      if (next !== undefined) await selectRequest(engine, next);
      return;
    }
    case "block":
      select({ ...now, id: Math.max(0, Math.min(engine.contents.blocks.blocks - 1, now.id + by)) });
      return;
    case "step":
      await selectStep(engine, now.id + by * (by > 0 ? now.row?.columns.at("steps", now.row.row) ?? 1 : 1));
      return;
    case "transfer":
    case "pin":
    case "kernel":
      await selectNextMove(engine, now.kind, now.id, by);
      return;
    default:
      await first(engine, "step");
  }
}

// The first step in sight, then the first request, block, transfer, pin and kernel: as far as there are any.
async function nextKind(): Promise<void> {
  const engine = engineNow(), from = view.selection ? KINDS.indexOf(view.selection.kind) + 1 : 0;
  for (let i = 0; engine && i < KINDS.length; i++) if (await first(engine, KINDS[(from + i) % KINDS.length]!)) return;
}

function nextEngine(): void {
  turn = (engineNow() ? view.engines.indexOf(engineNow()!) : 0) + 1;
  const engine = view.engines[turn % view.engines.length], kind = view.selection?.kind ?? "step";
  if (engine) void first(engine, kind);
}

async function first(engine: Engine, kind: Kind): Promise<boolean> {
  const from = view.from + engine.shift, to = view.to + engine.shift;
  if (kind === "request") {
    const [request] = lanesOf().find((lane): lane is RequestsLane =>
      lane instanceof RequestsLane && lane.engine === engine
    )?.requests ?? [];
    if (request !== undefined) await selectRequest(engine, request);
    return request !== undefined;
  }
  if (kind === "block") {
    if (engine.blocks.empty) return false;
    selectBlock(engine, Math.floor(view.mapRange[0] * engine.contents.blocks.blocks), (from + to) / 2);
    return true;
  }
  const levels = kind === "step"
    ? engine.steps
    : kind === "transfer"
    ? engine.transfers
    : kind === "pin"
    ? engine.pins
    : engine.kernels;
  const found = levels?.find(from, to);
  for (const { columns } of found && (kind === "step" || found.exact) ? found.parts : []) {
    const starts = columns.num("start_ns"), before = lastAtMost(starts, from),
      row = kind === "step" ? Math.max(0, before) : before + 1;
    if (row >= columns.rows || starts[row]! > to) continue;
    if (kind === "step") await selectStep(engine, columns.num("step")[row]!);
    else await selectMove(engine, kind, idOf(columns, row));
    return true;
  }
  return false;
}

// The next preempted request after the one selected, or the first in sight.
async function nextPreemption(): Promise<void> {
  const engine = engineNow(), columns = await engine?.preemptions();
  if (!engine || !columns) return;
  const now = view.selection, starts = columns.num("start_ns"), requests = columns.num("request");
  let row = now?.kind === "request" ? requests.indexOf(now.id) + 1 : lastAtMost(starts, view.from + engine.shift) + 1;
  if (row >= columns.rows) row = 0;
  const request = requests[row]!;
  reveal(engine, starts[row]!, columns.at("resume_ns", row) ?? starts[row]!);
  await selectRequest(engine, request);
}
