// The head of the page: what was recorded, totals, notes, legends.

function showHead() {
  const page = state.document, run = new Map(page.run);
  const model = page.engines.map((engine) => engine.facts.model).find(Boolean);
  const vllm = page.engines.map((engine) => engine.facts.vllm_version).find(Boolean) ?? run.get("vllm_version");
  const parts = [model, vllm ? `vLLM ${vllm}` : null, commandLine(run.get("command"))].filter(Boolean);
  const what = document.getElementById("what");
  what.replaceChildren(element("bdi", parts.join("  ·  ")));
  what.title = parts.join("\n");
  const when = document.getElementById("when");
  if (page.origin_ns !== "0") when.textContent = `0 s = ${utc(page.origin_ns, 0)}`;
  when.title = `${page.origin_ns} ns since the UNIX epoch`;
  document.title = model ? `kvtrace: ${shorten(model, 40)}` : "kvtrace";
}

function showNotes(engine) {
  const notes = [...state.document.notes, ...(engine ? engineNotes(engine) : [])];
  const box = document.getElementById("notes");
  box.hidden = !notes.length;
  const [first, ...more] = notes.map((note) => note.text);
  box.querySelector("summary").textContent = more.length ? `${first} (and ${more.length} more)` : first;
  box.querySelector("ul").replaceChildren(...more.map((text) => element("li", text)));
}

function engineNotes({ steps, requests, totals }) {
  const notes = [], drawn = steps.columns.step.length, kept = requests.columns.request.length;
  if (steps.per_row > 1) {
    notes.push(`Showing ${count(steps.total)} steps in ${count(drawn)} bars of ${count(steps.per_row)} steps each: ` +
      "every bar shows its largest step.");
  }
  if (kept < requests.total) notes.push(`Showing the ${count(kept)} longest of ${count(requests.total)} requests.`);
  if (!drawn) notes.push("No scheduler steps were recorded for this engine: step, queue and KV lanes are empty.");
  if (drawn && !totals.block_events) {
    notes.push("No block events were recorded: evictions and the cached part of the free blocks are unknown.");
  }
  if (steps.cache_mismatches) {
    notes.push(`Free cached blocks follow from block events, whose total disagrees with the recorded one in ` +
      `${count(steps.cache_mismatches)} of ${count(steps.total)} steps.`);
  }
  return notes.map((text) => ({ level: "info", text }));
}

function showCards({ totals, pool }) {
  const limited = Object.entries(totals.limits).filter(([limit]) => limit !== "none");
  const [worst, times] = limited.sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
  const seconds = totals.span_ns / 1e9;
  const peak = totals.peak_used_blocks;
  const cards = [
    ["Requests", count(totals.requests), `${count(totals.finished_requests)} finished`],
    ["Prompt tokens", count(totals.prompt_tokens), "of all requests"],
    ["Output tokens", count(totals.output_tokens),
      seconds && totals.output_tokens !== null ? `${count(totals.output_tokens / seconds)} per second` : "",
      "from the first step's start to the last one's end"],
    ["Steps", count(totals.steps), totals.median_step_ns === null ? "" : `median ${duration(totals.median_step_ns)}`],
    ["Prefix hit rate", share(totals.prefix_hit_tokens ?? 0, totals.prefix_queried_tokens),
      totals.prefix_queried_tokens === null ? "no lookup recorded"
        : `${count(totals.prefix_hit_tokens)} / ${count(totals.prefix_queried_tokens)}`,
      "tokens found in the GPU prefix cache at each request's first admission"],
    ["Peak KV use", share(peak ?? 0, peak === null ? 0 : pool), `${count(peak)} / ${count(pool)}`],
    ["Evicted blocks", totals.block_events ? count(totals.evictions) : UNKNOWN, "from prefix cache",
      "blocks that were taken for new content and so are no longer findable by hash"],
    ["Preemptions", count(totals.preemptions), `${count(totals.recomputed_tokens)} recomputed`,
      `tokens computed again; preempted requests released the KV of ${count(totals.released_tokens ?? 0)}`],
    ["Admission limited", share(limited.reduce((sum, [, n]) => sum + n, 0), totals.steps),
      worst ? `${LIMITS[LIMIT_RANK.get(worst)]?.[1] ?? worst} ${Math.round(100 * times / totals.steps)}%` : "of all steps",
      "share of steps after which the head of the waiting queue had to wait, and the most frequent reason"],
  ];
  document.getElementById("cards").replaceChildren(...cards.map(([name, value, more, meaning]) => {
    const card = element("div", null, element("span", name), element("b", value), element("span", more));
    card.className = "card";
    card.title = `${name}: ${value}${more ? `, ${more}` : ""}${meaning ? ` (${meaning})` : ""}`;
    return card;
  }));
}

function legend(id, entries) {
  document.getElementById(id).replaceChildren(...entries.map(([name, colour, shape]) => {
    const swatch = element("span");
    swatch.className = `swatch ${shape ?? ""}`;
    swatch.style.background = `var(--${colour})`;
    return element("li", null, swatch, name);
  }));
}

function showLegends({ totals, facts: own, pool, steps }) {
  legend("legend-steps", PHASES.map(([, name, colour]) => [name, colour]));
  legend("legend-limits", LIMITS.filter(([limit]) => totals.limits[limit])
    .map(([limit, name, colour]) => [`${name} ${count(totals.limits[limit])}`, colour]));
  legend("legend-queue", [["running", "running", "line"], ["waiting", "waiting", "line"]]);
  legend("legend-kv", [["used by requests", "used"], ["free, still cached", "cached"], ["free", "free"]]);
  legend("legend-churn", [["▼ request preempted", "preempted"]]);
  legend("legend-gantt", [...STATES].map(([name, colour]) =>
    [name, colour, name === "queued" || name === "preempted" ? "line" : ""]));
  document.getElementById("kv-unit").textContent =
    own.block_size_tokens ? `blocks of ${count(own.block_size_tokens)} tokens` : "blocks";
  const bar = steps.per_row > 1;
  document.getElementById("steps-unit").textContent = bar ? `largest of ${count(steps.per_row)} steps` : "per scheduler step";
  document.getElementById("churn-unit").textContent = bar ? `sum of ${count(steps.per_row)} steps` : "per step";
  document.getElementById("axis-unit").textContent = `since the ${state.document.origin}`;
}
