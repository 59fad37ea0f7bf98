// Mouse and keys.

import { showCloseUp } from "./closeup";
import { lastAtMost } from "./data/columns";
import { byId, el, outside } from "./dom";
import { selectRequest, selectStep } from "./inspect/select";
import { MapLane } from "./lanes/kvmap";
import type { Lane } from "./lanes/lane";
import { RequestsLane } from "./lanes/requests";
import { showHelp } from "./help";
import { showTable } from "./summary";
import { LEFT, RIGHT, back, changed, pan, plotWidth, reveal, select, show, showAll, toTime, view, zoom } from "./view";

const DRAG_PIXELS = 4;

interface Place { x: number; y: number; lane: Lane | null; axis: boolean; gutter: boolean }
interface Drag { x: number; from: number; to: number; pan: boolean; moved: boolean; start: Place }

let lanesOf: () => Lane[] = () => [];

export function watchLanes(lanes: () => Lane[]): void {
  lanesOf = lanes;
}

export function listen(): void {
  const area = byId("lanes");
  let drag: Drag | null = null;
  area.addEventListener("wheel", (event) => { onWheel(event, place(event)); }, { passive: false });
  area.addEventListener("pointerdown", (event) => {
    const at = place(event);
    if (event.button || (!at.lane && !at.axis) || at.x > view.width || (event.target as Element).closest("select, label, button")) return;
    drag = { x: at.x, from: view.from, to: view.to, pan: event.shiftKey || at.axis, moved: false, start: at };
    area.setPointerCapture(event.pointerId);
  });
  area.addEventListener("pointermove", (event) => { if (drag) onDrag(drag, place(event)); else hover(event); });
  area.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    if (done) onDrop(done, place(event));
  });
  area.addEventListener("pointercancel", () => { drag = null; byId("selection").hidden = true; });
  area.addEventListener("pointerleave", hideHover);
  area.addEventListener("dblclick", (event) => { if (place(event).x >= LEFT) showAll(); });
  area.addEventListener("scroll", changed);
  document.addEventListener("keydown", onKey);
  byId("zoom-in").addEventListener("click", () => { zoom(0.5); });
  byId("zoom-out").addEventListener("click", () => { zoom(2); });
  byId("reset").addEventListener("click", showAll);
  byId("back").addEventListener("click", back);
  byId("show-table").addEventListener("click", showTable);
  byId("show-help").addEventListener("click", showHelp);
}

// Where an event happened: x in the lanes, the lane, y in that lane.
function place(event: MouseEvent): Place {
  const box = byId("lanes").getBoundingClientRect(), x = event.clientX - box.left - 1;
  const under = document.elementFromPoint(event.clientX, event.clientY)?.closest<HTMLElement>(".lane, .axis");
  const lane = lanesOf().find((each) => each.element === under) ?? null;
  const y = under ? event.clientY - under.getBoundingClientRect().top : 0;
  return { x, y, lane, axis: Boolean(under?.classList.contains("axis")), gutter: x < LEFT };
}

function onWheel(event: WheelEvent, at: Place): void {
  const listScrolls = at.lane instanceof RequestsLane && at.lane.scrolls && !event.ctrlKey && !event.shiftKey;
  if (listScrolls || (at.gutter && !event.altKey) || (!at.lane && !at.axis)) return;
  event.preventDefault();
  const amount = event.deltaY || event.deltaX, factor = Math.exp(Math.max(-1, Math.min(1, amount * 0.002)));
  if (event.altKey && at.lane instanceof MapLane) at.lane.zoomBlocks(factor, at.y);
  else if (event.shiftKey) pan(Math.sign(amount) * 0.1);
  else zoom(factor, toTime(Math.max(LEFT, at.x)));
}

function onDrag(drag: Drag, { x }: Place): void {
  drag.moved ||= Math.abs(x - drag.x) > DRAG_PIXELS;
  if (!drag.moved) return;
  hideHover();
  if (drag.pan) {
    const by = Math.max(view.first - drag.from, Math.min(view.last - drag.to, (drag.x - x) / plotWidth() * (drag.to - drag.from)));
    show(drag.from + by, drag.to + by, false);
    return;
  }
  const box = byId("selection"), [from, to] = dragged(drag, x);
  box.hidden = false;
  box.style.left = `${from}px`;
  box.style.width = `${to - from}px`;
  box.style.height = `${byId("lanes").scrollHeight}px`;
}

function dragged(drag: Drag, x: number): [number, number] {
  const ends = [drag.x, x].map((at) => Math.max(LEFT, Math.min(view.width - RIGHT, at))).sort((a, b) => a - b);
  return [ends[0]!, ends[1]!];
}

