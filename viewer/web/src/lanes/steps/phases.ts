// What the tokens of a step are for: names and colours, from the bottom of a bar.

import type { Phase } from "../../data/contract";

export const NAMES: Record<Phase, [name: string, tone: string]> = {
  decode: ["decode", "decode"],
  prefill: ["prefill", "prefill"],
  chunked_prefill: ["chunked prefill", "chunked"],
  resumed: ["resumed", "resumed"],
};

export const PHASES = Object.keys(NAMES) as Phase[];
