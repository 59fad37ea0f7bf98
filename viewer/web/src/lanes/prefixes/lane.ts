// The tree of hot prefixes: of each, the blocks that hold it over time, and its lookups.

import "./style.css";
import { colour } from "../../colours";
import { lastAtMost } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { count, isolated, share, shorten } from "../../format";
import { isSelected, LEFT, plotWidth, RIGHT, view } from "../../view";
import type { Descriptor } from "../descriptor";
import type { Hit } from "../lane";
import { ROW, RowsLane } from "../rows-lane";
import { prefix } from "./selectable";
import { placeOf, rowsOf, type Tree, treeOf, usersOf } from "./tree";

const BAR = 9, INDENT = 9, LABEL = 26, MARK = 3, MOST_INDENTS = 6;

class PrefixesLane extends RowsLane {
  private tree: Tree | null = null;

  constructor(engine: Engine) {
    super(engine, descriptor, "prefix", "prefixes", `Hot prefixes${engine.title ? ` of ${engine.title}` : ""}`);
  }

  override paint(): void {
    this.tree = treeOf(this.engine);
    this.timeGrid();
    if (!this.tree) return;
    const { prefixes: columns } = this.tree;
    const [first, end] = this.layOut(columns.rows, 4);
    for (let row = first; row < end; row++)
      this.paintPrefix(this.tree, row, row * ROW - this.scroller.scrollTop + 2);
  }

  // As high as the share of the prefix that is held; what is in use of it is darker.
  private paintPrefix(tree: Tree, row: number, y: number): void {
    const { prefixes: columns, levels } = tree, number = columns.num("prefix")[row]!;
    const chosen = isSelected("prefix", this.engine, number);
    const [low, high] = rowsOf(levels, number), times = levels.num("start_ns"), most = columns.num("most_blocks")[row]!;
    const held = levels.num("held_blocks"), used = levels.num("used_blocks"), floor = y + ROW - 3;
    const end = view.width - RIGHT, last = (this.engine.run.work_ns?.[1] ?? Infinity) as number;
    const begin = Math.max(low, lastAtMost(times, this.from, low, high));
    for (let at = begin; at < high && times[at]! <= this.to; at++) {
      const from = Math.max(LEFT, this.x(times[at]!)),
        to = Math.min(end, this.x(at + 1 < high ? times[at + 1]! : Math.max(last, times[at]!)));
      this.bar("cached", from, to, floor, held[at]! / most);
      this.bar("used", from, to, floor, used[at]! / most);
    }
    const lookups = levels.num("lookups"), looked = levels.num("looked_up_blocks"), hits = levels.num("hit_blocks");
    for (let at = begin; at < high && times[at]! <= this.to; at++) {
      const x = this.x(times[at]!), cold = at === rowFirstLooked(lookups, low, high);
      if (!lookups[at] || x < LEFT || x > end) continue;
      this.context.fillStyle = colour(hits[at] === looked[at] ? "decode" : cold ? "soft" : "evicted");
      this.context.fillRect(Math.round(x) - 1, y - 1, MARK, MARK + 1);
    }
    this.paintLabel(tree, row, y, chosen);
  }

  private bar(name: string, from: number, to: number, floor: number, part: number): void {
    if (part <= 0 || to < from) return;
    this.context.fillStyle = colour(name);
    const tall = Math.max(1, Math.min(1, part) * BAR);
    this.context.fillRect(from, floor - tall, Math.max(1, to - from), tall);
  }

  private paintLabel(tree: Tree, row: number, y: number, chosen: boolean): void {
    const { prefixes: columns } = tree, depth = Math.min(MOST_INDENTS, columns.num("depth")[row]!);
    const x = 8 + depth * INDENT, middle = y + ROW / 2 - 1;
    this.context.clearRect(0, y - 2, LEFT - 1, ROW);
    this.context.strokeStyle = colour("line");
    this.context.lineWidth = 1;
    if (depth) {
      this.context.beginPath();
      this.context.moveTo(x - 6.5, y - 4);
      this.context.lineTo(x - 6.5, middle + 0.5);
      this.context.lineTo(x - 2, middle + 0.5);
      this.context.stroke();
    }
    this.context.textAlign = "left";
    this.context.fillStyle = colour(chosen ? "ink" : "soft");
    const tokens = `${count(columns.num("tokens")[row])} tok`;
    this.context.fillText(
      `${tokens} · ${isolated(shorten(usersOf(tree, row), LABEL - tokens.length))}`,
      x,
      middle,
      LEFT - x - 6,
    );
    if (!chosen) return;
    this.context.strokeStyle = colour("accent");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(LEFT + 0.5, y - 1.5, plotWidth() - 1, ROW - 1);
  }

  override hit(x: number, y: number): Hit | null {
    const tree = this.tree, row = Math.floor((y - 23 + this.scroller.scrollTop - 2) / ROW);
    if (!tree || y < 23 || row < 0 || row >= tree.prefixes.rows) return null;
    const { prefixes: columns, levels } = tree, number = columns.num("prefix")[row]!;
    const [low, high] = rowsOf(levels, number), at = lastAtMost(levels.num("start_ns"), this.time(x), low, high);
    const lookups = columns.num("lookups")[row]!, sizes = columns.num("most_blocks")[row]!;
    const lines = [
      `Prefix ${number}: ${placeOf({ columns, row })}`,
      `${count(lookups)} lookups by ${usersOf(tree, row)}`,
      `${count(columns.at("hit_tokens", row))} tokens saved: ${
        share(columns.at("hit_tokens", row), columns.num("looked_up_tokens")[row])
      } of those looked up`,
    ];
    if (x >= LEFT) {
      const held = at < low ? 0 : levels.num("held_blocks")[at]!, used = at < low ? 0 : levels.num("used_blocks")[at]!;
      lines.push(`here: ${count(held)} of at most ${count(sizes)} blocks held, ${count(used)} of them in use`);
    }
    const span: [number, number] = [columns.num("start_ns")[row]!, columns.num("end_ns")[row]!];
    return { selection: { kind: "prefix", engine: this.engine, id: number, span }, lines };
  }

  override get listed(): number[] {
    return this.tree ? [...this.tree.prefixes.num("prefix")] : [];
  }

  protected override rowOf(id: number): number {
    return id - 1;
  }
}

// The stretch of the first lookup: what it missed was never there.
function rowFirstLooked(lookups: ArrayLike<number>, low: number, high: number): number {
  for (let at = low; at < high; at++) if (lookups[at]) return at;
  return -1;
}

export const descriptor: Descriptor<PrefixesLane> = {
  name: "prefixes",
  place: 60,
  title: "Hot prefixes",
  about: "The tree of prefixes that most prompts share: of each, the blocks that hold it over time, and its lookups",
  needs: ["prefixes"],
  height: { usual: 98, tall: 140, several: 98 },
  create: (engine) => new PrefixesLane(engine),
  legend: () => ({
    unit: "",
    entries: [
      ["held and in use", "used"],
      ["held, free", "cached"],
      ["lookup: found", "decode"],
      ["not all found", "evicted"],
      ["first", "soft"],
    ],
  }),
  selects: prefix,
  words: [["prefix", "a run of blocks that exactly the same prompts begin or go on with"]],
};
