// What the panel says about a pin.

import type { NumberName } from "../../data/columns";
import { el, link, section } from "../../dom";
import { clock, count, duration, shorten, words } from "../../format";
import { selectBlock, selectRequest, stepLink } from "../../inspect/select";
import { isSelected, relate, type Selection } from "../../view";

export async function describePin({ engine, id, row: place }: Selection<"pins">): Promise<Node[]> {
  const { columns, row } = place!, at = (name: NumberName<"pins">) => columns.at(name, row);
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
