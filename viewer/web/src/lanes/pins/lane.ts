// Blocks that something else than a running request holds.

import { pixel } from "../../colours";
import type { Row } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { type Found, NOTHING } from "../../data/levels";
import { count, duration, words } from "../../format";
import { Image } from "../../image";
import { rowId, selectableRows } from "../../inspect/select";
import { plotWidth } from "../../view";
import type { Descriptor } from "../descriptor";
import { greatest, type Hit, Lane } from "../lane";
import { CAUSES, causesOf, PINS } from "./causes";
import { describePin } from "./inspect";

class PinsLane extends Lane {
  private found: Found<"pins"> = NOTHING;

  constructor(engine: Engine) {
    super(engine, descriptor);
  }

  // How many blocks each cause, by its place in `CAUSES`, holds at each pixel.
  private levels(): Map<number, Float64Array> {
    const width = Math.ceil(plotWidth()), levels = new Map<number, Float64Array>(), { scale, origin } = this.places;
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns"), causes = causesOf(columns);
      for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
        const end = Number.isNaN(ends[row]!) ? Infinity : ends[row]!, cause = causes[row]!;
        if (end < this.from) continue;
        let held = levels.get(cause);
        if (!held) levels.set(cause, held = new Float64Array(width + 1));
        const low = Math.max(0, Math.floor(starts[row]! * scale + origin)),
          high = Math.min(width, Math.max(low + 1, Math.ceil(end * scale + origin)));
        held[low]! += 1;
        held[high]! -= 1;
      }
    }
    for (const held of levels.values()) for (let x = 1; x <= width; x++) held[x]! += held[x - 1]!;
    return levels;
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.table("pins").find(this.from, this.to);
    const levels = this.levels(), width = Math.ceil(plotWidth()), sums = new Float64Array(width + 1);
    for (const held of levels.values()) for (let x = 0; x <= width; x++) sums[x]! += held[x]!;
    const most = Math.max(1, greatest(sums)), toY = this.scale(most, [0, most]);
    const here = CAUSES.map((cause, place) => ({ cause, held: levels.get(place) })).filter(({ held }) => held);
    this.explain("blocks, by cause", here.map(({ cause }) => [words(cause), PINS[cause]]));
    const floor = new Float64Array(width + 1), image = new Image(this.height, 0);
    for (const { held, cause } of here) {
      const tone = pixel(PINS[cause]);
      for (let x = 0; x < width; x++) {
        const top = Math.round(toY(floor[x]! + held![x]!));
        if (held![x]) image.bar(x, top, 1, Math.round(toY(floor[x]!)) - top, tone);
        floor[x]! += held![x]!;
      }
    }
    image.put(this.context, 0);
  }

  // The latest pin that holds at this time.
  override hit(x: number): Hit | null {
    const time = this.time(x), slack = (this.to - this.from) / plotWidth();
    let best: Row<"pins"> | null = null, held = 0;
    for (const { columns } of this.found.parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns");
      for (let row = 0; row < columns.rows && starts[row]! <= time + slack; row++) {
        if (ends[row]! < time - slack) continue;
        held++;
        best = { columns, row };
      }
    }
    if (!best) return null;
    const { columns, row } = best, start = columns.num("start_ns")[row]!, end = columns.at("end_ns", row);
    return {
      selection: {
        kind: "pin",
        engine: this.engine,
        id: rowId(columns, row),
        row: best,
        span: [start, end ?? this.to],
      },
      lines: [
        `${count(held)} blocks pinned here`,
        `latest: block ${count(columns.at("block", row))}, ${words(columns.text("cause", row) ?? "")}`,
        end === null
          ? "still held when the recording ended"
          : `for ${duration(end - start)}, ended: ${words(columns.text("end_reason", row) ?? "unknown")}`,
      ],
    };
  }
}

export const descriptor: Descriptor = {
  name: "pins",
  place: 90,
  title: "Pinned blocks",
  about: "Blocks held by something else than a running request, by cause",
  needs: ["pins"],
  height: { usual: 62 },
  create: (engine) => new PinsLane(engine),
  selects: selectableRows("pin", (engine) => engine.table("pins"), describePin),
  words: [["pinned", "held by something else than a running request"]],
};
