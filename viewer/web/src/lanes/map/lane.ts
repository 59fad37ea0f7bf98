// The KV map: block by time, coloured by state, by owner, or by how long ago it was used; pins and accesses over it.

import { colour, mix, pixel, toCss } from "../../colours";
import { type Columns, lastAtMost, perChunk } from "../../data/columns";
import type { Engine } from "../../data/engine";
import { type Found, NOTHING } from "../../data/levels";
import { el } from "../../dom";
import { clock, count, duration, words } from "../../format";
import { Image } from "../../image";
import { selectBlock } from "../../inspect/select";
import { changed, LEFT, plotWidth, select, type Selection, view } from "../../view";
import type { Descriptor, Selectable } from "../descriptor";
import { type Hit, Lane, type Legend } from "../lane";
import { CAUSES, causesOf, PINS } from "../pins/causes";
import { describeBlock } from "./inspect";
import { agePixel, agePixelOf, ownerPixel } from "./palette";
import { address, type Colour, COLOURS, settings } from "./settings";
import { CACHED, EMPTY, STATES, USED } from "./states";
import { Tile } from "./tile";

const ACCESS_STEPS = 60, ZOOM = 2;

// Which of some accesses are writes.
const writesOf = perChunk((columns: Columns<"accesses" | "access_bins">) =>
  Uint8Array.from({ length: columns.rows }, (_, row) => Number(columns.text("kind", row)?.includes("write")))
);

class MapLane extends Lane {
  private found: Found<"blocks"> = NOTHING;
  private readonly choice = el("select");
  private shown = "";

  constructor(engine: Engine) {
    super(engine, descriptor);
    this.choice.append(...Object.entries(COLOURS).map(([value, name]) => new Option(name, value)));
    this.choice.setAttribute("aria-label", "Colour the KV map by");
    this.choice.addEventListener("change", () => {
      settings.colour = this.choice.value as Colour;
      changed();
    });
    this.element.querySelector(".gutter b")!.after(this.choice);
  }

  private get range(): [number, number] {
    const blocks = Math.max(1, this.engine.contents.blocks.blocks);
    return [settings.range[0] * blocks, settings.range[1] * blocks];
  }

  private blockOf(row: number, rows: number): number {
    const [low, high] = this.range;
    return Math.min(this.engine.contents.blocks.blocks - 1, Math.floor(low + (row + 0.5) * (high - low) / rows));
  }

  private yOf(block: number): number {
    const [low, high] = this.range;
    return (block - low) / (high - low) * this.height;
  }

  override paint(): void {
    this.found = this.engine.blocks.find(this.from, this.to);
    const image = new Image(Math.round(this.height), pixel("free")), paint = this.painter();
    const origin = this.places.origin, scale = this.places.scale * 1e3;
    const from = this.from / 1e3, to = this.to / 1e3;
    const ages = settings.colour === "age" && !this.chosen;
    this.found.parts.forEach(({ columns, reference }, index) => {
      const tile = Tile.of(columns), { time, first } = tile;
      const next = this.found.parts[index + 1];
      const end = next
        ? Math.round(reference.to_ns! / 1e3 * scale + origin)
        : Math.min(image.width, Math.round(this.x(this.engine.run.last_ns ?? 0) - LEFT));
      const start = Math.max(0, Math.round(reference.from_ns! / 1e3 * scale + origin));
      let before = -1, previous = 0;
      for (let row = 0; row < image.height; row++) {
        const block = this.blockOf(row, image.height), at = tile.nearest(block);
        if (at < 0 || (this.found.exact && tile.blocks[at] !== block)) continue;
        if (at === before) {
          image.pixels.copyWithin(
            row * image.width + start,
            previous * image.width + start,
            previous * image.width + Math.min(end, image.width),
          );
          continue;
        }
        [before, previous] = [at, row];
        const last = first[at + 1]!;
        let i = Math.max(first[at]!, lastAtMost(time, from, first[at]!, last));
        for (; i < last && time[i]! <= to; i++) {
          const low = Math.max(start, Math.round(time[i]! * scale + origin));
          const high = i + 1 < last ? Math.max(low + 1, Math.round(time[i + 1]! * scale + origin)) : end;
          if (ages && tile.state[i] === CACHED) {
            for (let at = low; at < Math.min(high, end); at++)
              image.pixels[row * image.width + at] = agePixelOf((at - origin) / scale - time[i]!);
            continue;
          }
          const value = paint(tile, i);
          if (value && high > low) image.span(row, low, Math.min(high, end), value);
        }
      }
    });
    if (settings.colour === "state") this.pins(image);
    this.accesses(image);
    image.put(this.context, 0);
    this.labels();
    this.selected();
  }

  // The selected request, if it is this engine's.
  private get chosen(): Selection | null {
    const now = view.selection;
    return now?.kind === "request" && now.engine === this.engine ? now : null;
  }

