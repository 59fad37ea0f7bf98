// The close-up of one step's KV accesses: its dialog and the description of a mark.

import { load } from "../data/chunks";
import type { Columns } from "../data/columns";
import type { Engine } from "../data/engine";
import { button, byId, el, link } from "../dom";
import { count, duration, shorten } from "../format";
import { selectBlock, selectRequest } from "../inspect/select";
import { onDraw } from "../view";
import { Input } from "./input";
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
  const first = entry.accesses[0] ? await load(entry.accesses[0].id) : null;
  const canvas = el("canvas"), about = el("p", "about", "Point at a mark."), area = el("div", "close-up-area", canvas);
  const width = Math.min(MOST_WIDE, innerWidth - 90);
  const picture = shown = new Picture(canvas, levels, windows, blocks.num("block"), width);
  canvas.setAttribute("role", "img");
  canvas.setAttribute(
    "aria-label",
    `KV accesses of step ${count(step)}, by layer and by block over the time since its first`,
  );
  area.tabIndex = 0;
  area.setAttribute("role", "group");
  area.setAttribute("aria-label", KEYS);
  about.setAttribute("role", "status");
  const turn = (by: number) => {
    const next = all[all.indexOf(entry) + by];
    if (next) void showCloseUp(engine, next.step);
  };
  const rows = entry.accesses.reduce((sum, each) => sum + each.rows, 0);
  dialog.replaceChildren(
    el(
      "header",
      "",
      el("h2", "", `KV accesses of step ${count(step)}`),
      legendOf(picture, first),
      button("‹ Previous", () => turn(-1), "Page up"),
      button("Next ›", () => turn(1), "Page down"),
      button("Close", () => dialog.close(), "Esc"),
    ),
    el(
      "p",
      "unit",
      `${sourceOf(windows, first)} ${count(rows)} accesses of ${count(blocks.rows)} blocks. ${count(all.length)} of `
        + `${count(engine.contents.close_ups.total)} steps with accesses are in this page.`,
    ),
    area,
    about,
    el("p", "unit", KEYS),
  );
  if (!dialog.open) dialog.showModal();
  area.focus({ preventScroll: true });
  picture.paint();
  new Input(area, picture, turn, (spot, kept) => void describe(about, spot, engine, kept));
}

function legendOf(picture: Picture, accesses: Columns<"accesses"> | null): HTMLElement {
  const kinds = new Set(picture.order);
  for (let row = 0; accesses && row < accesses.rows; row++) kinds.add(kindOf(accesses, row));
  return el(
    "ul",
    "legend inline",
    ...ORDER.filter((kind) => kinds.has(kind)).map((kind) => {
      const swatch = el("span", "swatch");
      swatch.style.background = `var(--${KINDS[kind][1]})`;
      return el("li", "", swatch, KINDS[kind][0]);
    }),
  );
}

// Observed or derived, and from what.
function sourceOf(windows: Columns<"windows">, accesses: Columns<"accesses"> | null): string {
  if (accesses?.flag("observed", 0)) return "Observed on the GPU, tile by tile; all heads of a layer together.";
  const between = Array.from({ length: windows.rows }, (_, row) => windows.flag("observed", row)).includes(false);
  const seen = between ? "observed; paler ones derived" : "observed";
  return `Derived: the layer's window (${seen}) over the blocks of its block tables.`;
}

// Describes a spot; `kept`: with links to its request and block.
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
