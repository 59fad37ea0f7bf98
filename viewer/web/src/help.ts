// Keys, mouse, and what the words mean.

import { byId, el } from "./dom";

const KEYS: [string, string][] = [
  ["wheel", "zoom around the pointer; over the requests and the names on the left it scrolls, with Ctrl it zooms"],
  ["drag", "select a stretch of time and zoom to it"],
  ["Shift + drag, drag on the axis, Shift + wheel", "pan"],
  ["Alt + wheel on the KV map, [ and ]", "show fewer or more blocks"],
  ["double click, 0", "show everything"],
  ["Backspace", "back to the view before"],
  ["click", "select"],
  ["Esc", "let go of what is selected"],
  ["z", "zoom to what is selected"],
  ["+ and -", "zoom"],
  ["left and right", "pan"],
  ["up and down", "scroll the requests"],
  ["Page up and down", "scroll the lanes"],
  ["s", "select a step in sight; again: a request, block, transfer, pin, kernel"],
  [", and .", "the one before and after it"],
  ["Enter, Tab", "to its details and the links in them; Esc goes back to the lanes"],
  ["e", "the next run or engine of a comparison"],
  ["p", "next preempted request"],
  ["c", "close-up of the selected step's KV accesses, where recorded"],
  ["m", "colour the KV map by state, owner, last use"],
  ["/", "search: request, job, step or block; Enter takes the first"],
  ["t", "table of totals"],
  ["?", "this help"],
];

const WORDS: [string, string][] = [
  ["prefill", "tokens of a prompt whose rest fits in the step"],
  ["chunked prefill", "a part of a prompt"],
  ["resumed", "tokens computed again because a preemption threw their KV away"],
  ["queued", "waiting for its first admission"],
  ["preempted", "thrown out of the batch, waiting to be admitted again"],
  ["tool gap", "between the end of a job's turn and its next one"],
  ["KV insufficient", "the head of the waiting queue needs more blocks than are free"],
  ["token budget", "the step's tokens were used up"],
  ["max seqs", "as many requests run as may"],
  ["free, still cached", "free for reuse, and findable by its hash until then"],
  ["shared", "more than one request refers to it"],
  ["pinned", "held by something else than a running request"],
  ["evicted", "a cached block was taken for something else"],
];

export function showHelp(): void {
  const dialog = byId<HTMLDialogElement>("help"), close = el("button", "", "Close");
  const list = (entries: [string, string][]) =>
    el("dl", "help", ...entries.flatMap(([word, what]) => [el("dt", "", word), el("dd", "", what)]));
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(el("h2", "", "Keys and mouse"), list(KEYS), el("h2", "", "Words"), list(WORDS), close);
  dialog.showModal();
}
