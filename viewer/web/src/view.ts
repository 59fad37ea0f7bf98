// What is shown: the runs, the time window, what is selected, which lanes. Every change asks for one redraw.

import type { Any, Row } from "./data/columns";
import type { Contents } from "./data/contents";
import type { TableName } from "./data/contract";
import type { Engine } from "./data/engine";

export const LEFT = 168, RIGHT = 12;
const MARGIN = 0.01, NARROWEST = 1e3, REMEMBERED = 50;

export interface Selection<T extends TableName = Any> {
  // A `Selectable.kind`.
  kind: string;
  engine: Engine;
  // A step, a request's key, a block; of the others their row in a chunk.
  id: number;
  // Where a block was pointed at, in the engine's time.
  time?: number;
  row?: Row<T>;
  // From when to when it lasts, in the engine's time.
  span?: [number, number];
}

export const view = {
  contents: null as Contents | null,
  engines: [] as Engine[],
  from: 0,
  to: 1,
  first: 0,
  last: 1,
  width: 800,
  selection: null as Selection | null,
  // Requests that what is selected belongs to: they are marked in the list.
  related: new Set<number>(),
  // The step that what is selected belongs to, from and to in the engine's time.
  relatedStep: null as [number, number] | null,
  hidden: new Set<string>(),
};

const windows: [number, number][] = [];
const watchers = new Set<() => void>();
const draws: (() => void)[] = [];
let drawing = false;

// Calls `run` in each frame in which something changed.
export function onDraw(run: () => void): void {
  draws.push(run);
}

// Calls `run` when the selection changes.
export function onSelect(run: () => void): void {
  watchers.add(run);
}

export function changed(): void {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    for (const run of draws) run();
  });
}

export const plotWidth = (): number => Math.max(10, view.width - LEFT - RIGHT);
export const toX = (time: number): number => LEFT + (time - view.from) / (view.to - view.from) * plotWidth();
export const toTime = (x: number): number => view.from + (x - LEFT) / plotWidth() * (view.to - view.from);

export function setSpan(first: number, last: number): void {
  const margin = Math.max(1e3, (last - first) * MARGIN);
  view.first = first - margin;
  view.last = Math.max(last, first) + margin;
  [view.from, view.to] = [view.first, view.last];
  windows.length = 0;
  changed();
}

// The first window: that stretch, with as much room around it as the whole has.
export function open(from: number, to: number): void {
  const margin = Math.max(1e3, (to - from) * MARGIN);
  show(from - margin, to + margin, false);
}

export const showAll = (): void => show(view.first, view.last);

// Keeps the window inside the recording and at least a microsecond wide.
export function show(from: number, to: number, remember = true): void {
  if (remember) {
    const last = windows[windows.length - 1];
    if (!last || last[0] !== view.from || last[1] !== view.to) windows.push([view.from, view.to]);
    if (windows.length > REMEMBERED) windows.shift();
  }
  const whole = view.last - view.first;
  const width = Math.min(whole, Math.max(NARROWEST, to - from));
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - width / 2, view.first), view.last - width);
  view.to = view.from + width;
  changed();
}

export function back(): void {
  const last = windows.pop();
  if (last) show(last[0], last[1], false);
}

export function zoom(factor: number, around = (view.from + view.to) / 2): void {
  show(around - (around - view.from) * factor, around + (view.to - around) * factor, false);
}

export function pan(fraction: number): void {
  const by = Math.max(view.first - view.from, Math.min(view.last - view.to, fraction * (view.to - view.from)));
  show(view.from + by, view.to + by, false);
}

// Brings a stretch of an engine's time into sight, with room around it, if it is not.
export function reveal(engine: Engine, from: number, to: number): void {
  const [low, high] = [from - engine.shift, to - engine.shift];
  if (low >= view.from && high <= view.to && high - low > (view.to - view.from) / 400) return;
  const room = Math.max(high - low, Math.min((view.to - view.from) / 8, 40 * (high - low)));
  show(low - room, high + room);
}

export function select(selection: Selection | null): void {
  view.selection = selection;
  view.related = new Set();
  view.relatedStep = null;
  for (const run of watchers) run();
  changed();
}

export function relate(requests: number[], step: [number, number] | null = null): void {
  for (const request of requests) view.related.add(request);
  view.relatedStep = step ?? view.relatedStep;
  changed();
}

export function isSelected(kind: string, engine: Engine, id: number): boolean {
  const now = view.selection;
  return now !== null && now.kind === kind && now.engine === engine && now.id === id;
}
