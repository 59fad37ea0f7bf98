// The panel while nothing is selected: the run and its engine.

import type { Engine } from "../data/engine";
import { el, section } from "../dom";
import { bytes, commandLine, count } from "../format";
import { view } from "../view";

const yes = (value: unknown): string | null => (value === null || value === undefined ? null : value ? "on" : "off");

export function describeRun(engine: Engine): Node[] {
  const run = new Map(engine.run.run), own = engine.facts;
  const num = (name: string, unit = "") => (typeof own[name] === "number" ? `${count(own[name])}${unit}` : null);
  const text = (name: string) => (own[name] === null || own[name] === undefined ? null : String(own[name]));
  const sizes = ["tp_size", "pp_size", "dp_size"].map(text);
  const several = view.engines.length > 1;
  return [
    el("h2", "", several ? el("bdi", "", engine.title) : "This recording"),
    ...(several
      ? []
      : [
        el(
          "p",
          "",
          "Click anything in the lanes: its facts, why it waited or missed, and what it leads to appear here.",
        ),
      ]),
    ...section("Run", [
      ["command", commandLine(run.get("command"))],
      ["vLLM", text("vllm_version") ?? run.get("vllm_version") ?? null],
      ["kvtrace", run.get("kvtrace_version") ?? null],
      ["exit code", run.get("exit_code") ?? null],
      ["time zero", engine.run.origin],
    ]),
    ...section(`Engine ${text("engine_id") ?? ""}`, [
      ["model", text("model")],
      ["block size", num("block_size_tokens", " tokens")],
      ["GPU blocks", num("blocks")],
      ["pool", own["block_bytes"] && own["blocks"] ? bytes(Number(own["block_bytes"]) * Number(own["blocks"])) : null],
      ["KV cache groups", num("kv_groups")],
      ["max_num_batched_tokens", num("max_num_batched_tokens", " tokens")],
      ["max_num_seqs", num("max_num_seqs")],
      ["max_model_len", num("max_model_len", " tokens")],
      ["policy", text("policy")],
      ["prefix caching", yes(own["prefix_caching"])],
      ["chunked prefill", yes(own["chunked_prefill"])],
      ["async scheduling", yes(own["async_scheduling"])],
      ["KV connector", text("connector")],
      [
        "TP / PP / DP",
        sizes.some((size) => size !== null) ? sizes.map((size) => size ?? "?").join(" / ") : null,
      ],
      ["DP rank", num("dp_rank")],
      ["pid", text("pid")],
    ]),
  ];
}
