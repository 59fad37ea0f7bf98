// Why blocks are pinned, and the colours of that.

import { type Columns, perChunk } from "../../data/columns";
import type { PinCause } from "../../data/contract";

export const PINS: Record<PinCause, string> = {
  delayed_free: "pin-1",
  in_flight: "pin-2",
  async_load: "pin-3",
  connector: "pin-4",
  ttl: "pin-5",
  streaming: "pin-6",
};

export const CAUSES = Object.keys(PINS) as PinCause[];

// Each pin's cause, by its place in `CAUSES`.
export const causesOf = perChunk((columns: Columns<"pins">) => columns.codes("cause", CAUSES));