  // The pixel of a change; 0 leaves what is there.
  private painter(): (tile: Tile, i: number) => number {
    const back = pixel("free"), chosen = this.chosen?.id ?? null;
    const states = STATES.map(([, tone]) => pixel(tone));
    const faded = states.map((value) => mix(value, back, 0.72));
    const mark = pixel("accent"), weak = mix(mark, back, 0.55);
    const plain = (tile: Tile, i: number): number => {
      const state = tile.state[i]!;
      if (settings.colour === "state") return states[state]!;
      if (state === EMPTY) return 0;
      if (settings.colour === "owner") {
        const own = ownerPixel(Math.max(0, tile.owner[i]!));
        return state >= USED ? own : mix(own, back, 0.6);
      }
      return state >= USED ? agePixel(0) : agePixelOf(this.to / 1e3 - tile.time[i]!);
    };
    if (chosen === null) return plain;
    return (tile, i) => {
      const state = tile.state[i]!;
      if (tile.owner[i] === chosen && state !== EMPTY) return state >= USED ? mark : weak;
      return settings.colour === "state" ? faded[state]! : mix(plain(tile, i) || back, back, 0.72);
    };
  }

  private pins(image: Image): void {
    const { parts } = this.engine.table("pins").find(this.from, this.to), [low, high] = this.range;
    const tall = image.height / (high - low), { scale, origin } = this.places;
    const tones = CAUSES.map((cause) => pixel(PINS[cause]));
    for (const { columns } of parts) {
      const starts = columns.num("start_ns"), ends = columns.num("end_ns"), blocks = columns.num("block"),
        causes = causesOf(columns);
      for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
        const end = Number.isNaN(ends[row]!) ? Infinity : ends[row]!;
        if (end < this.from) continue;
        const x = Math.round(starts[row]! * scale + origin),
          stop = Math.max(x + 1, Math.min(image.width, Math.round(end * scale + origin)));
        const top = Math.floor((blocks[row]! - low) * tall),
          bottom = Math.max(top + 1, Math.ceil((blocks[row]! + 1 - low) * tall));
        // The lower half: what the block is beside being pinned stays in sight where there is room.
        const begin = tall >= 4 ? Math.round((top + bottom) / 2) : top;
        const tone = tones[causes[row]!]!;
        image.bar(x, begin, stop - x, bottom - begin, tone);
      }
    }
  }

  // Reads and writes of steps whose accesses are in the page, where steps are wide enough to tell them apart.
  private accesses(image: Image): void {
    const steps = this.engine.steps.find(this.from, this.to);
    const wide = steps.parts.reduce((sum, { reference }) => sum + reference.rows, 0);
    if (!this.engine.contents.close_ups.steps.length || !steps.exact) return;
    const inWindow = steps.parts.flatMap(({ columns }) => {
      const starts = columns.num("start_ns"), numbers = columns.num("step");
      const low = Math.max(0, lastAtMost(starts, this.from)), high = lastAtMost(starts, this.to);
      return high - low > ACCESS_STEPS || !wide ? [] : Array.from(numbers.slice(low, high + 1));
    });
    const shown = new Set(inWindow), read = pixel("ink"), write = pixel("write"), { scale, origin } = this.places;
    for (const { step } of this.engine.contents.close_ups.steps) {
      for (const { columns } of shown.has(step) ? this.engine.accesses(step)!.find(this.from, this.to).parts : []) {
        const starts = columns.num("start_ns"), ends = columns.num("end_ns"), blocks = columns.num("block"),
          writes = writesOf(columns);
        const lasts = columns.is("access_bins") ? columns.num("last_block") : blocks;
        for (let row = 0; row < columns.rows && starts[row]! <= this.to; row++) {
          const x = Math.round(starts[row]! * scale + origin),
            end = Math.max(x + 1, Math.round(ends[row]! * scale + origin));
          if (end < 0) continue;
          const top = this.yOf(blocks[row]! + 0.25), bottom = Math.max(top + 1, this.yOf(lasts[row]! + 0.75));
          image.bar(x, Math.floor(top), end - x, Math.round(bottom) - Math.floor(top), writes[row] ? write : read);
        }
      }
    }
  }

  private labels(): void {
    this.context.fillStyle = colour("panel");
    this.context.fillRect(LEFT - 40, 0, 40, this.height);
    this.context.fillStyle = colour("soft");
    this.context.textAlign = "right";
    const [low, high] = this.range;
    this.context.fillText(count(Math.floor(low)), LEFT - 5, 6);
    this.context.fillText(count(Math.ceil(high) - 1), LEFT - 5, this.height - 6);
    this.choice.value = settings.colour;
    const every = (high - low) / Math.round(this.height);
    const coarse = every > 1 ? `1 of ${count(Math.ceil(every))} blocks a row` : "block by time";
    const key = `${settings.colour}${coarse}${this.engine.table("pins").find(-Infinity, Infinity).settled}${
      colour("ink")
    }`;
    if (key === this.shown) return;
    this.shown = key;
    if (settings.colour === "owner") {
      const cached = mix(ownerPixel(0), pixel("free"), 0.6);
      this.explain("a colour a request", [["in use", toCss(ownerPixel(0))], ["left in the cache", toCss(cached)]]);
    } else if (settings.colour === "age") {
      const ages: Legend = [["10 ms", 1e4], ["1 s", 1e6], ["100 s or more", 1e8]]
        .map(([name, idle]) => [name as string, toCss(agePixelOf(idle as number))]);
      this.explain("cached, unused for", [["in use", toCss(agePixel(0))], ...ages]);
    } else {
      const accesses: Legend = [["read in a step", "ink"], ["written in a step", "write"]];
      const closeUps = this.engine.contents.close_ups.steps.length > 0;
      this.explain(coarse, [...STATES, ...this.pinLegend(), ...(closeUps ? accesses : [])]);
    }
  }

  private pinLegend(): Legend {
    const { parts } = this.engine.table("pins").find(-Infinity, Infinity);
    const causes = new Set(parts.flatMap(({ columns }) => [...new Set(causesOf(columns))]));
    return CAUSES.filter((_, place) => causes.has(place)).map((cause) => [`pinned: ${words(cause)}`, PINS[cause]]);
  }

  private selected(): void {
    const now = view.selection;
    if (now?.kind !== "block" || now.engine !== this.engine) return;
    const y = this.yOf(now.id), tall = Math.max(3, this.yOf(now.id + 1) - y);
    this.context.strokeStyle = colour("ink");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(LEFT - 0.5, y - 1, plotWidth() + 1, tall + 2);
  }

  override hit(x: number, y: number): Hit | null {
    const time = this.time(x), rows = Math.round(this.height),
      wanted = this.blockOf(Math.min(rows - 1, Math.max(0, Math.floor(y))), rows);
    const part = this.found.parts.find(({ reference }) => reference.from_ns! <= time && time <= reference.to_ns!)
      ?? this.found.parts[this.found.parts.length - 1];
    if (!part) return null;
    const tile = Tile.of(part.columns), at = tile.nearest(wanted);
    if (at < 0) return null;
    if (this.found.exact && tile.blocks[at] !== wanted)
      return { selection: null, lines: [`Block ${count(wanted)}`, "never used here"] };
    const block = tile.blocks[at]!, first = tile.first[at]!, last = tile.first[at + 1]!;
    const i = lastAtMost(tile.time, time / 1e3, first, last);
    const lines = [`Block ${count(block)}`, clock(time, 1e5)];
    if (i < first) lines.push("not used yet");
    else {
      const [state] = STATES[tile.state[i]!]!, since = time - tile.time[i]! * 1e3, owner = tile.owner[i]!;
      lines.push(`${state} for ${duration(since)}`);
      if (owner >= 0) lines.push(`${tile.state[i]! >= USED ? "held by" : "last used by"} ${this.engine.name(owner)}`);
    }
    return { selection: { kind: "block", engine: this.engine, id: block, time }, lines };
  }

  // Where a block is, down from the lane's top.
  placeOf(block: number): number {
    return this.yOf(block + 0.5);
  }

  // Shows more or fewer blocks, around a place.
  override zoomRows(factor: number, y: number): boolean {
    const [low, high] = settings.range, middle = low + y / Math.max(1, this.height) * (high - low);
    const narrowest = Math.min(1, 8 / Math.max(1, this.engine.contents.blocks.blocks));
    const width = Math.min(1, Math.max(narrowest, (high - low) * factor));
    const start = Math.min(1 - width, Math.max(0, middle - (middle - low) * width / (high - low)));
    settings.range = [start, start + width];
    changed();
    return true;
  }
}

