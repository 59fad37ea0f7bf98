// Mouse and keys.

const KEYS = [
  ["wheel", "zoom around the pointer; over the requests it scrolls, with Ctrl it zooms"],
  ["drag", "select a stretch of time and zoom to it"],
  ["Shift + drag, drag on the axis, Shift + wheel", "pan"],
  ["double click, 0", "show everything"],
  ["click", "pin a step or a request; Esc unpins"],
  ["+ and -", "zoom"], ["left and right", "pan"], ["up and down", "scroll the requests"],
  [", and .", "previous and next step, or request"], ["/", "search; Enter pins the first match"], ["?", "this help"],
];

const WORDS = [
  ["prefill", "tokens of a prompt whose rest fits in the step"], ["chunked prefill", "a part of a prompt"],
  ["resumed", "tokens computed again because a preemption threw their KV away"],
  ["queued", "waiting for its first admission"], ["preempted", "thrown out of the batch, waiting to be admitted again"],
  ["KV insufficient", "the head of the waiting queue needs more blocks than are free"],
  ["token budget", "the step's tokens were used up"], ["max seqs", "as many requests run as may"],
  ["free, still cached", "free for reuse, and findable by its hash until then"],
  ["evicted", "a cached block was taken for something else"],
];

const DRAG_PIXELS = 4;

function listen() {
  const lanes = document.getElementById("lanes");
  let drag = null;
  lanes.addEventListener("wheel", (event) => onWheel(event, place(event)), { passive: false });
  lanes.addEventListener("pointerdown", (event) => {
    if (event.button || !event.target.closest(".lane") || place(event).scrollbar) return;
    const { x, lane } = place(event);
    drag = { x, from: state.from, to: state.to, pan: event.shiftKey || lane === "axis", moved: false };
    lanes.setPointerCapture(event.pointerId);
  });
  lanes.addEventListener("pointermove", (event) => {
    if (drag) onDrag(drag, place(event)); else hover(event);
  });
  lanes.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const done = drag;
    drag = null;
    onDrop(done, place(event));
  });
  lanes.addEventListener("pointercancel", () => { drag = null; document.getElementById("selection").hidden = true; });
  lanes.addEventListener("pointerleave", hideHover);
  lanes.addEventListener("dblclick", (event) => { if (event.target.closest(".lane")) showAll(); });
  document.getElementById("gantt").addEventListener("scroll", changed);
  document.addEventListener("keydown", onKey);
  listenToTools();
}

function listenToTools() {
  const on = (id, type, run) => document.getElementById(id).addEventListener(type, run);
  on("zoom-in", "click", () => zoom(0.5));
  on("zoom-out", "click", () => zoom(2));
  on("reset", "click", showAll);
  on("engine", "change", (event) => openEngine(Number(event.target.value)));
  on("order", "change", (event) => { state.order = event.target.value; listRequests(); changed(); });
  on("in-view", "change", (event) => { state.inWindow = event.target.checked; listRequests(); changed(); });
  on("search", "input", (event) => search(event.target.value));
  on("search", "keydown", (event) => {
    if (event.key === "Enter" && state.listed.length) pinRequest(state.listed[0]);
    if (event.key === "Escape") event.target.blur();
  });
}

// A search looks at all requests, wherever the window is.
function search(text) {
  state.query = text.trim().toLowerCase();
  const box = document.getElementById("in-view");
  state.inWindow = box.checked && !state.query;
  box.disabled = Boolean(state.query);
  document.getElementById("gantt").scrollTop = 0;
  listRequests();
  changed();
}

// Where an event happened: x in the lanes, the lane, y in that lane.
function place(event) {
  const box = document.getElementById("lanes").getBoundingClientRect();
  const under = document.elementFromPoint(event.clientX, event.clientY)?.closest(".lane");
  const x = event.clientX - box.left - 1;
  return {
    x, lane: under?.dataset.lane ?? null, y: under ? event.clientY - under.getBoundingClientRect().top : 0,
    scrollbar: under?.dataset.lane === "gantt" && x > state.width,
  };
}

