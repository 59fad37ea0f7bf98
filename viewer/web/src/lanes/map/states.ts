// States of a KV block: names and colours; a change's `state` is an index into `STATES`.

import { BLOCK_STATES } from "../../data/contract";

const NAMES: Record<(typeof BLOCK_STATES)[number], [name: string, tone: string]> = {
  empty: ["free", "free"],
  cached: ["free, still cached", "cached"],
  used: ["in use", "used"],
  shared: ["shared", "shared"],
};

export const STATES = BLOCK_STATES.map((state) => NAMES[state]);
export const EMPTY = BLOCK_STATES.indexOf("empty"), CACHED = BLOCK_STATES.indexOf("cached");
// From here on requests refer to it.
export const USED = BLOCK_STATES.indexOf("used");
