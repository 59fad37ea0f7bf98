// What the panel says about a transfer, a pin or a kernel.

import type { Engine } from "../data/engine";
import { el, link, outside, section } from "../dom";
import { bandwidth, bytes, clock, count, duration, shorten, words } from "../format";
import { copyOf } from "../lanes/moves";
import { isSelected, relate, type Selection } from "../view";
import { selectBlock, selectRequest, selectStep } from "./select";

// Marks the step of what is selected, and the requests in it.
async function relateStep({ engine, kind, id }: Selection, step: number | null): Promise<void> {
  const found = step === null ? null : await engine.step(step), shares = step === null ? [] : await engine.shares(step);
  if (!found || !isSelected(kind, engine, id)) return;
  const start = found.columns.num("start_ns")[found.row]!;
  relate(shares.map(({ columns, row }) => columns.num("request")[row]!), [
    start,
    found.columns.at("end_ns", found.row) ?? start,
  ]);
}

const stepLink = (
  engine: Engine,
  step: number | null,
) => (step === null ? null : link(`step ${count(step)}`, () => void selectStep(engine, step)));

export async function describeTransfer(now: Selection): Promise<Node[]> {
  const { engine, row: place } = now, { columns, row } = place!, at = (name: string) => columns.at(name, row),
    { start, took, by } = copyOf(columns, row);
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

export async function describePin({ engine, id, row: place }: Selection): Promise<Node[]> {
  const { columns, row } = place!, at = (name: string) => columns.at(name, row);
  const start = at("start_ns")!, end = at("end_ns"), request = at("request"), block = at("block")!,
    ttl = at("requested_ttl_ns");
  if (request !== null) {
    await engine.request(request);
    if (isSelected("pin", engine, id)) relate([request]);
  }
  let together = 0;
  const pins = columns.num("pin");
  for (const pin of pins) if (pin === pins[row]) together++;
  const [from, to] = await Promise.all([engine.stepAt(start), end === null ? null : engine.stepAt(end)]);
  return [
    el("p", "kind", "Pin"),
    el("h2", "", `Block ${count(block)}: ${words(columns.text("cause", row) ?? "")}`),
    ...section("", [
      ["block", link(`block ${count(block)}`, () => selectBlock(engine, block, start))],
      ["pinned together", `${count(together)} block${together === 1 ? "" : "s"}`],
      [
        "KV of",
        request === null
          ? "unknown"
          : link(shorten(engine.name(request), 30), () => void selectRequest(engine, request)),
      ],
      ["from", el("span", "", `${clock(start, 1e4)}, `, stepLink(engine, from) ?? "")],
      [
        "to",
        end === null
          ? "held when the recording ended"
          : el("span", "", `${clock(end, 1e4)}, `, stepLink(engine, to) ?? ""),
      ],
      ["held for", end === null ? null : duration(end - start)],
      ["asked for", ttl === null ? null : duration(ttl)],
      ["ended", end === null ? null : words(columns.text("end_reason", row) ?? "unknown")],
    ]),
  ];
}

export async function describeKernel(now: Selection): Promise<Node[]> {
  const { engine, row: place } = now, { columns, row } = place!, at = (name: string) => columns.at(name, row);
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