function onWheel(event, { x, lane }) {
  if (lane === null || (lane === "gantt" && !event.ctrlKey && !event.shiftKey && overflows())) return;
  event.preventDefault();
  const amount = event.deltaY || event.deltaX;
  if (event.shiftKey) pan(Math.sign(amount) * 0.1);
  else zoom(Math.exp(Math.max(-1, Math.min(1, amount * 0.002))), toTime(Math.max(LEFT, x)));
}

function overflows() {
  const scroller = document.getElementById("gantt");
  return scroller.scrollHeight > scroller.clientHeight + 1;
}

function onDrag(drag, { x }) {
  drag.moved ||= Math.abs(x - drag.x) > DRAG_PIXELS;
  if (!drag.moved) return;
  hideHover();
  if (drag.pan) {
    const by = Math.max(state.first - drag.from, Math.min(state.last - drag.to,
      (drag.x - x) / plotWidth() * (drag.to - drag.from)));
    show(drag.from + by, drag.to + by);
    return;
  }
  const box = document.getElementById("selection"), [from, to] = dragged(drag, x);
  box.hidden = false;
  box.style.left = `${from}px`;
  box.style.width = `${to - from}px`;
}

const dragged = (drag, x) => [drag.x, x].map((at) => Math.max(LEFT, Math.min(state.width - RIGHT, at))).sort((a, b) => a - b);

function onDrop(drag, at) {
  document.getElementById("selection").hidden = true;
  if (!drag.moved) {
    const found = find(at);
    if (found) pin(found.kind, found.row);
  } else if (!drag.pan) {
    const [from, to] = dragged(drag, at.x);
    show(toTime(from), toTime(to));
  }
}

// The step or request drawn at a place.
function find({ x, y, lane }) {
  if (lane === "gantt") {
    const row = requestAt(y);
    return row === null ? null : { kind: "request", row };
  }
  if (x < LEFT || lane === null || lane === "axis" || !state.engine.rows) return null;
  const row = state.picked[lane]?.[Math.floor(x - LEFT)] ?? -1;
  return row < 0 ? null : { kind: "step", row };
}

function hover(event) {
  const at = place(event), cursor = document.getElementById("cursor"), tip = document.getElementById("tooltip");
  cursor.hidden = at.lane === null || at.x < LEFT || at.x > state.width - RIGHT;
  cursor.style.left = `${at.x}px`;
  const found = event.target.closest("#gantt-head") ? null : find(at);
  tip.hidden = !found;
  if (!found) return;
  tip.replaceChildren(...(found.kind === "step" ? stepHint(found.row) : requestHint(found.row, toTime(at.x))));
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 12 - tip.offsetWidth : event.clientX + 16;
  const top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${top}px`;
}

function hideHover() {
  document.getElementById("cursor").hidden = true;
  document.getElementById("tooltip").hidden = true;
}

function onKey(event) {
  if (event.target.closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const scroller = document.getElementById("gantt");
  const run = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": showAll,
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
    ArrowUp: () => { scroller.scrollTop -= 3 * ROW; }, ArrowDown: () => { scroller.scrollTop += 3 * ROW; },
    ",": () => neighbour(-1), ".": () => neighbour(1), Escape: () => pin(null),
    "/": () => document.getElementById("search").focus(), "?": () => document.getElementById("help").showModal(),
  }[event.key];
  if (!run) return;
  event.preventDefault();
  run();
}

function neighbour(by) {
  if (state.pinned?.kind === "request") {
    const next = state.listed[state.listed.indexOf(state.pinned.row) + by];
    if (next !== undefined) pinRequest(next);
  } else if (state.engine.rows) {
    const from = state.pinned?.row ?? Math.max(0, lastAtMost(state.engine.steps.columns.start_ns, state.from));
    pinStep(Math.max(0, Math.min(state.engine.rows - 1, from + by)));
  }
}
