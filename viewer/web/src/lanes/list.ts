// All lanes, from the top. A new one is imported and named here.

import type { Descriptor, Selectable } from "./descriptor";
import { kernels } from "./kernels/lane";
import { limits } from "./limits/lane";
import { map } from "./map/lane";
import { pins } from "./pins/lane";
import { pool } from "./pool/lane";
import { prefixes } from "./prefixes/lane";
import { queue } from "./queue/lane";
import { requests } from "./requests/lane";
import { steps } from "./steps/lane";
import { tiers } from "./tiers/lane";
import { transfers } from "./transfers/lane";

export const LANES: readonly Descriptor[] = [
  steps,
  limits,
  queue,
  pool,
  map,
  prefixes,
  tiers,
  transfers,
  pins,
  kernels,
  requests,
];

// Kinds of things to select, in the order in which the keys go through them.
export const SELECTABLES: readonly Selectable[] = [...new Set([steps, requests, ...LANES])]
  .flatMap(({ selects }) => selects ?? []);

export const selectableOf = (kind: string): Selectable | undefined =>
  SELECTABLES.find((selectable) => selectable.kind === kind);
