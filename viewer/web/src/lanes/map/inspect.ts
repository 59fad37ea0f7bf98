// What the panel says about a KV block: its life, from the finest changes there are.

import { load } from "../../data/chunks";
import { lastAtMost } from "../../data/columns";
import { type Engine, overlapping } from "../../data/engine";
import { el, link, section } from "../../dom";
import { clock, count, duration, shorten, times } from "../../format";
import { selectRequest, selectStep } from "../../inspect/select";
import { isSelected, relate, type Selection } from "../../view";
import { EMPTY, STATES, USED } from "./states";
import { Tile } from "./tile";

const AROUND = 14;

export async function describeBlock({ engine, id, time = 0 }: Selection): Promise<Node[]> {
  const title = el("h2", "", `KV block ${count(id)}`);
  const [reference] = overlapping(engine.blocks.finest, time, time).slice(-1);
  if (!reference) return [title, el("p", "", "Its changes around this time are not in this page.")];
  const tile = Tile.of(await load(reference.id)), at = tile.nearest(id);
  if (at < 0 || tile.blocks[at] !== id)
    return [title, el("p", "", "It did not change in this stretch of the recording.")];
  const first = tile.first[at]!, last = tile.first[at + 1]!, now = lastAtMost(tile.time, time / 1e3, first, last);
  const step = await engine.stepAt(time), owner = now >= first ? tile.owner[now]! : -1;
  if (owner >= 0) {
    await engine.request(owner);
    if (isSelected("block", engine, id)) relate([owner]);
  }
  const who = (request: number) => link(shorten(engine.name(request), 28), () => void selectRequest(engine, request));
  const list = el("ul", "plain");
  let uses = 0, evictions = 0;
  for (let i = first; i < last; i++) {
    if (tile.state[i]! >= USED) uses++;
    if (tile.evicted[i]) evictions++;
  }
  for (let i = Math.max(first, now - AROUND / 2); i < Math.min(last, Math.max(first, now) + AROUND / 2); i++) {
    const request = tile.owner[i]!;
    if (request >= 0) await engine.request(request);
    const end = i + 1 < last ? tile.time[i + 1]! - tile.time[i]! : null;
    const item = el(
      "li",
      i === now ? "now" : "",
      `${clock(tile.time[i]! * 1e3, 1e5)}: ${STATES[tile.state[i]!]![0]}`,
      end === null ? "" : ` for ${duration(end * 1e3)}`,
    );
    if (request >= 0) item.append(tile.state[i]! >= USED ? ", " : ", last ", who(request));
    if (tile.evicted[i]) item.append(": what it held was evicted");
    list.append(item);
  }
  return [
    title,
    ...section(`At ${clock(time, 1e5)}`, [
      ["state", now < first ? "not used yet" : STATES[tile.state[now]!]![0]],
      [
        "since",
        now < first ? null : `${clock(tile.time[now]! * 1e3, 1e5)} (${duration(time - tile.time[now]! * 1e3)})`,
      ],
      [now >= first && tile.state[now]! >= USED ? "held by" : "last used by", owner < 0 ? null : who(owner)],
      ["step", step === null ? null : link(`step ${count(step)}`, () => void selectStep(engine, step))],
      ["changes here", `${count(last - first)}, in use ${times(uses)}, evicted ${times(evictions)}`],
    ]),
    ...await evicted(engine, tile, now, last, who),
    el("h3", "", "Its life around then"),
    list,
    ...await pins(engine, id),
  ];
}

// Of the content that the block has then: when it was evicted, and for whom.
async function evicted(
  engine: Engine,
  tile: Tile,
  now: number,
  last: number,
  who: (request: number) => Node,
): Promise<Node[]> {
  let next = now + 1;
  while (next < last && !tile.evicted[next]) next++;
  if (next >= last || tile.state[now] === EMPTY) return [];
  const time = tile.time[next]! * 1e3, step = await engine.stepAt(time);
  // It is evicted first and then allocated, in the same step.
  let taken = next;
  while (taken < last && tile.state[taken]! < USED) taken++;
  const taker = taken < last && await engine.stepAt(tile.time[taken]! * 1e3) === step ? tile.owner[taken]! : -1;
  if (taker >= 0) await engine.request(taker);
  return section("Who evicted its content", [
    ["evicted for", taker < 0 ? "nobody in that step" : who(taker)],
    [
      "when",
      el(
        "span",
        "",
        `${clock(time, 1e5)}${step === null ? "" : ", "}`,
        step === null ? "" : link(`step ${count(step)}`, () => void selectStep(engine, step)),
      ),
    ],
  ]);
}

async function pins(engine: Engine, block: number): Promise<Node[]> {
  const list = el("ul", "plain");
  for (const reference of engine.contents.pins) {
    const columns = await load(reference.id), blocks = columns.num("block");
    for (let row = 0; row < columns.rows && list.children.length < AROUND; row++) {
      if (blocks[row] !== block) continue;
      const start = columns.num("start_ns")[row]!, end = columns.at("end_ns", row);
      list.append(
        el(
          "li",
          "",
          `${clock(start, 1e5)}: ${columns.text("cause", row)}, ${
            end === null ? "still held at the end" : duration(end - start)
          }`,
        ),
      );
    }
  }
  return list.children.length ? [el("h3", "", "Pins"), list] : [];
}
