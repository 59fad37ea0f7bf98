// The head of the page: what was recorded, totals, notes, legends.

function showHead() {
  const page = state.document, run = new Map(page.run);
  const model = page.engines.map((engine) => engine.facts.model).find(Boolean);
  const vllm = page.engines.map((engine) => engine.facts.vllm_version).find(Boolean) ?? run.get("vllm_version");
  const parts = [model, vllm ? `vLLM ${vllm}` : null, commandLine(run.get("command"))].filter(Boolean);
  const what = document.getElementById("what");
  what.replaceChildren(element("bdi", parts.join("  ·  ")));
  what.title = parts.join("\n");
  if (page.origin_ns !== "0") document.getElementById("when").textContent = `0 s = ${utc(page.origin_ns, 0)}`;
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

function showCards({ totals, facts: own, steps, pool }) {
  const limited = Object.entries(totals.limits).filter(([limit]) => limit !== "none");
  const [worst, times] = limited.sort((a, b) => b[1] - a[1])[0] ?? [null, 0];
  const seconds = totals.span_ns / 1e9;
  const peak = totals.peak_used_blocks;
  const cards = [
    ["Requests", count(totals.requests), `${count(totals.finished_requests)} finished`],
    ["Prompt tokens", count(totals.prompt_tokens), "of all requests"],
    ["Output tokens", count(totals.output_tokens),
      seconds && totals.output_tokens !== null ? `${count(totals.output_tokens / seconds)} a second` : ""],
    ["Steps", count(totals.steps), totals.median_step_ns === null ? "" : `median ${duration(totals.median_step_ns)}`],
    ["Prefix hit rate", share(totals.prefix_hit_tokens ?? 0, totals.prefix_queried_tokens),
      `${count(totals.prefix_hit_tokens)} of ${count(totals.prefix_queried_tokens)} tokens`],
    ["Peak KV use", share(peak ?? 0, peak === null ? 0 : pool), `${count(peak)} of ${count(pool)} blocks`],
    ["Evicted blocks", totals.block_events ? count(totals.evictions) : UNKNOWN, "dropped from the prefix cache"],
    ["Preemptions", count(totals.preemptions), `${count(totals.discarded_tokens ?? 0)} tokens thrown away`],
    ["Admission limited", share(limited.reduce((sum, [, n]) => sum + n, 0), totals.steps),
      worst ? `of steps; ${LIMITS[LIMIT_RANK.get(worst)]?.[1] ?? worst} ${count(times)}` : "of steps"],
  ];
  document.getElementById("cards").replaceChildren(...cards.map(([name, value, more]) => {
    const card = element("div", null, element("span", name), element("b", value), element("span", more));
    card.className = "card";
    card.title = `${name}: ${value} ${more}`;
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

function showLegends({ totals, facts: own, pool }) {
  legend("legend-steps", PHASES.map(([, name, colour]) => [name, colour]));
  legend("legend-limits", LIMITS.filter(([limit]) => totals.limits[limit])
    .map(([limit, name, colour]) => [`${name}: ${count(totals.limits[limit])} steps`, colour]));
  legend("legend-queue", [["running", "running", "line"], ["waiting", "waiting", "line"]]);
  legend("legend-kv", [["used by requests", "used"], ["free, still cached", "cached"], ["free", "free"]]);
  legend("legend-churn", [["per step", "evicted"], ["▼ request preempted", "preempted"]]);
  legend("legend-gantt", [...STATES].map(([name, colour]) =>
    [name, colour, name === "queued" || name === "preempted" ? "line" : ""]));
  const tokens = own.block_size_tokens ? `${count(pool * own.block_size_tokens)} tokens` : null;
  const size = own.block_bytes ? bytes(pool * own.block_bytes) : null;
  document.getElementById("kv-unit").textContent = ["blocks", [tokens, size].filter(Boolean).join(", ")]
    .filter(Boolean).join("; ");
}
