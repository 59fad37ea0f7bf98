// Draws the lanes that show steps. Where several steps share a pixel, the one with the most of what is shown is drawn.

const CANVAS_FONT = '10px system-ui, "DejaVu Sans", sans-serif';

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "soft", "line", "grid", "panel", "accent", "prefill", "chunked", "decode", "resumed", "queued",
    "preempted", "running", "waiting", "used", "cached", "free", "evicted", "token-budget", "kv-insufficient", "max-seqs",
    "paused", "other", "none"];
  state.colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function laneCanvas(name) {
  return document.querySelector(`[data-lane=${name}] canvas`);
}

// A cleared context in CSS pixels, and its height.
function begin(name, height) {
  const canvas = laneCanvas(name), ratio = devicePixelRatio || 1;
  const lane = canvas.parentElement;
  const tall = height ?? lane.clientHeight;
  const pixels = [Math.round(state.width * ratio), Math.round(tall * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  canvas.style.width = `${state.width}px`;
  canvas.style.height = `${tall}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, state.width, tall);
  context.font = CANVAS_FONT;
  context.textBaseline = "middle";
  return [context, tall];
}

function niceTick(span, most) {
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((digit) => digit * power).find((tick) => tick >= rough);
}

function timeTicks() {
  const tick = niceTick(state.to - state.from, Math.max(2, plotWidth() / 110));
  const times = [];
  for (let time = Math.ceil(state.from / tick) * tick; time <= state.to; time += tick) times.push(time || 0);
  return [times, tick];
}

function drawAxis() {
  const [context, height] = begin("axis");
  const [times, tick] = timeTicks();
  context.textAlign = "center";
  for (const time of times) {
    const x = Math.round(toX(time)) + 0.5;
    context.fillStyle = state.colours.soft;
    context.fillRect(x - 0.5, height - 4, 1, 4);
    context.fillStyle = state.colours.ink;
    const label = clock(time, tick), half = context.measureText(label).width / 2;
    if (x - half > LEFT - 20 && x + half < state.width) context.fillText(label, x, height / 2 - 1);
  }
}

function drawTimeGrid(context, height) {
  context.fillStyle = state.colours.grid;
  for (const time of timeTicks()[0]) context.fillRect(Math.round(toX(time)), 0, 1, height);
}

// Horizontal scale from 0 to `most`: grid lines and labels; returns value -> y.
function drawScale(context, height, most, ticks) {
  const top = 8, bottom = height - 6;
  const toY = (value) => bottom - (value / most) * (bottom - top);
  context.textAlign = "right";
  for (const value of ticks) {
    const y = Math.round(toY(value));
    context.fillStyle = state.colours.grid;
    context.fillRect(LEFT, y, plotWidth(), 1);
    context.fillStyle = state.colours.soft;
    context.fillText(count(value), LEFT - 5, Math.min(height - 6, Math.max(6, y)));
  }
  return toY;
}

function wholeTicks(most, wanted) {
  const tick = Math.max(1, niceTick(most, wanted)), ticks = [];
  for (let value = 0; value <= most; value += tick) ticks.push(value);
  return ticks;
}

// Which row each pixel shows: the one greatest by `value`. `held`: a row lasts until the next one starts.
function pickRows(value, held) {
  const { start_ns: starts, end_ns: ends } = state.engine.steps.columns;
  const picked = new Int32Array(Math.ceil(plotWidth())).fill(-1);
  const first = Math.max(0, lastAtMost(starts, state.from) - (held ? 0 : 8));
  for (let row = first; row < starts.length && starts[row] <= state.to; row++) {
    const own = ends[row] ?? starts[row];
    const end = held && row + 1 < starts.length ? starts[row + 1] : own;
    const from = Math.max(0, Math.floor(toX(starts[row]) - LEFT));
    const to = Math.min(picked.length, Math.max(from + 1, Math.round(toX(end) - LEFT)));
    for (let x = from; x < to; x++) {
      if (picked[x] < 0 || value(row) > value(picked[x])) picked[x] = row;
    }
  }
  return picked;
}

// Calls `paint(row, x, width)` for each stretch of pixels that shows one row.
function eachRun(picked, paint) {
  for (let x = 0; x < picked.length;) {
    let end = x + 1;
    while (end < picked.length && picked[end] === picked[x]) end++;
    if (picked[x] >= 0) paint(picked[x], LEFT + x, end - x);
    x = end;
  }
}

function drawSteps() {
  const [context, height] = begin("steps");
  drawTimeGrid(context, height);
  const { tokens, rows, steps: { columns } } = state.engine;
  if (!rows) {
    context.fillStyle = state.colours.soft;
    context.fillText("No scheduler steps were recorded for this engine.", LEFT + 8, height / 2);
  }
  const picked = state.picked.steps = pickRows((row) => tokens[row], false);
  const most = Math.max(1, ...picked.map((row) => (row < 0 ? 0 : tokens[row])));
  const toY = drawScale(context, height, most, wholeTicks(most, 4));
  eachRun(picked, (row, x, width) => {
    let y = toY(0);
    for (const [phase, , colour] of PHASES) {
      const amount = columns[`${phase}_tokens`][row];
      if (!amount) continue;
      const size = Math.max(1, toY(0) - toY(amount));
      context.fillStyle = state.colours[colour];
      context.fillRect(x, y - size, width > 3 ? width - 1 : width, size);
      y -= size;
    }
  });
  drawPinnedStep(context, height);
}

function drawPinnedStep(context, height) {
  if (state.pinned?.kind !== "step") return;
  const { start_ns: starts, end_ns: ends } = state.engine.steps.columns, row = state.pinned.row;
  const x = toX(starts[row]), width = Math.max(2, toX(ends[row] ?? starts[row]) - x);
  if (x + width < LEFT || x > state.width) return;
  context.strokeStyle = state.colours.ink;
  context.lineWidth = 1.5;
  context.strokeRect(x - 1, 1, width + 1, height - 2);
}

function drawLimits() {
  const [context] = begin("limits");
  const { admission_limit: limits, limited_steps: limited, steps } = state.engine.steps.columns;
  const rank = (row) => LIMIT_RANK.get(limits[row]) ?? LIMITS.length - 2;
  const picked = state.picked.limits = pickRows((row) => -rank(row), false);
  eachRun(picked, (row, x, width) => {
    const tall = Math.max(2, 14 * limited[row] / steps[row]);
    context.fillStyle = state.colours.none;
    context.fillRect(x, 4, width, 14);
    context.fillStyle = state.colours[LIMITS[rank(row)][2]];
    if (limited[row]) context.fillRect(x, 18 - tall, width, tall);
  });
  context.textAlign = "left";
  context.fillStyle = "#000";
  eachRun(picked.map((row) => (row < 0 || limited[row] < steps[row] ? -1 : rank(row))), (which, x, width) => {
    const name = LIMITS[which][1];
    if (width > context.measureText(name).width + 8) context.fillText(name, x + 4, 11.5);
  });
}

function drawQueue() {
  const [context, height] = begin("queue");
  drawTimeGrid(context, height);
  const { running, waiting } = state.engine.steps.columns;
  const most = Math.max(1, greatest(running), greatest(waiting));
  const toY = drawScale(context, height, most, wholeTicks(most, 2));
  for (const [values, colour] of [[waiting, "waiting"], [running, "running"]]) {
    state.picked.queue = pickRows((row) => values[row], true);
    drawStairs(context, state.picked.queue, (row) => toY(values[row]), state.colours[colour]);
  }
}

function drawStairs(context, picked, toY, colour) {
  context.beginPath();
  let end = -1;
  eachRun(picked, (row, x, width) => {
    const y = Math.round(toY(row)) + 0.5;
    if (x === end) context.lineTo(x, y); else context.moveTo(x, y);
    context.lineTo(end = x + width, y);
  });
  context.strokeStyle = colour;
  context.lineWidth = 1.6;
  context.stroke();
}

function drawPool() {
  const [context, height] = begin("kv");
  const { pool, steps: { columns } } = state.engine;
  const most = Math.max(1, pool), quarter = [0, most / 2, most].map(Math.round);
  const toY = drawScale(context, height, most, quarter);
  const fill = (from, to, x, width, colour) => {
    context.fillStyle = state.colours[colour];
    context.fillRect(x, Math.round(toY(to)), width, Math.round(toY(from)) - Math.round(toY(to)));
  };
  state.picked.kv = pickRows((row) => columns.used_blocks[row], true);
  eachRun(state.picked.kv, (row, x, width) => {
    const used = columns.used_blocks[row], cached = columns.free_cached_blocks[row] ?? 0;
    fill(0, used, x, width, "used");
    fill(used, used + cached, x, width, "cached");
    fill(used + cached, used + columns.free_blocks[row], x, width, "free");
  });
  drawPinnedStep(context, height);
}

function drawChurn() {
  const [context, height] = begin("churn");
  drawTimeGrid(context, height);
  const { evicted_blocks: evicted, preempted_requests: preempted } = state.engine.steps.columns;
  const most = Math.max(1, greatest(evicted));
  const toY = drawScale(context, height, most, [0, most]);
  context.fillStyle = state.colours.evicted;
  state.picked.churn = pickRows((row) => evicted[row], false);
  eachRun(state.picked.churn, (row, x, width) => {
    if (evicted[row]) context.fillRect(x, toY(evicted[row]), width > 3 ? width - 1 : width, toY(0) - toY(evicted[row]));
  });
  context.fillStyle = state.colours.preempted;
  eachRun(pickRows((row) => preempted[row], false), (row, x, width) => {
    if (preempted[row]) triangle(context, x + width / 2, 1);
  });
}

function triangle(context, x, y) {
  context.beginPath();
  context.moveTo(x - 4, y);
  context.lineTo(x + 4, y);
  context.lineTo(x, y + 7);
  context.fill();
}
