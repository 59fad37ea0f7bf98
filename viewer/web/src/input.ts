// The mouse.

import { byId, el, outside } from "./dom";
import { showHelp } from "./help";
import { listenToKeys } from "./keys";
import type { Lane } from "./lanes/lane";
import { showTable } from "./summary";
import { back, changed, LEFT, pan, plotWidth, RIGHT, select, show, showAll, toTime, view, zoom } from "./view";

const DRAG_PIXELS = 4;

interface Place {
  x: number;
  y: number;
  lane: Lane | null;
  axis: boolean;
  gutter: boolean;
}
interface Drag {
  x: number;
  from: number;
  to: number;
  pan: boolean;
  moved: boolean;
  start: Place;
}

let lanesOf: () => Lane[] = () => [];

export function listen(lanes: () => Lane[]): void {
  lanesOf = lanes;
  const area = byId("lanes");
  let drag: Drag | null = null;
  area.addEventListener("wheel", (event) => onWheel(event, place(event)), { passive: false });
  area.addEventListener("pointerdown", (event) => {
    const at = place(event);
    if (
      event.button || (!at.lane && !at.axis) || at.x > view.width
      || (event.target as Element).closest("select, label, button")
    ) return;
    drag = { x: at.x, from: view.from, to: view.to, pan: event.shiftKey || at.axis, moved: false, start: at };
    area.setPointerCapture(event.pointerId);
  });
  area.addEventListener("pointermove", (event) => {
    if (drag) onDrag(drag, place(event));
    else hover(event);
  });
  area.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    if (done) onDrop(done, place(event));
  });
  area.addEventListener("pointercancel", () => {
    drag = null;
    byId("selection").hidden = true;
  });
  area.addEventListener("pointerleave", hideHover);
  area.addEventListener("dblclick", (event) => {
    if (place(event).x >= LEFT) showAll();
  });
  area.addEventListener("scroll", changed);
  listenToKeys(lanesOf);
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
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
  const y = under ? event.clientY - under.getBoundingClientRect().top - under.clientTop : 0;
  return { x, y, lane, axis: Boolean(under?.classList.contains("axis")), gutter: x < LEFT };
}

function onWheel(event: WheelEvent, at: Place): void {
  const listScrolls = at.lane?.scrolls && !event.ctrlKey && !event.shiftKey;
  if (listScrolls || (at.gutter && !event.altKey) || (!at.lane && !at.axis)) return;
  event.preventDefault();
  const amount = event.deltaY || event.deltaX, factor = Math.exp(Math.max(-1, Math.min(1, amount * 0.002)));
  if (event.altKey && at.lane?.zoomRows(factor, at.y)) return;
  if (event.shiftKey) pan(Math.sign(amount) * 0.1);
  else zoom(factor, toTime(Math.max(LEFT, at.x)));
}

function onDrag(drag: Drag, { x }: Place): void {
  drag.moved ||= Math.abs(x - drag.x) > DRAG_PIXELS;
  if (!drag.moved) return;
  hideHover();
  if (drag.pan) {
    const by = Math.max(
      view.first - drag.from,
      Math.min(view.last - drag.to, (drag.x - x) / plotWidth() * (drag.to - drag.from)),
    );
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
    const hit = at.x >= LEFT || at.lane?.hitsGutter ? at.lane?.hit(at.x, at.y) : null;
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
  const hit = control || (at.x < LEFT && !at.lane?.hitsGutter) || at.x > view.width
    ? null
    : at.lane?.hit(at.x, at.y) ?? null;
  tip.hidden = !hit;
  if (!hit) return;
  tip.replaceChildren(
    ...hit.lines.map((line, index) => el(index ? "span" : "b", "", typeof line === "string" ? outside(line) : line)),
  );
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth
    ? event.clientX - 12 - tip.offsetWidth
    : event.clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6)}px`;
}

function hideHover(): void {
  byId("cursor").hidden = true;
  byId("tooltip").hidden = true;
}