function onDrop(drag: Drag, at: Place): void {
  byId("selection").hidden = true;
  if (!drag.moved) {
    const hit = at.x >= LEFT || at.lane instanceof RequestsLane ? at.lane?.hit(at.x, at.y) : null;
    if (hit?.selection) select(hit.selection);
  } else if (!drag.pan) {
    const [from, to] = dragged(drag, at.x);
    show(toTime(from), toTime(to));
  }
}

function hover(event: PointerEvent): void {
  const at = place(event), cursor = byId("cursor"), tip = byId("tooltip");
  cursor.hidden = at.x < LEFT || at.x > view.width - RIGHT;
  cursor.style.left = `${at.x}px`;
  cursor.style.height = `${byId("lanes").scrollHeight}px`;
  const control = (event.target as Element).closest("select, label, button, .gutter");
  const hit = control || (at.x < LEFT && !(at.lane instanceof RequestsLane)) || at.x > view.width ? null : at.lane?.hit(at.x, at.y) ?? null;
  tip.hidden = !hit;
  if (!hit) return;
  tip.replaceChildren(...hit.lines.map((line, index) => el(index ? "span" : "b", "", typeof line === "string" ? outside(line) : line)));
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 12 - tip.offsetWidth : event.clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6)}px`;
}

function hideHover(): void {
  byId("cursor").hidden = true;
  byId("tooltip").hidden = true;
}

function requestLane(): RequestsLane | undefined {
  return lanesOf().find((lane): lane is RequestsLane => lane instanceof RequestsLane);
}

function mapLane(): MapLane | undefined {
  return lanesOf().find((lane): lane is MapLane => lane instanceof MapLane);
}

function onKey(event: KeyboardEvent): void {
  if ((event.target as Element).closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const now = view.selection;
  const keys: Record<string, () => void> = {
    "+": () => { zoom(0.5); }, "=": () => { zoom(0.5); }, "-": () => { zoom(2); }, "0": showAll, Backspace: back,
    ArrowLeft: () => { pan(-0.15); }, ArrowRight: () => { pan(0.15); },
    ArrowUp: () => { requestLane()?.scroll(-3); }, ArrowDown: () => { requestLane()?.scroll(3); },
    ",": () => { neighbour(-1); }, ".": () => { neighbour(1); }, Escape: () => { select(null); },
    "[": () => { mapLane()?.zoomBlocks(2, 0); }, "]": () => { mapLane()?.zoomBlocks(0.5, 0); },
    z: () => { if (now?.span) { const room = Math.max(1e3, now.span[1] - now.span[0]) / 2; show(now.span[0] - now.engine.shift - room, now.span[1] - now.engine.shift + room); } },
    c: () => { if (now?.kind === "step") void showCloseUp(now.engine, now.id); },
    p: () => void nextPreemption(),
    m: () => { view.mapColour = ({ state: "owner", owner: "age", age: "state" } as const)[view.mapColour]; changed(); },
    t: showTable, "/": () => { byId("search").focus(); }, "?": showHelp,
  };
  const run = keys[event.key];
  if (!run) return;
  event.preventDefault();
  run();
}

// The previous or next request of the list, or step; without a selection the first step in sight.
function neighbour(by: number): void {
  const now = view.selection, engine = now?.engine ?? view.engines[0];
  if (!engine) return;
  if (now?.kind === "request") {
    const listed = requestLane()?.requests ?? [], next = listed[listed.indexOf(now.id) + by];
    if (next !== undefined) void selectRequest(engine, next);
    return;
  }
  if (now?.kind === "block") {
    const next = Math.max(0, Math.min(engine.contents.blocks.blocks - 1, now.id + by));
    select({ ...now, id: next });
    return;
  }
  if (now?.kind === "step") {
    const width = by > 0 ? now.row?.columns.at("steps", now.row.row) ?? 1 : 1;
    void selectStep(engine, now.id + by * width);
    return;
  }
  const reference = engine.steps.find(view.from + engine.shift, view.to + engine.shift).parts[0];
  if (!reference) return;
  const row = Math.max(0, lastAtMost(reference.columns.num("start_ns"), view.from + engine.shift));
  void selectStep(engine, reference.columns.num("step")[row]!);
}

// The next preempted request after the one selected, or the first in sight.
async function nextPreemption(): Promise<void> {
  const engine = view.selection?.engine ?? view.engines[0], columns = await engine?.preemptions();
  if (!engine || !columns) return;
  const now = view.selection, starts = columns.num("start_ns"), requests = columns.num("request");
  let row = now?.kind === "request" ? requests.indexOf(now.id) + 1 : lastAtMost(starts, view.from + engine.shift) + 1;
  if (row >= columns.rows) row = 0;
  const request = requests[row]!;
  reveal(engine, starts[row]!, columns.at("resume_ns", row) ?? starts[row]!);
  await selectRequest(engine, request);
}

export function scrollToRequest(request: number): void {
  for (const lane of lanesOf()) if (lane instanceof RequestsLane && lane.engine === view.selection?.engine) lane.scrollTo(request);
}

