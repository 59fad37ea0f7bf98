// A hot prefix as a thing to select.

import { count } from "../../format";
import type { Match, Selectable } from "../descriptor";
import { describePrefix } from "./inspect";
import { selectPrefix } from "./select";
import { loadTree, placeOf, usersOf } from "./tree";

export const prefix: Selectable<"prefixes"> = {
  kind: "prefix",
  describe: describePrefix,
  open: async (engine, name) => void await selectPrefix(engine, Number(name)),
  async first(engine, from, to) {
    const columns = (await loadTree(engine))?.prefixes;
    const starts = columns?.num("start_ns"), ends = columns?.num("end_ns");
    const row = starts?.findIndex((start, each) => start <= to && ends![each]! >= from) ?? -1;
    return row >= 0 && await selectPrefix(engine, columns!.num("prefix")[row]!);
  },
  next: async ({ engine, id }, by) => void await selectPrefix(engine, id + by),
  async search(engine, text): Promise<Match[]> {
    const tree = "prefix".startsWith(text) ? await loadTree(engine) : null, columns = tree?.prefixes;
    return [...(columns?.num("prefix") ?? [])].slice(0, 4).map((number, row) => ({
      label: `Prefix ${number}: ${placeOf({ columns: columns!, row })}`,
      more: usersOf(tree!, row),
      run: () => void selectPrefix(engine, number),
    }));
  },
  numbered: (engine, number) =>
    number < 1 || number > (engine.contents.prefixes[0]?.rows ?? 0) ? null : {
      label: `Prefix ${count(number)}`,
      more: engine.title,
      run: () => void selectPrefix(engine, number),
    },
};
