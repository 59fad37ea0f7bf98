// What the panel says about a GPU activity.

import type { NumberName } from "../../data/columns";
import { el, outside, section } from "../../dom";
import { bandwidth, bytes, clock, count, duration, words } from "../../format";
import { relateStep, stepLink } from "../../inspect/select";
import type { Selection } from "../../view";

export async function describeKernel(now: Selection<"kernels">): Promise<Node[]> {
  const { engine, row: place } = now, { columns, row } = place!,
    at = (name: NumberName<"kernels">) => columns.at(name, row);
  await relateStep(now, at("step"));
  const start = at("start_ns")!, end = at("end_ns")!, size = at("bytes");
  const before = row ? start - columns.num("end_ns")[row - 1]! : null;
  return [
    el("p", "kind", words(columns.text("kind", row) ?? "kernel")),
    el("h2", "", outside(columns.text("name", row) ?? "unknown")),
    ...section("", [
      ["category", words(columns.text("category", row) ?? "unknown")],
      ["start", clock(start, 10)],
      ["duration", duration(end - start)],
      [
        "after the one before",
        before === null ? null : before < 0 ? "overlaps it" : `${duration(before)} (any stream)`,
      ],
      ["step", stepLink(engine, at("step"))],
      ["layer", at("layer") === null ? null : count(at("layer"))],
      ["GPU", at("device") === null ? null : count(at("device"))],
      ["stream", at("stream") === null ? null : count(at("stream"))],
      ["bytes", size === null ? null : bytes(size)],
      ["bandwidth", size === null ? null : bandwidth(size, end - start)],
      ["direction", columns.text("direction", row) === null ? null : words(columns.text("direction", row)!)],
    ]),
  ];
}
