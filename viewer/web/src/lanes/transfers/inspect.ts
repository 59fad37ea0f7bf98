// What the panel says about a transfer.

import type { NumberName } from "../../data/columns";
import { el, section } from "../../dom";
import { bandwidth, bytes, clock, count, duration } from "../../format";
import { relateStep, stepLink } from "../../inspect/select";
import type { Selection } from "../../view";
import { copyOf } from "./copies";

export async function describeTransfer(now: Selection<"transfers">): Promise<Node[]> {
  const { engine, row: place } = now, { columns, row } = place!,
    at = (name: NumberName<"transfers">) => columns.at(name, row), { start, took, by } = copyOf(columns, row);
  const success = columns.flag("success", row);
  await relateStep(now, at("step"));
  return [
    el("p", "kind", "Transfer"),
    el(
      "h2",
      "",
      `${columns.text("direction", row)}: ${columns.text("from_tier", row)} → ${columns.text("to_tier", row)}`,
    ),
    ...section("What", [
      ["connector", columns.text("connector", row)],
      ["blocks", count(at("blocks"))],
      ["bytes", bytes(at("bytes"))],
      ["requests", at("requests") === null ? null : count(at("requests"))],
      ["step", stepLink(engine, at("step"))],
      ["succeeded", success === null ? "unknown" : success ? "yes" : "no"],
      ["key", count(at("transfer"))],
    ]),
    ...section("Time", [
      ["submitted", clock(at("start_ns"), 1e3)],
      ["copy began", clock(start, 1e3)],
      [`copy took, ${by}`, duration(took)],
      ["bandwidth", bandwidth(at("bytes"), took)],
      ["known as ended", clock(at("end_ns"), 1e3)],
      ["waited before", duration(start - at("start_ns")!)],
    ]),
  ];
}
