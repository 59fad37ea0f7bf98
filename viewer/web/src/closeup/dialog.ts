// The close-up of one step's KV accesses: its dialog, what it says, mouse and keys.

import { load } from "../data/chunks";
import type { Engine } from "../data/engine";
import { button, byId, el, link } from "../dom";
import { count, duration, shorten } from "../format";
import { selectBlock, selectRequest } from "../inspect/select";
import { onDraw } from "../view";
import { kindOf, KINDS, ORDER, Picture, type Spot } from "./picture";

const MOST_WIDE = 1560;
const KEYS =
  "Wheel, drag, plus and minus zoom, arrows pan, [ and ] show fewer or more blocks, 0 shows everything; comma and period go from layer to layer, "
  + "z or a double click shows one alone; Page up and down go from step to step. A click keeps what it says, with links.";

let shown: Picture | null = null;

const dialogOf = (): HTMLDialogElement => byId<HTMLDialogElement>("close-up");

// Draws it again as its chunks come.
onDraw(() => {
  if (shown && dialogOf().open) shown.paint();
});

export async function showCloseUp(engine: Engine, step: number): Promise<void> {
  const dialog = dialogOf(), all = engine.contents.close_ups.steps, entry = all.find((each) => each.step === step),
    levels = engine.accesses(step);
  if (!entry?.windows[0] || !entry.blocks[0] || !levels) return;
  const [windows, blocks] = await Promise.all([load(entry.windows[0].id), load(entry.blocks[0].id)]);
  const first = entry.accesses[0] ? await load(entry.accesses[0].id) : null, observed = first?.flag("observed", 0);
  const canvas = el("canvas"), about = el("p", "about", "Point at a mark."), area = el("div", "close-up-area", canvas),
    index = all.indexOf(entry);
  const picture = shown = new Picture(
    canvas,
    levels,
    windows,
    blocks.num("block"),
    Math.min(MOST_WIDE, innerWidth - 90),
  );
  canvas.setAttribute("role", "img");
  canvas.setAttribute(
    "aria-label",
    `KV accesses of step ${count(step)}, by layer and by block over the time since its first`,
  );
  area.tabIndex = 0;
  area.setAttribute("role", "group");
  area.setAttribute("aria-label", KEYS);
  about.setAttribute("role", "status");
  const between = Array.from({ length: windows.rows }, (_, row) => windows.flag("observed", row)).includes(false);
  const turn = (by: number) => {
    const next = all[index + by];
    if (next) void showCloseUp(engine, next.step);
  };
  const kinds = new Set([
    ...picture.order,
    ...first ? Array.from({ length: first.rows }, (_, row) => kindOf(first, row)) : [],
  ]);
  const key = el(
    "ul",
    "legend inline",
    ...ORDER.filter((kind) => kinds.has(kind)).map((kind) => {
      const swatch = el("span", "swatch");
      swatch.style.background = `var(--${KINDS[kind][1]})`;
      return el("li", "", swatch, KINDS[kind][0]);
    }),
  );
  const rows = entry.accesses.reduce((sum, each) => sum + each.rows, 0);
  dialog.replaceChildren(
    el(
      "header",
      "",
      el("h2", "", `KV accesses of step ${count(step)}`),
      key,
      button("‹ Previous", () => turn(-1), "Page up"),
      button("Next ›", () => turn(1), "Page down"),
      button("Close", () => dialog.close(), "Esc"),
    ),
    el(
      "p",
      "unit",
      `${
        observed
          ? "Observed on the GPU, tile by tile; all heads of a layer together."
          : `Derived: the layer's window (${
            between ? "observed; paler ones derived" : "observed"
          }) over the blocks of its block tables.`
      } `
        + `${count(rows)} accesses of ${count(blocks.rows)} blocks. ${count(all.length)} of ${
          count(engine.contents.close_ups.total)
        } steps with accesses are in this page.`,
    ),
    area,
    about,
    el("p", "unit", KEYS),
  );
  if (!dialog.open) dialog.showModal();
  area.focus({ preventScroll: true });
  picture.paint();
  listenTo(area, picture, about, engine, turn);
}

// What a spot shows; `kept`: with links to its request and block.
async function describe(
  about: HTMLElement,
  { columns, row, exact }: Spot,
  engine: Engine,
  kept: boolean,
): Promise<void> {
  const kind = kindOf(columns, row), start = columns.num("start_ns")[row]!, end = columns.num("end_ns")[row]!;
  const window = columns.table === "windows", bin = columns.table === "access_bins";
  const layer: number | null = bin ? null : columns.at("layer", row),
    request: number | null = bin || window ? null : columns.at("request", row),
    block: number | null = window ? null : columns.at("block", row),
    last: number | null = bin ? columns.at("last_block", row) : null;
  if (request !== null) await engine.request(request);
  const parts: (Node | string)[] = [
    `${layer === null ? "" : `layer ${count(layer)}, `}${KINDS[kind][0]}`,
    `${duration(end - start)} from +${duration(start - (shown?.first ?? start))}`,
  ];
  if (block !== null)
    parts.push(
      last !== null && last !== block
        ? `blocks ${count(block)} to ${count(last)}`
        : kept
        ? link(`block ${count(block)}`, () => {
          dialogOf().close();
          selectBlock(engine, block, start);
        })
        : `block ${count(block)}`,
    );
  if (request !== null)
    parts.push(
      kept
        ? el(
          "span",
          "",
          "for ",
          link(shorten(engine.name(request), 40), () => {
            dialogOf().close();
            void selectRequest(engine, request);
          }),
        )
        : `for ${shorten(engine.name(request), 40)}`,
    );
  if (window && columns.flag("observed", row) === false)
    parts.push("derived from the layers around it");
  if (!window) {
    const accesses: number = columns.at("accesses", row);
    parts.push(`${count(accesses)} access${accesses === 1 ? "" : "es"}`);
  }
  if (!exact) parts.push("zoom in for single accesses");
  about.replaceChildren(...parts.flatMap((part, at) => (at ? ["  ·  ", part] : [part])));
}

