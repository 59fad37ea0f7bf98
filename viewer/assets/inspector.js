// Everything known about the pinned step or request, or about the run; and the short form beside the pointer.

function inspect() {
  const panel = document.getElementById("inspector");
  const shown = state.pinned === null ? describeRun() : state.pinned.kind === "step"
    ? describeStep(state.pinned.row) : describeRequest(state.pinned.row);
  panel.replaceChildren(...shown);
  panel.scrollTop = 0;
}

function action(label, run) {
  const button = element("button", label);
  button.addEventListener("click", run);
  return button;
}

function actions(...buttons) {
  const row = element("div", null, ...buttons);
  row.className = "actions";
  return row;
}

const section = (title, pairs) => [element("h3", title), facts(pairs)];
const yes = (value) => (value === null || value === undefined ? null : value ? "on" : "off");
const known = (value, unit = "") => (value === null || value === undefined ? null : `${count(value)}${unit}`);

function describeRun() {
  const { document: page, engine } = state, own = engine.facts;
  const run = new Map(page.run);
  return [
    element("h2", "This recording"),
    element("p", "Click a step or a request to pin its facts here."),
    ...section("Run", [
      ["command", commandLine(run.get("command"))], ["vLLM", own.vllm_version ?? run.get("vllm_version")],
      ["kvtrace", run.get("kvtrace_version")], ["exit code", run.get("exit_code")],
      ["time zero", page.origin],
    ]),
    ...section(`Engine ${own.engine_id}`, [
      ["model", own.model], ["block size", known(own.block_size_tokens, " tokens")], ["GPU blocks", known(own.blocks)],
      ["pool", own.block_bytes && own.blocks ? bytes(own.block_bytes * own.blocks) : null], ["KV cache groups", known(own.kv_groups)],
      ["token budget", known(own.max_batched_tokens, " tokens")], ["max seqs", known(own.max_seqs)],
      ["max length", known(own.max_model_tokens, " tokens")], ["policy", own.policy],
      ["prefix caching", yes(own.prefix_caching)], ["chunked prefill", yes(own.chunked_prefill)],
      ["async scheduling", yes(own.async_scheduling)], ["KV connector", own.connector],
      ["TP / PP / DP", [own.tp_size, own.pp_size, own.dp_size].map((size) => size ?? "?").join(" / ")],
      ["DP rank", known(own.dp_rank)], ["pid", own.pid === null || own.pid === undefined ? null : String(own.pid)],
    ]),
    ...describeTimes(),
  ];
}

// Sums over the requests the page holds, so they can be fewer than were recorded.
function describeTimes() {
  const { segments, columns } = state.engine.requests, names = state.document.states;
  const sums = names.map(() => 0);
  segments.state.forEach((which, i) => { sums[which] += segments.duration_ns[i]; });
  const all = sums.reduce((sum, ns) => sum + ns, 0);
  if (!all) return [];
  const bar = element("div", null, ...names.map((name, i) => {
    const part = element("span");
    part.style.flex = `${sums[i] / all} 0 0`;
    part.style.background = `var(--${STATES.get(name) ?? "other"})`;
    return part;
  }));
  bar.className = "bar";
  return [
    element("h3", `Where the time of ${count(columns.request.length)} requests went`), bar,
    facts(names.map((name, i) => [name, `${duration(sums[i])} (${share(sums[i], all)})`])),
  ];
}

function commandLine(text) {
  try {
    return JSON.parse(text).join(" ");
  } catch {
    return text;
  }
}

function stepTitle(row) {
  const { step, steps } = state.engine.steps.columns;
  return steps[row] === 1 ? `Step ${count(step[row])}`
    : `Steps ${count(step[row])} to ${count(step[row] + steps[row] - 1)}`;
}

function limitText(row) {
  const columns = state.engine.steps.columns, limit = columns.admission_limit[row];
  if (limit === null) return UNKNOWN;
  const name = LIMITS[LIMIT_RANK.get(limit)]?.[1] ?? limit;
  return limit === "kv_insufficient" && columns.limit_need_blocks[row] !== null
    ? `${name}: need ${count(columns.limit_need_blocks[row])}, free ${count(columns.limit_free_blocks[row])} blocks` : name;
}

