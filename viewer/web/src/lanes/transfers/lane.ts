// Copies of KV between the GPU and other tiers.

import { colour, pixel } from "../../colours";
import type { Row } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { type Found, NOTHING } from "../../data/levels";
import { bandwidth, bytes, clock, count, duration } from "../../format";
import { Image } from "../../image";
import { rowId, selectableRows } from "../../inspect/select";
import { isSelected, LEFT, plotWidth, view } from "../../view";
import type { Descriptor } from "../descriptor";
import { greatest, type Hit, Lane, type Legend } from "../lane";
import { Copies, copyOf } from "./copies";
import { describeTransfer } from "./inspect";

const LEGEND: Legend = [["load, to the GPU (up)", "load"], ["store, from it (down)", "store"]];

interface Bar {
  x: number;
  top: number;
  width: number;
  tall: number;
}

class TransfersLane extends Lane {
  private found: Found<"transfers"> = NOTHING;
  private most = 0;

  constructor(engine: Engine) {
    super(engine, descriptor);
  }

  private get middle(): number {
    return Math.round(this.height / 2);
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.table("transfers").find(this.from, this.to);
    const chunks = this.found.parts.map(({ columns }) => Copies.of(columns));
    this.most = Math.max(0, ...chunks.map(({ rate }) => greatest(rate)));
    this.explain(this.most ? `up to ${this.most.toPrecision(3)} GB/s` : "bandwidth unknown", LEGEND);
    this.context.fillStyle = colour("line");
    this.context.fillRect(LEFT, this.middle, plotWidth(), 1);
    const image = new Image(this.height, 0), [down, up] = [new Int16Array(image.width), new Int16Array(image.width)];
    for (const copies of chunks) {
      for (let row = 0; row < copies.start.length; row++) {
        const bar = this.bar(copies, row), tallest = copies.up[row] ? up : down;
        if (!bar) continue;
        for (let x = bar.x - LEFT, end = x + bar.width; x < end; x++) if (bar.tall > tallest[x]!) tallest[x] = bar.tall;
      }
    }
    for (let x = 0; x < image.width; x++) {
      image.bar(x, this.middle - up[x]!, 1, up[x]!, pixel("load"));
      image.bar(x, this.middle + 1, 1, down[x]!, pixel("store"));
    }
    image.put(this.context, 0);
    this.outline();
  }

  // Where a transfer is drawn; null where it is out of sight.
  private bar({ start, end, rate, up }: Copies, row: number): Bar | null {
    if (end[row]! < this.from || start[row]! > this.to) return null;
    const x = Math.round(Math.max(LEFT, this.x(start[row]!))), stop = Math.min(LEFT + plotWidth(), this.x(end[row]!));
    const tall = Math.round(Math.max(4, (this.most ? rate[row]! / this.most : 0) * (this.middle - 4)));
    return { x, top: up[row] ? this.middle - tall : this.middle + 1, width: Math.max(2, Math.round(stop - x)), tall };
  }

  private outline(): void {
    for (const { columns } of view.selection?.kind === "transfer" ? this.found.parts : []) {
      for (let row = 0; row < columns.rows; row++) {
        if (!isSelected("transfer", this.engine, rowId(columns, row))) continue;
        const bar = this.bar(Copies.of(columns), row);
        if (!bar) return;
        this.context.strokeStyle = colour("ink");
        this.context.lineWidth = 1.5;
        this.context.strokeRect(bar.x - 1.5, bar.top - 1.5, bar.width + 3, bar.tall + 3);
      }
    }
  }

  // The transfer of this direction whose bar begins nearest.
  private nearest(x: number, y: number): Row<"transfers"> | null {
    let best: Row<"transfers"> | null = null, least = Infinity;
    for (const { columns } of this.found.parts) {
      const copies = Copies.of(columns);
      for (let row = 0; row < columns.rows; row++) {
        const bar = Boolean(copies.up[row]) === (y < this.middle) ? this.bar(copies, row) : null;
        if (!bar || x < bar.x - 3 || x > bar.x + bar.width + 3 || Math.abs(bar.x - x) >= least) continue;
        [best, least] = [{ columns, row }, Math.abs(bar.x - x)];
      }
    }
    return best;
  }

  override hit(x: number, y: number): Hit | null {
    const best = this.nearest(x, y);
    if (!best) return null;
    const { columns, row } = best, { start, took, by } = copyOf(columns, row);
    return {
      selection: {
        kind: "transfer",
        engine: this.engine,
        id: rowId(columns, row),
        row: best,
        span: [columns.num("start_ns")[row]!, columns.at("end_ns", row) ?? start + (took ?? 0)],
      },
      lines: [
        `${columns.text("direction", row)} ${columns.text("from_tier", row)} → ${columns.text("to_tier", row)}`,
        `${count(columns.at("blocks", row))} blocks, ${bytes(columns.at("bytes", row))}, ${
          bandwidth(columns.at("bytes", row), took)
        }`,
        `${duration(took)} ${by}, from ${clock(start, 1e5)}`,
      ],
    };
  }
}

export const descriptor: Descriptor = {
  name: "transfers",
  place: 80,
  title: "Transfers",
  about: "Transfers of KV by direction; a bar is as high as its bandwidth",
  needs: ["transfers"],
  height: { usual: 64 },
  create: (engine) => new TransfersLane(engine),
  selects: selectableRows("transfer", (engine) => engine.table("transfers"), describeTransfer),
};