function listenTo(
  area: HTMLElement,
  picture: Picture,
  about: HTMLElement,
  engine: Engine,
  turn: (by: number) => void,
): void {
  let drag: { x: number; moved: boolean; from: number; to: number; pan: boolean } | null = null, kept = false,
    layer = -1;
  const place = (event: MouseEvent) => {
    const box = picture.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const say = (spot: Spot | null, keep: boolean) => {
    kept = keep && spot !== null;
    if (spot) void describe(about, spot, engine, kept);
  };
  area.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, y } = place(event), factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) * 0.002)));
    if (event.altKey) picture.zoomBlocks(factor, picture.rank(y));
    else if (event.shiftKey) picture.pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
    else picture.zoom(factor, picture.time(x));
    picture.paint();
  }, { passive: false });
  area.addEventListener("pointerdown", (event) => {
    if (!event.button) {
      drag = { ...place(event), moved: false, from: picture.from, to: picture.to, pan: event.shiftKey };
      area.setPointerCapture(event.pointerId);
    }
  });
  area.addEventListener("pointermove", (event) => {
    const { x, y } = place(event);
    if (drag) {
      drag.moved ||= Math.abs(x - drag.x) > 4;
      if (drag.moved && drag.pan) {
        picture.show(drag.from, drag.to);
        picture.pan((picture.time(drag.x) - picture.time(x)) / (picture.to - picture.from));
        picture.paint();
      }
    } else if (!kept) say(picture.at(x, y), false);
  });
  area.addEventListener("pointerup", (event) => {
    const done = drag, { x, y } = place(event);
    drag = null;
    if (!done) return;
    if (!done.moved) say(picture.at(x, y), true);
    else if (!done.pan) {
      picture.show(...[picture.time(done.x), picture.time(x)].sort((a, b) => a - b) as [number, number]);
      picture.paint();
    }
  });
  // The window of the layer gone to, with room around it.
  const toLayer = () => {
    const start = picture.windows.num("start_ns")[Math.max(0, layer)]!,
      end = picture.windows.num("end_ns")[Math.max(0, layer)]!;
    picture.show(start - (end - start) / 8, end + (end - start) / 8);
  };
  area.addEventListener("dblclick", (event) => {
    const { x, y } = place(event), spot = picture.at(x, y);
    if (spot?.columns !== picture.windows) return;
    layer = spot.row;
    toLayer();
    picture.paint();
  });
  area.addEventListener("keydown", (event) => {
    const goTo = (by: number) => {
      layer = Math.max(0, Math.min(picture.windows.rows - 1, layer + by));
      const start = picture.windows.num("start_ns")[layer]!, end = picture.windows.num("end_ns")[layer]!;
      if (start < picture.from || end > picture.to)
        picture.show(start - (picture.to - picture.from) / 2, start + (picture.to - picture.from) / 2);
      say({ columns: picture.windows, row: layer, exact: true }, true);
    };
    // To the layer gone to, if it is in sight.
    const nearer = () => {
      const middle = middleOf(picture, layer), width = picture.to - picture.from;
      if (middle === undefined) picture.zoom(0.5);
      else picture.show(middle - width / 4, middle + width / 4);
    };
    const keys: Record<string, () => void> = {
      "+": () => nearer(),
      "=": () => nearer(),
      "-": () => picture.zoom(2),
      z: toLayer,
      "0": () => {
        picture.show(picture.first, picture.last);
        picture.zoomBlocks(Infinity);
      },
      ArrowLeft: () => picture.pan(-0.15),
      ArrowRight: () => picture.pan(0.15),
      ArrowUp: () => picture.panBlocks(-0.15),
      ArrowDown: () => picture.panBlocks(0.15),
      "[": () => picture.zoomBlocks(2),
      "]": () => picture.zoomBlocks(0.5),
      ",": () => goTo(-1),
      ".": () => goTo(1),
      PageUp: () => turn(-1),
      PageDown: () => turn(1),
    };
    const run = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!run) return;
    event.preventDefault();
    run();
    if (!event.key.startsWith("Page")) picture.paint();
  });
}

// Where to zoom in with the keys: at the layer gone to, if it is in sight.
function middleOf(picture: Picture, row: number): number | undefined {
  if (row < 0) return undefined;
  const time = (picture.windows.num("start_ns")[row]! + picture.windows.num("end_ns")[row]!) / 2;
  return picture.from <= time && time <= picture.to ? time : undefined;
}
