// A chunk of GPU activities as numbers, so that drawing a frame looks up no text.

import { type Columns, lastAtMost, type Numbers, perChunk } from "../../data/columns";

const TONE_OF: Record<string, string> = {
  attention: "attention",
  gemm: "gemm",
  kv_write: "kv-write",
  copy: "copy",
  memcpy: "copy",
  memset: "copy",
  norm_activation: "norm",
  communication: "communication",
  sampling: "sampling",
  kvtrace: "own",
};

// Colours of categories, in the order of the legend.
export const TONES = [
  "attention",
  "gemm",
  "kv-write",
  "copy",
  "norm",
  "communication",
  "sampling",
  "other-kernel",
  "own",
] as const;
const CODE = new Map(TONES.map((tone, code) => [tone as string, code]));

export const toneOf = (category: string | null): number => CODE.get(TONE_OF[category ?? ""] ?? "other-kernel")!;

export class Activities {
  readonly starts: Numbers;
  readonly ends: Numbers;
  readonly steps: Numbers;
  // Each one's index into `TONES`, and into `streams`.
  readonly tone: Uint8Array;
  readonly stream: Uint16Array;
  readonly streams: string[] = [];
  // The longest that anything before a row lasts: where to begin looking for what is still running.
  private readonly latest: Float64Array;

  private constructor(columns: Columns<"kernels">) {
    [this.starts, this.ends, this.steps] = [columns.num("start_ns"), columns.num("end_ns"), columns.num("step")];
    const rows = columns.rows, known = new Map<string, number>(), tones = new Map<string | null, number>();
    [this.tone, this.stream, this.latest] = [new Uint8Array(rows), new Uint16Array(rows), new Float64Array(rows)];
    for (let row = 0, last = -Infinity; row < rows; row++) {
      const category = columns.text("category", row), name = streamName(columns, row);
      if (!tones.has(category)) tones.set(category, toneOf(category));
      if (!known.has(name)) {
        known.set(name, known.size);
        this.streams.push(name);
      }
      this.tone[row] = tones.get(category)!;
      this.stream[row] = known.get(name)!;
      this.latest[row] = last = Math.max(last, this.ends[row]!);
    }
  }

  static readonly of = perChunk((columns: Columns<"kernels">) => new Activities(columns));

  // The rows that may overlap a stretch of time: from the first up to, without, the second.
  range(from: number, to: number): [number, number] {
    return [lastAtMost(this.latest, from) + 1, lastAtMost(this.starts, to) + 1];
  }
}

export const streamName = (columns: Columns<"kernels">, row: number): string =>
  `${columns.at("device", row) ?? "?"}/${columns.at("stream", row) ?? "?"}`;
