// The panel of a hot prefix: who uses it, what it saves, what holding it costs.

import type { NumberName } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { el, link, outside, section } from "../../dom";
import { bytes, clock, count, duration, share, shorten } from "../../format";
import { selectRequest } from "../../inspect/select";
import { isSelected, relate, type Selection } from "../../view";
import { selectPrefix } from "./select";
import { loadTree, placeOf, rowsOf, type Tree } from "./tree";

const MOST_NAMED = 6;

// A session's row of the users: its requests and what they found.
function userItem(engine: Engine, { users }: Tree, row: number): HTMLElement {
  const request = users.num("request")[row]!, requests = users.num("requests")[row]!;
  const found = share(users.num("hit_tokens")[row], users.num("looked_up_tokens")[row]);
  return el(
    "li",
    "",
    link(shorten(users.text("session", row) ?? "without a session", 30), () => void selectRequest(engine, request)),
    `: ${count(requests)} request${requests === 1 ? "" : "s"}, ${found} found`,
  );
}

export async function describePrefix({ engine, id }: Selection<"prefixes">): Promise<Node[]> {
  const tree = await loadTree(engine), columns = tree?.prefixes, row = columns?.num("prefix").indexOf(id) ?? -1;
  if (!tree || !columns || row < 0) return [el("p", "", `Prefix ${count(id)} is not in this page.`)];
  const at = (name: NumberName<"prefixes">) => columns.at(name, row);
  const to = (number: number) => link(`prefix ${number}`, () => void selectPrefix(engine, number));
  const parents = columns.num("parent"), numbers = columns.num("prefix");
  const below = [...numbers].filter((_, place) => parents[place] === id);
  const more = below.length > MOST_NAMED ? ` and ${count(below.length - MOST_NAMED)} more` : "";
  const blockBytes = engine.facts["block_bytes"] as number | null | undefined, most = at("most_blocks")!;
  const span = engine.totals["span_ns"] ?? 0, room = engine.pool * span;
  const held = at("held_block_ns")!, used = at("used_block_ns")!, saved = at("hit_tokens"), lookups = at("lookups")!;
  const sessions = at("sessions") ? `, ${count(at("sessions"))} session${at("sessions") === 1 ? "" : "s"}` : "";
  const [low, high] = rowsOf(tree.users, id), list = el("ul", "plain");
  for (let user = low; user < high; user++) list.append(userItem(engine, tree, user));
  const unnamed = at("sessions")! - (high - low);
  if (unnamed > 0) list.append(el("li", "unit", `and ${count(unnamed)} more sessions`));
  if (isSelected("prefix", engine, id)) relate([...tree.users.num("request").slice(low, high)]);
  const blockSeconds = (ns: number) => `${(ns / 1e9).toLocaleString("en-US", { maximumFractionDigits: 1 })} block-s`;
  return [
    el("p", "kind", "Hot prefix"),
    el("h2", "", outside(placeOf({ columns, row }))),
    ...section("", [
      ["prefix", `${count(id)} of ${count(columns.rows)} in this page`],
      ["goes on from", at("parent") === null ? "the prompt's start" : to(at("parent")!)],
      [
        "goes on with",
        below.length
          ? el("span", "", ...below.slice(0, MOST_NAMED).flatMap((number, i) => [i ? ", " : "", to(number)]), more)
          : null,
      ],
      ["block hash", columns.text("block_hash", row)],
    ]),
    el(
      "h3",
      "",
      `Who uses it: ${count(lookups)} lookups${sessions}`,
    ),
    list,
    ...section("What it saves", [
      ["found", saved === null ? "unknown" : `${count(saved)} tokens`],
      ["of those looked up", share(saved, at("looked_up_tokens"))],
      [
        "lost",
        saved === null ? null : `${count(Math.max(0, at("repeated_tokens")! - saved))} tokens that were there before`,
      ],
      ["looked up", `${clock(at("start_ns"), 1e6)} to ${clock(at("end_ns"), 1e6)}`],
    ]),
    ...section("What it costs to hold", [
      ["at most", `${count(most)} blocks${blockBytes ? `, ${bytes(most * blockBytes)}` : ""}`],
      ["in all", blockSeconds(held)],
      ["of the pool", room ? share(held, room) : null],
      ["of that in use", `${blockSeconds(used)} (${share(used, held)})`],
      ["evicted", `${count(at("evicted_blocks"))} blocks`],
      ["saved for it", saved && held ? `${(saved / (held / 1e9)).toPrecision(3)} tokens a block-s` : null],
      [
        "last looked up",
        duration(Math.max(0, (engine.run.work_ns?.[1] ?? at("end_ns")!) - at("end_ns")!)).concat(" before the end"),
      ],
    ]),
  ];
}
