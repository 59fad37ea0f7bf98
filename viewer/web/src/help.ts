// Keys, mouse, lanes, and what the words mean.

import { byId, el } from "./dom";
import type { Entry } from "./lanes/descriptor";
import { LANES, SELECTABLES } from "./lanes/list";

function keys(): Entry[] {
  const [first, ...others] = SELECTABLES.map(({ kind }) => kind);
  return [
    ["wheel", "zoom around the pointer; over the requests and the names on the left it scrolls, with Ctrl it zooms"],
    ["drag", "select a stretch of time and zoom to it"],
    ["Shift + drag, drag on the axis, Shift + wheel", "pan"],
    ["double click, 0", "show everything"],
    ["Backspace", "back to the view before"],
    ["click", "select"],
    ["Esc", "clear the selection"],
    ["z", "zoom to what is selected"],
    ["+ and -", "zoom"],
    ["left and right", "pan"],
    ["Page up and down", "scroll the lanes"],
    ["s", `select a ${first} in sight; again: a ${others.join(", ")}`],
    [", and .", "the one before and after it"],
    ["Enter, Tab", "to its details and the links in them; Esc goes back to the lanes"],
    ["e", "the next run or engine of a comparison"],
    ...LANES.flatMap(({ keys }) => keys?.map(({ help }) => help) ?? []),
    ["/", "search: request, job, step or block; Enter takes the first"],
    ["f", "what cost most"],
    ["t", "table of totals"],
    ["?", "this help"],
  ];
}

export function showHelp(): void {
  const dialog = byId<HTMLDialogElement>("help"), close = el("button", "", "Close");
  const list = (title: string, entries: Entry[]) => [
    el("h2", "", title),
    el("dl", "help", ...entries.flatMap(([what, meaning]) => [el("dt", "", what), el("dd", "", meaning)])),
  ];
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(
    ...list("Keys and mouse", keys()),
    ...list("Lanes", LANES.map(({ title, about }) => [title, about])),
    ...list("Words", LANES.flatMap(({ words }) => words ?? [])),
    close,
  );
  dialog.showModal();
  dialog.scrollTop = 0; // the focus is on the button at its end
}
