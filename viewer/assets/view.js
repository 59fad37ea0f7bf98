// What is shown: engine, time window, pinned thing, list of requests. Every change asks for one redraw.

const LEFT = 196, RIGHT = 10;
const MARGIN = 0.01;

const state = {
  document: null, engine: null, from: 0, to: 1, first: 0, last: 1, width: 800,
  pinned: null, query: "", order: "arrival", inWindow: true, listed: [], colours: {}, picked: {},
};

let drawing = false;
function changed() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; draw(); });
}

const plotWidth = () => Math.max(10, state.width - LEFT - RIGHT);
const toX = (ns) => LEFT + (ns - state.from) / (state.to - state.from) * plotWidth();
const toTime = (x) => state.from + (x - LEFT) / plotWidth() * (state.to - state.from);

function chooseEngine(index) {
  state.engine = state.document.engines[index];
  state.pinned = null;
  const steps = state.engine.steps.columns, requests = state.engine.requests.columns;
  const starts = [...steps.start_ns.slice(0, 1), ...requests.start_ns.slice(0, 1)];
  const last = Math.max(greatest(steps.end_ns), greatest(steps.start_ns), greatest(state.engine.endOf));
  const first = starts.length ? Math.min(...starts) : 0;
  const margin = Math.max(1e3, (last - first) * MARGIN);
  state.first = first - margin;
  state.last = Math.max(last, first) + margin;
  showAll();
}

function showAll() { show(state.first, state.last); }

// Keeps the window inside the recording and at least a microsecond wide.
function show(from, to) {
  const whole = state.last - state.first;
  const width = Math.min(whole, Math.max(1e3, to - from));
  const middle = (from + to) / 2;
  state.from = Math.min(Math.max(middle - width / 2, state.first), state.last - width);
  state.to = state.from + width;
  listRequests();
  changed();
}

function zoom(factor, around = (state.from + state.to) / 2) {
  show(around - (around - state.from) * factor, around + (state.to - around) * factor);
}

function pan(fraction) {
  const by = Math.max(state.first - state.from, Math.min(state.last - state.to, fraction * (state.to - state.from)));
  show(state.from + by, state.to + by);
}

function pin(kind, row) {
  state.pinned = kind === null ? null : { kind, row };
  inspect();
  changed();
}

function listRequests() {
  const { engine, query, inWindow, from, to } = state;
  const columns = engine.requests.columns;
  const rows = [];
  for (let row = 0; row < columns.request.length; row++) {
    if (query && !engine.text[row].includes(query)) continue;
    if (inWindow && (columns.start_ns[row] > to || engine.endOf[row] < from)) continue;
    rows.push(row);
  }
  const latency = (row) => engine.endOf[row] - columns.start_ns[row];
  const compare = {
    arrival: () => 0,
    session: (a, b) => String(columns.session[a] ?? "").localeCompare(String(columns.session[b] ?? "")) ||
      (columns.turn[a] ?? 0) - (columns.turn[b] ?? 0),
    latency: (a, b) => latency(b) - latency(a),
    preemptions: (a, b) => (columns.preemptions[b] ?? 0) - (columns.preemptions[a] ?? 0),
  }[state.order];
  state.listed = rows.sort(compare);
}