function describeStep(row) {
  const { engine } = state, columns = engine.steps.columns, many = columns.steps[row] > 1;
  const at = (name) => columns[name][row];
  const head = engine.rowOfRequest.get(at("limit_request"));
  const most = many ? "most " : "";
  const buttons = [
    action("Zoom to it", () => show(at("start_ns") - 2 * span(row), at("start_ns") + 3 * span(row))),
    action("< Previous", () => pinStep(Math.max(0, row - 1))),
    action("Next >", () => pinStep(Math.min(engine.rows - 1, row + 1))),
    action("Unpin", () => pin(null)),
  ];
  if (head !== undefined) buttons.push(action("Request that waits", () => pinRequest(head)));
  return [
    element("h2", stepTitle(row)), actions(...buttons),
    ...(many ? [element("p", `${count(at("steps"))} steps drawn as one: tokens are those of the step with the most, ` +
      "blocks those of the step that used the most, evictions, preemptions and outputs their sums.")] : []),
    ...section("Time", [
      ["start", clock(at("start_ns"), 1e3)], ["UTC", utcTime(state.document.origin_ns, at("start_ns"))],
      [`${many ? "longest step" : "duration"}`, duration(at("duration_ns"))],
      [`${most}in schedule`, duration(at("schedule_ns"))], [`${most}until output`, duration(at("model_ns"))],
      [`${most}in update`, duration(at("update_ns"))],
    ]),
    ...section("Tokens scheduled", [
      ["all", count(engine.tokens[row])],
      ...PHASES.map(([phase, name]) => [name, count(at(`${phase}_tokens`))]),
      ["budget left", count(at("budget_left_tokens"))],
    ]),
    ...section("Requests", [
      ["scheduled", count(at("scheduled_requests"))], ["running", count(at("running"))], ["waiting", count(at("waiting"))],
      ["preempted", count(at("preempted_requests"))], ["finished", count(at("finished_requests"))],
      ["output tokens", count(at("output_tokens"))],
    ]),
    ...section("Admission limit", [
      ["head waits for", limitText(row)],
      ["head request", head === undefined ? known(at("limit_request")) : requestName(engine, head)],
      ...(many ? [["steps limited", count(at("limited_steps"))]] : []),
    ]),
    ...section("KV blocks after scheduling", [
      ["used", `${count(at("used_blocks"))} (${share(at("used_blocks"), engine.pool)})`],
      ["free", count(at("free_blocks"))], ["of these still cached", count(at("free_cached_blocks"))],
      ["cached in all", count(at("cached_blocks"))],
      ...(many ? [["least used", count(at("least_used_blocks"))]] : []), ["evicted", count(at("evicted_blocks"))],
    ]),
  ];
}

const span = (row) => {
  const { start_ns: starts, end_ns: ends } = state.engine.steps.columns;
  return Math.max(1e4, (ends[row] ?? starts[row]) - starts[row]);
};

function pinStep(row) {
  const start = state.engine.steps.columns.start_ns[row], width = state.to - state.from;
  if (start > state.to || start + span(row) < state.from) show(start - width / 2, start + width / 2);
  pin("step", row);
}

function pinRequest(row) {
  const start = state.engine.requests.columns.start_ns[row], end = state.engine.endOf[row];
  if (start > state.to || end < state.from) show(start - (end - start) * 0.2, end + (end - start) * 0.2);
  pin("request", row);
  reveal(row);
}

