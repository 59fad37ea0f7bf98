// A lane for each request that is listed; only those in sight are drawn.

const ROW = 13, BAR = 9, LABEL = 30;

function drawGantt() {
  const scroller = document.getElementById("gantt");
  const tall = scroller.clientHeight;
  const [context] = begin("gantt", tall);
  document.getElementById("spacer").style.height = `${Math.max(0, state.listed.length * ROW + 4 - tall)}px`;
  drawTimeGrid(context, tall);
  context.fillStyle = state.colours.panel;
  context.fillRect(0, 0, LEFT, tall);
  const first = Math.floor(scroller.scrollTop / ROW);
  const last = Math.min(state.listed.length, first + Math.ceil(tall / ROW) + 1);
  for (let index = first; index < last; index++) {
    drawRequest(context, state.listed[index], index * ROW - scroller.scrollTop + 2);
  }
  if (!state.listed.length) {
    context.fillStyle = state.colours.soft;
    context.textAlign = "left";
    const total = state.engine.requests.columns.request.length;
    const why = !total ? "No requests were recorded for this engine."
      : state.query ? "No request or session id contains that text." : "No request was alive in this window.";
    context.fillText(why, LEFT + 8, 14);
  }
  drawPinnedSpan(context, tall);
}

function drawRequest(context, row, y) {
  const pinned = state.pinned?.kind === "request" && state.pinned.row === row;
  context.textAlign = "right";
  context.fillStyle = pinned ? state.colours.ink : state.colours.soft;
  context.fillText(laneLabel(row), LEFT - 6, y + ROW / 2 - 1, LEFT - 14);
  for (const segment of state.engine.segmentsOf[row]) {
    if (segment.end >= state.from && segment.start <= state.to) drawSegment(context, segment, y);
  }
  if (!pinned) return;
  context.strokeStyle = state.colours.accent;
  context.lineWidth = 1;
  context.strokeRect(LEFT + 0.5, y - 0.5, plotWidth() - 1, ROW - 1);
}

// The name, and the session where there is room for it.
function laneLabel(row) {
  const { session, turn } = state.engine.requests.columns, name = isolated(shorten(requestName(state.engine, row), LABEL));
  const tag = session[row] === null || session[row].length + name.length > LABEL - 8 ? "" : isolated(session[row]);
  return tag ? `${tag}${turn[row] === null ? "" : ` turn ${turn[row]}`} · ${name}` : name;
}

function drawSegment(context, segment, y) {
  const name = state.document.states[segment.state];
  const from = Math.max(LEFT, toX(segment.start)), to = Math.min(state.width - RIGHT, toX(segment.end));
  const width = Math.max(1, to - from);
  context.fillStyle = state.colours[STATES.get(name) ?? "other"];
  const thin = name === "queued" || name === "preempted";
  const size = name === "queued" ? 2 : name === "preempted" ? 4 : BAR;
  context.fillRect(from, y + (ROW - 1 - size) / 2, width, size);
  if (!thin && width > 3) {
    context.fillStyle = state.colours.panel;
    context.fillRect(from + width - 0.5, y + (ROW - 1 - size) / 2, 0.5, size);
  }
}

function drawPinnedSpan(context, tall) {
  if (state.pinned?.kind !== "step") return;
  const { start_ns: starts, end_ns: ends } = state.engine.steps.columns, row = state.pinned.row;
  const x = Math.max(LEFT, toX(starts[row])), end = toX(ends[row] ?? starts[row]);
  if (end < LEFT) return;
  context.globalAlpha = 0.25;
  context.fillStyle = state.colours.ink;
  context.fillRect(x, 0, Math.max(1, end - x), tall);
  context.globalAlpha = 1;
}

// The request at a place in the Gantt lane; null between and below them.
function requestAt(y) {
  const index = Math.floor((y + document.getElementById("gantt").scrollTop - 2) / ROW);
  return state.listed[index] ?? null;
}

function reveal(row) {
  const index = state.listed.indexOf(row), scroller = document.getElementById("gantt");
  if (index < 0) return;
  const top = index * ROW;
  if (top < scroller.scrollTop || top + ROW > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = top - scroller.clientHeight / 2;
  }
}
