// Opens the document and keeps the page in step with it.

function draw() {
  state.width = document.getElementById("gantt").clientWidth;
  drawAxis();
  drawSteps();
  drawLimits();
  drawQueue();
  drawPool();
  drawChurn();
  drawGantt();
  const { engine, from, to } = state, shown = state.listed.length;
  document.getElementById("window").textContent =
    `${clock(Math.max(0, from), (to - from) / 1e3)} to ${clock(to, (to - from) / 1e3)}: ${duration(to - from)}`;
  document.getElementById("gantt-count").textContent = `${count(shown)} of ${count(engine.requests.total)}`;
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1);
}

function openEngine(index) {
  chooseEngine(index);
  showNotes(state.engine);
  showCards(state.engine);
  showLegends(state.engine);
  inspect();
}

function offerEngines() {
  const { engines } = state.document;
  document.getElementById("engine-choice").hidden = engines.length < 2;
  document.getElementById("engine").replaceChildren(...engines.map(({ facts: own, totals }, index) => {
    const rank = own.dp_rank === null || own.dp_rank === undefined ? "" : `, DP rank ${own.dp_rank}`;
    const option = element("option", `${own.engine_id}${rank}: ${count(totals.requests)} requests, ${count(totals.steps)} steps`);
    option.value = index;
    return option;
  }));
}

function fail(text) {
  const box = document.getElementById("failure");
  box.textContent = text;
  box.hidden = false;
  document.documentElement.dataset.state = "failed";
}

function nothingRecorded() {
  const roles = state.document.processes.map((process) => process.roles || "unknown role");
  return `Nothing to draw: this trace holds no engine, no scheduler step and no request.
Processes that recorded: ${roles.length ? `${count(roles.length)} (${roles.join("; ")})` : "none"}.

${REASONS}`;
}

const REASONS = `Likely reasons: the command ended before vLLM's engine started, it did not use vLLM, or kvtrace is not installed in the
environment vLLM ran in. The summary that kvtrace record printed at its end lists the processes and hooks it saw.`;

// #engine=0&from=1.5&to=2.5&request=ID&step=12 opens the page there; times in seconds.
function openAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const index = Number(wanted.get("engine") ?? 0);
  const engines = state.document.engines;
  document.getElementById("engine").value = String(engines[index] ? index : 0);
  openEngine(engines[index] ? index : 0);
  if (wanted.has("from") && wanted.has("to")) show(Number(wanted.get("from")) * 1e9, Number(wanted.get("to")) * 1e9);
  const row = state.engine.requests.columns.external_id.indexOf(wanted.get("request"));
  if (wanted.has("request") && row >= 0) pinRequest(row);
  const step = lastAtMost(state.engine.steps.columns.step, Number(wanted.get("step") ?? 0));
  if (wanted.has("step") && step >= 0) pinStep(step);
}

async function start() {
  try {
    state.document = await readDocument();
  } catch (error) {
    fail(String(error.message ?? error));
    return;
  }
  globalThis.kvtrace = { document: state.document, state };
  showHead();
  showNotes(null);
  if (!state.document.engines.length) {
    fail(nothingRecorded());
    return;
  }
  document.getElementById("main").hidden = document.getElementById("tools").hidden = false;
  for (const [id, entries] of [["keys", KEYS], ["words", WORDS]]) {
    document.getElementById(id).replaceChildren(...entries.flatMap(([word, what]) => [element("dt", word), element("dd", what)]));
  }
  readColours();
  offerEngines();
  openAddress();
  listen();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); changed(); });
  new ResizeObserver(changed).observe(document.getElementById("lanes"));
  addEventListener("hashchange", openAddress);
  draw();
  document.documentElement.dataset.state = "ready";
}

start();
