// All lanes, from the top: the descriptors that the folders' lane.ts export.

import type { Descriptor, Selectable } from "./descriptor";

const found = import.meta.glob<Descriptor>("./*/lane.ts", { eager: true, import: "descriptor" });

export const LANES: readonly Descriptor[] = Object.values(found).sort((one, other) => one.place - other.place);

// Kinds of things to select, in the order in which the keys go through them: steps and requests first.
const isFirst = ({ name }: Descriptor) => name === "steps" || name === "requests";

export const SELECTABLES: readonly Selectable[] = [...LANES.filter(isFirst), ...LANES.filter((lane) => !isFirst(lane))]
  .flatMap(({ selects }) => selects ?? []);

export const selectableOf = (kind: string): Selectable | undefined =>
  SELECTABLES.find((selectable) => selectable.kind === kind);