const block: Selectable = {
  kind: "block",
  describe: describeBlock,
  open: (engine, name, time) => selectBlock(engine, Number(name), time),
  async first(engine, from, to) {
    if (engine.blocks.empty) return false;
    selectBlock(engine, Math.floor(settings.range[0] * engine.contents.blocks.blocks), (from + to) / 2);
    return true;
  },
  next(now, by) {
    select({ ...now, id: Math.max(0, Math.min(now.engine.contents.blocks.blocks - 1, now.id + by)) });
  },
  numbered(engine, number) {
    if (number >= engine.contents.blocks.blocks) return null;
    const run = () => selectBlock(engine, number, (view.from + view.to) / 2 + engine.shift);
    return { label: `KV block ${count(number)}`, more: engine.title, run };
  },
};

export const descriptor: Descriptor<MapLane> = {
  name: "map",
  place: 50,
  title: "KV map",
  about: "State of every KV block over time",
  needs: ["blocks"],
  height: { usual: 160, tall: 200 },
  create: (engine) => new MapLane(engine),
  selects: block,
  keys: [{
    keys: ["[", "]"],
    help: ["Alt + wheel on the KV map, [ and ]", "show fewer or more blocks"],
    // Around the selected block, else from the top.
    run(lane, key) {
      const now = view.selection;
      lane.zoomRows(key === "[" ? ZOOM : 1 / ZOOM, now?.kind === block.kind ? lane.placeOf(now.id) : 0);
    },
  }, {
    keys: ["m"],
    help: ["m", "colour the KV map by state, owner, last use"],
    run() {
      const all = Object.keys(COLOURS) as Colour[];
      settings.colour = all[(all.indexOf(settings.colour) + 1) % all.length]!;
      changed();
    },
  }],
  words: [["shared", "more than one request refers to it"]],
  address,
};
