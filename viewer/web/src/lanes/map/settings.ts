// How the KV map is shown. The page's address keeps it.

import type { AddressPart } from "../descriptor";

export const COLOURS = { state: "by state", owner: "by owner", age: "by last use" };
export type Colour = keyof typeof COLOURS;

export const settings = {
  colour: "state" as Colour,
  // The blocks in sight, as shares of the pool.
  range: [0, 1] as [number, number],
};

export const address: AddressPart = {
  write(address) {
    const { colour, range } = settings;
    if (colour !== "state") address.set("colour", colour);
    if (range[0] > 0 || range[1] < 1) address.set("blocks", range.map((share) => share.toFixed(4)).join("-"));
  },
  read(address) {
    const colour = address.get("colour") ?? "";
    settings.colour = colour in COLOURS ? colour as Colour : "state";
    const [low = NaN, high = NaN] = (address.get("blocks") ?? "").split("-").map(Number);
    settings.range = low >= 0 && high > low && high <= 1 ? [low, high] : [0, 1];
  },
};
