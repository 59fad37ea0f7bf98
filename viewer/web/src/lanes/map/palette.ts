// Colours of owners, and of how long nobody has used a block.

import { mix, parse } from "../../colours";

// Seven hues of Okabe and Ito's palette, each plain, lighter and darker: neighbours in number differ in hue.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442"];
// Cividis, from recent to old.
const AGES = ["#fee838", "#d9c55c", "#b3a772", "#918d79", "#72757d", "#575d6d", "#3b496c", "#12356e", "#00204d"];
const AGE_STEPS = 64, OLDEST_US = 100e6, YOUNGEST_US = 100, AGE_LEAST = 0.15;

const hues = HUES.map(parse);
const owners = [hues, hues.map((hue) => mix(hue, 0xffffffff, 0.35)), hues.map((hue) => mix(hue, 0xff000000, 0.35))]
  .flat();
const ages = Array.from({ length: AGE_STEPS }, (_, step) => {
  const at = step / (AGE_STEPS - 1) * (AGES.length - 1), low = Math.min(AGES.length - 2, Math.floor(at));
  return mix(parse(AGES[low]!), parse(AGES[low + 1]!), at - low);
});

export const ownerPixel = (owner: number): number => owners[owner % owners.length]!;

// `share`: 0 just used, 1 long ago.
export const agePixel = (share: number): number =>
  ages[Math.max(0, Math.min(AGE_STEPS - 1, Math.round(share * (AGE_STEPS - 1))))]!;

// The colour of a cached block that nobody has used for so long.
export function agePixelOf(idleUs: number): number {
  const share = Math.log(Math.max(1, idleUs / YOUNGEST_US)) / Math.log(OLDEST_US / YOUNGEST_US);
  return agePixel(AGE_LEAST + (1 - AGE_LEAST) * share);
}
