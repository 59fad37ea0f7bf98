// GPU activities from a profile: a row a stream where kernels can be told apart, shares by category where not.

import "./style.css";
import { colour, pixel } from "../../colours";
import { lastAtMost, type Row } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { type Found, NOTHING } from "../../data/levels";
import { clock, count, duration, shorten, words } from "../../format";
import { Image } from "../../image";
import { rowId, selectableRows } from "../../inspect/select";
import { isSelected, LEFT, plotWidth, view } from "../../view";
import type { Descriptor } from "../descriptor";
import { type Hit, Lane } from "../lane";
import { Activities, streamName, toneOf, TONES } from "./activities";
import { describeKernel } from "./inspect";

const NAMES: Record<(typeof TONES)[number], string> = {
  attention: "attention",
  gemm: "gemm",
  "kv-write": "KV write",
  copy: "copies",
  norm: "norm, activation",
  communication: "communication",
  sampling: "sampling",
  "other-kernel": "other",
  own: "kvtrace's timers",
};

const MOST_STREAMS = 8, UNDERLINE = 3;

class KernelsLane extends Lane {
  private found: Found<"kernels" | "kernel_bins"> = NOTHING;
  private streams: string[] = [];

  constructor(engine: Engine) {
    super(engine, descriptor);
  }

  override paint(): void {
    this.timeGrid();
    this.found = this.engine.kernels!.find(this.from, this.to);
    if (this.found.exact) this.kernels();
    else this.shares();
    this.unprofiled();
  }

  private get rowHeight(): number {
    return Math.max(4, Math.floor(this.height / Math.max(1, this.streams.length)));
  }

  private kernels(): void {
    const seen = new Set<string>();
    this.eachInSight((chunk, row) => seen.add(chunk.streams[chunk.stream[row]!]!));
    const all = [...seen].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    this.streams = all.slice(0, MOST_STREAMS);
    this.explain(
      `by GPU/stream${all.length > MOST_STREAMS ? `, ${MOST_STREAMS} of ${count(all.length)}` : ""}`,
      this.legendOf(),
    );
    const each = this.rowHeight, image = new Image(this.height, 0);
    this.streams.forEach((name, index) => this.paintStream(image, name, index * each, each));
    image.put(this.context, 0);
    this.context.textAlign = "right";
    this.context.fillStyle = colour("soft");
    this.streams.forEach((name, index) => this.context.fillText(name, LEFT - 5, (index + 0.5) * each));
    this.outline(each);
  }

  // A pixel's column is filled as far as the stream was busy in its time, by category; the selected step's are underlined.
  private paintStream(image: Image, name: string, top: number, tall: number): void {
    const width = image.width, kinds = TONES.length, busy = new Float32Array(width * kinds),
      mine = new Uint8Array(width);
    const { scale, origin } = this.places, now = view.selection;
    const step = now?.kind === "step" && now.engine === this.engine ? now.id : null;
    this.eachInSight((chunk, row) => {
      if (chunk.streams[chunk.stream[row]!] !== name) return;
      const start = Math.max(0, chunk.starts[row]! * scale + origin),
        end = Math.min(width, chunk.ends[row]! * scale + origin);
      for (let x = Math.floor(start); x < width && (x < end || x === Math.floor(start)); x++) {
        busy[x * kinds + chunk.tone[row]!]! += Math.max(1e-3, Math.min(x + 1, end) - Math.max(x, start));
        if (chunk.steps[row] === step) mine[x] = 1;
      }
    });
    const tones = TONES.map(pixel), floor = Math.min(image.height, top + tall - 1), room = floor - top - 1;
    for (let x = 0; x < width; x++) {
      let y = floor;
      for (let kind = 0; kind < kinds; kind++) {
        const amount = busy[x * kinds + kind]!;
        if (!amount) continue;
        const end = Math.max(top + 1, y - Math.max(1, Math.round(amount * room)));
        while (y > end) image.pixels[--y * width + x] = tones[kind]!;
      }
      if (mine[x]) { for (let at = floor - UNDERLINE; at < floor; at++) image.pixels[at * width + x] = pixel("ink"); }
    }
  }

  private outline(each: number): void {
    const now = view.selection;
    if (!now?.row?.columns.is("kernels") || !isSelected("kernel", this.engine, now.id)) return;
    const { columns, row } = now.row, top = this.streams.indexOf(streamName(columns, row)) * each;
    const x = this.x(columns.num("start_ns")[row]!), end = this.x(columns.num("end_ns")[row]!);
    if (top < 0 || end < LEFT || x > LEFT + plotWidth()) return;
    this.context.strokeStyle = colour("ink");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(x - 1, top, Math.max(2, end - x) + 2, each);
  }