function describeRequest(row) {
  const { engine } = state, columns = engine.requests.columns;
  const at = (name) => columns[name][row];
  const between = (from, to) => (at(from) === null || at(to) === null ? null : duration(at(to) - at(from)));
  const spent = new Map();
  for (const { state: which, start, end } of engine.segmentsOf[row]) {
    const name = state.document.states[which];
    spent.set(name, (spent.get(name) ?? 0) + end - start);
  }
  const start = at("start_ns"), end = engine.endOf[row], around = (end - start) * 0.1;
  return [
    element("h2", "Request", element("bdi", requestName(engine, row))),
    actions(action("Zoom to it", () => show(start - around, end + around)), action("Unpin", () => pin(null))),
    facts([
      ["session", at("session")], ["turn", known(at("turn"))], ["internal id", at("internal_id")],
      ["external id", at("external_id")], ["key in the trace", String(at("request"))], ["priority", known(at("priority"))],
    ]),
    ...section("Tokens", [
      ["prompt", count(at("prompt_tokens"))],
      ["cached at admission", at("local_cached_tokens") === null ? UNKNOWN
        : `${count(at("local_cached_tokens"))} (${share(at("local_cached_tokens"), at("prompt_tokens"))})`],
      ["cached outside", known(at("external_cached_tokens"))],
      ["output", `${count(at("output_tokens"))} of at most ${count(at("max_tokens"))}`],
      ["released by preemption", at("preemptions") ? count(at("released_tokens")) : null],
      ["computed again", at("preemptions") ? count(at("recomputed_tokens")) : null],
    ]),
    ...describeMiss(at),
    ...section("Where its time went", [...spent].map(([name, ns]) => [name, duration(ns)])),
    ...section("Times", [
      ["arrival", clock(at("arrival_ns"), 1e5)], ["queued", clock(at("queued_ns"), 1e5)],
      ["first scheduled", clock(at("scheduled_ns"), 1e5)], ["first token", clock(at("first_token_ns"), 1e5)],
      ["finished", at("finished_ns") === null ? "not in this recording" : clock(at("finished_ns"), 1e5)],
      ["to first token", between("queued_ns", "first_token_ns")], ["end to end", between("queued_ns", "finished_ns")],
      ["arrival, UTC", at("arrival_ns") === null ? null : utcTime(state.document.origin_ns, at("arrival_ns"))],
    ]),
    ...section("Scheduling", [
      ["steps", at("steps") === null ? UNKNOWN
        : `${count(at("steps"))} (${count(at("first_step"))} to ${count(at("last_step"))})`],
      ["preempted", !at("preemptions") ? null : times(at("preemptions"))],
      ["ended by", at("finish_reason")],
    ]),
  ];
}

// On its first admission; the price is the trace's own cost model's.
function describeMiss(at) {
  if (at("miss_verdict") === null) return [];
  return [
    element("h3", "Why its prefix lookup ended there"),
    element("p", null, element("bdi", at("miss_why") ?? UNKNOWN)),
    facts([
      ["verdict", at("miss_verdict").replaceAll("_", " ")],
      ["avoidable", known(at("avoidable_tokens"), " tokens")],
      ["their price", !at("avoidable_tokens") || at("avoidable_ns") === null ? null : duration(at("avoidable_ns"))],
    ]),
  ];
}

function stepHint(row) {
  const columns = state.engine.steps.columns, at = (name) => columns[name][row];
  const phases = PHASES.filter(([phase]) => at(`${phase}_tokens`))
    .map(([phase, name]) => `${name} ${count(at(`${phase}_tokens`))}`).join(", ");
  return [
    element("b", stepTitle(row)),
    element("span", `${clock(at("start_ns"), 1e5)}, ${columns.steps[row] > 1 ? "longest " : ""}${duration(at("duration_ns"))}`),
    element("span", `${count(state.engine.tokens[row])} tokens${phases ? `: ${phases}` : ""}`),
    element("span", `${count(at("running"))} running, ${count(at("waiting"))} waiting; limit: ${limitText(row)}`),
    element("span", `${count(at("used_blocks"))} blocks used, ${count(at("free_blocks"))} free, ` +
      `${count(at("free_cached_blocks"))} of them still cached`),
    ...(at("evicted_blocks") || at("preempted_requests")
      ? [element("span", `${count(at("evicted_blocks"))} evicted, ${count(at("preempted_requests"))} preempted`)] : []),
  ];
}

function requestHint(row, time) {
  const { engine } = state, columns = engine.requests.columns;
  const now = engine.segmentsOf[row].find(({ start, end }) => start <= time && time < end);
  return [
    element("b", null, element("bdi", shorten(requestName(engine, row), 60))),
    ...(columns.session[row] === null ? [] : [element("span", null, "session ",
      element("bdi", shorten(columns.session[row], 40)), `, turn ${columns.turn[row] ?? UNKNOWN}`)]),
    element("span", now ? `${state.document.states[now.state]} for ${duration(now.end - now.start)} from ${clock(now.start, 1e5)}`
      : "not alive here"),
    element("span", `${count(columns.prompt_tokens[row])} prompt (${count(columns.local_cached_tokens[row])} cached), ` +
      `${count(columns.output_tokens[row])} output tokens`),
    ...(columns.preemptions[row] ? [element("span", `preempted ${times(columns.preemptions[row])}`)] : []),
  ];
}
