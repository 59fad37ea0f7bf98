// The close-up of one step's KV accesses: layer by time above, block by time below.

import { colour } from "./colours";
import { load } from "./data/chunks";
import type { Columns } from "./data/columns";
import type { Engine } from "./data/engine";
import { byId, button, el } from "./dom";
import { count, duration, shorten, words } from "./format";
import { FONT } from "./lanes/lane";

const EDGE = 62, LAYERS = 210, BLOCKS = 330, GAP = 26;

interface Mark { x: number; width: number; y: number; height: number; columns: Columns; row: number }

export async function showCloseUp(engine: Engine, step: number): Promise<void> {
  const dialog = byId<HTMLDialogElement>("close-up"), entry = engine.contents.close_ups.steps.find((each) => each.step === step);
  if (!entry?.accesses[0]) return;
  const accesses = await load(entry.accesses[0].id), windows = entry.windows[0] ? await load(entry.windows[0].id) : null;
  const all = engine.contents.close_ups.steps, index = all.indexOf(entry);
  const canvas = el("canvas"), about = el("p", "about"), observed = accesses.flag("observed", 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `KV accesses of step ${step}, by layer and by block over time`);
  const turn = (by: number) => { const next = all[index + by]; if (next) void showCloseUp(engine, next.step); };
  const key = el("ul", "legend inline", ...(["read", "write"] as const).map((kind) => {
    const swatch = el("span", "swatch");
    swatch.style.background = `var(--${kind})`;
    return el("li", "", swatch, kind === "read" ? "read by attention" : "written");
  }));
  dialog.replaceChildren(
    el("header", "", el("h2", "", `KV accesses of step ${count(step)}`), key,
      button("‹ Previous", () => { turn(-1); }), button("Next ›", () => { turn(1); }), button("Close", () => { dialog.close(); })),
    el("p", "unit", `${observed ? "Observed on the GPU, tile by tile." : "Derived: the layer's window (observed) over the blocks of its block tables."} ` +
      `${count(all.length)} of ${count(engine.contents.close_ups.total)} steps with accesses are in this page.`),
    canvas, about,
  );
  if (!dialog.open) dialog.showModal();
  const marks = paint(canvas, accesses, windows, Math.min(1500, innerWidth - 90));
  about.textContent = "Point at a mark.";
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const hit = marks.findLast((mark) => mark.x - 1 <= x && x <= mark.x + mark.width + 1 && mark.y <= y && y <= mark.y + mark.height);
    if (!hit) return;
    const { columns, row } = hit, request = columns.at("request", row), start = columns.num("start_ns")[row]!, end = columns.num("end_ns")[row]!;
    about.textContent = [
      `layer ${count(columns.at("layer", row))}, ${words(columns.text("kind", row) ?? "")}`, `${duration(end - start)}`,
      columns.has("block") ? `block ${count(columns.at("block", row))}` : null,
      request === null ? null : `for ${shorten(engine.name(request), 40)}`,
      columns.has("accesses") ? `${count(columns.at("accesses", row))} accesses` : null,
    ].filter(Boolean).join("  ·  ");
  });
}

function paint(canvas: HTMLCanvasElement, accesses: Columns, windows: Columns | null, width: number): Mark[] {
  const ratio = devicePixelRatio || 1, height = LAYERS + GAP + BLOCKS + 22, marks: Mark[] = [];
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  context.font = FONT;
  context.textBaseline = "middle";
  let from = Infinity, to = -Infinity;
  for (const columns of windows ? [accesses, windows] : [accesses]) {
    for (let row = 0; row < columns.rows; row++) {
      from = Math.min(from, columns.num("start_ns")[row]!);
      to = Math.max(to, columns.num("end_ns")[row]!);
    }
  }
  const x = (time: number) => EDGE + (time - from) / Math.max(1, to - from) * (width - EDGE - 8);
  axis(context, x, from, to, height);
  rows(context, marks, windows ?? accesses, "layer", x, 0, LAYERS);
  rows(context, marks, accesses, "block", x, LAYERS + GAP, BLOCKS);
  return marks;
}

function axis(context: CanvasRenderingContext2D, x: (time: number) => number, from: number, to: number, height: number): void {
  context.textAlign = "center";
  for (let part = 0; part <= 8; part++) {
    const time = from + (to - from) * part / 8;
    context.fillStyle = colour("grid");
    context.fillRect(Math.round(x(time)), 0, 1, height - 20);
    context.fillStyle = colour("soft");
    context.fillText(`+${duration((to - from) * part / 8)}`, Math.min(x(time), x(to) - 16), height - 8);
  }
}

// Marks by the rank of their layer or block among those that occur.
function rows(
  context: CanvasRenderingContext2D, marks: Mark[], columns: Columns, name: "layer" | "block", x: (time: number) => number, top: number, tall: number,
): void {
  const values = columns.num(name), distinct = [...new Set(values)].sort((a, b) => a - b), each = tall / distinct.length;
  const rank = new Map(distinct.map((value, index) => [value, index]));
  context.fillStyle = colour("soft");
  context.textAlign = "right";
  const every = Math.max(1, Math.ceil(13 / each));
  distinct.forEach((value, index) => { if (index % every === 0) context.fillText(count(value), EDGE - 6, top + (index + 0.5) * each); });
  context.textAlign = "left";
  context.fillText(name === "layer" ? "layer" : "block", 2, top + 6);
  for (let row = 0; row < columns.rows; row++) {
    const start = columns.num("start_ns")[row]!, mark: Mark = {
      x: x(start), width: Math.max(1, x(columns.num("end_ns")[row]!) - x(start)), columns, row,
      y: top + rank.get(values[row]!)! * each + (each > 3 ? 0.5 : 0), height: Math.max(1, each - (each > 3 ? 1 : 0)),
    };
    context.fillStyle = colour((columns.text("kind", row) ?? "").includes("write") ? "write" : "read");
    context.globalAlpha = name === "block" ? 0.75 : 1;
    context.fillRect(mark.x, mark.y, mark.width, mark.height);
    marks.push(mark);
  }
  context.globalAlpha = 1;
}