  // The share of each bin's time that each category ran, stacked.
  private shares(): void {
    this.explain("share of the time", this.legendOf());
    const toY = this.scale(1, [0, 0.5, 1], (value) => `${value * 100}%`);
    for (const { columns } of this.found.parts) {
      if (!columns.is("kernel_bins")) continue;
      const starts = columns.num("start_ns"), ends = columns.num("end_ns"), busy = columns.num("busy_ns");
      let before = NaN, floor = 0;
      for (let row = 0; row < columns.rows; row++) {
        if (starts[row] !== before) [before, floor] = [starts[row]!, 0];
        const share = busy[row]! / (ends[row]! - starts[row]!), x = Math.max(LEFT, this.x(starts[row]!));
        const end = Math.min(LEFT + plotWidth(), this.x(ends[row]!));
        this.context.fillStyle = colour(TONES[toneOf(columns.text("category", row))]!);
        if (end > x)
          this.context.fillRect(
            x,
            toY(Math.min(1, floor + share)),
            Math.max(1, end - x),
            toY(floor) - toY(Math.min(1, floor + share)),
          );
        floor = Math.min(1, floor + share);
      }
    }
  }

  // Where the engine worked and nothing was profiled, the GPU was not idle: it is unknown.
  private unprofiled(): void {
    const [from, to] = this.engine.run.work_ns ?? [0, 0], { from_ns, to_ns } = this.engine.contents.kernels!;
    for (const [start, end] of [[from, Math.min(from_ns, to)], [Math.max(to_ns, from), to]] as const) {
      const x = Math.max(LEFT, this.x(start)), stop = Math.min(LEFT + plotWidth(), this.x(end));
      if (stop - x < 2) continue;
      this.context.fillStyle = colour("none");
      this.context.fillRect(x, 0, stop - x, this.height);
      this.context.fillStyle = colour("soft");
      this.context.textAlign = "center";
      const text = "not in the profile";
      if (this.widthOf(text) < stop - x) this.context.fillText(text, (x + stop) / 2, this.height / 2);
    }
  }

  // Categories that occur in the recording.
  private legendOf(): [string, string][] {
    const tones = new Set(Object.keys(this.engine.contents.kernels!.busy_ns).map(toneOf));
    return TONES.filter((_, code) => tones.has(code)).map((tone) => [NAMES[tone], tone]);
  }

  private eachInSight(run: (chunk: Activities, row: number) => void): void {
    for (const { columns } of this.found.parts) {
      if (!columns.is("kernels")) continue;
      const chunk = Activities.of(columns), [low, high] = chunk.range(this.from, this.to);
      for (let row = low; row < high; row++) if (chunk.ends[row]! >= this.from) run(chunk, row);
    }
  }

  override hit(x: number, y: number): Hit | null {
    if (!this.found.exact)
      return { selection: null, lines: ["zoom in to see single kernels", clock(this.time(x), 1e5)] };
    const wanted = this.streams[Math.floor(y / this.rowHeight)];
    const slack = 2 * (this.to - this.from) / plotWidth(), time = this.time(x);
    let best: Row<"kernels"> | null = null, nearest = slack;
    for (const { columns } of this.found.parts) {
      if (!columns.is("kernels")) continue;
      const chunk = Activities.of(columns), [low] = chunk.range(time - slack, time),
        high = lastAtMost(chunk.starts, time + slack) + 1;
      for (let row = low; row < high; row++) {
        const off = Math.max(0, chunk.starts[row]! - time, time - chunk.ends[row]!);
        if (off < nearest && chunk.streams[chunk.stream[row]!] === wanted) [best, nearest] = [{ columns, row }, off];
      }
    }
    if (!best) return null;
    const { columns, row } = best as Row<"kernels">;
    const start = columns.num("start_ns")[row]!, end = columns.num("end_ns")[row]!, step = columns.at("step", row);
    return {
      selection: {
        kind: "kernel",
        engine: this.engine,
        id: rowId(columns, row),
        row: { columns, row },
        span: [start, end],
      },
      lines: [
        shorten(columns.text("name", row) ?? "", 70),
        `${words(columns.text("category", row) ?? "")}, ${duration(end - start)} from ${clock(start, 1e3)}`,
        `GPU ${streamName(columns, row).replace("/", ", stream ")}${step === null ? "" : `, step ${count(step)}`}`,
      ],
    };
  }
}

export const descriptor: Descriptor = {
  name: "kernels",
  place: 100,
  title: "GPU kernels",
  about: "What the GPU did, by category",
  needs: ["kernels"],
  height: { usual: 162 },
  create: (engine) => new KernelsLane(engine),
  selects: selectableRows("kernel", (engine) => engine.kernels, describeKernel),
};
