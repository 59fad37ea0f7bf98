// A row for each request that is listed; only those in sight are drawn.

import "./style.css";
import { colour } from "../../colours";
import { peek } from "../../data/chunks";
import type { Row } from "../../data/columns";
import { REQUEST_STATES } from "../../data/contract";
import { type Engine, labelOf, nameOf } from "../../data/engine";
import { el } from "../../dom";
import { clock, count, duration, isolated, shorten, times } from "../../format";
import { changed, isSelected, LEFT, plotWidth, RIGHT, view } from "../../view";
import type { Descriptor } from "../descriptor";
import type { Hit, Legend } from "../lane";
import { ROW, RowsLane } from "../rows-lane";
import { hits } from "./hits";
import { Segments } from "./segments";
import { nextPreemption, request } from "./selectable";
import { COSTS, type Order, ORDERS, settings, USUAL } from "./settings";

const STATES: Legend = [
  ["queued", "queued", "thin"],
  ["prefill", "prefill"],
  ["decode", "decode"],
  ["preempted", "preempted", "line"],
  ["resumed", "resumed"],
];
// Of requests that no scheduler told of.
const UNTOLD: Legend = [["states unknown", "soft", "line"]];
const BAR = 10, LABEL = 27;

interface Listed extends Row<"requests"> {
  request: number;
}

// Each request's cost is read once: a view with many sorts them in every frame that moves it.
function worstFirst(listed: Listed[], cost: (row: Row<"requests">) => number): Listed[] {
  const costs = Float64Array.from(listed, cost);
  return Array.from(listed.keys()).sort((a, b) => costs[b]! - costs[a]! || a - b).map((index) => listed[index]!);
}

class RequestsLane extends RowsLane {
  private rows: Listed[] = [];
  private key = "";
  private readonly amount = el("span", "unit");
  private readonly order: HTMLSelectElement;

  constructor(engine: Engine) {
    const label = `Requests${engine.title ? ` of ${engine.title}` : ""}. Up and down scroll.`;
    super(engine, descriptor, "request", "scroller", label);
    const order = el("select", "", ...Object.entries(ORDERS).map(([value, name]) => new Option(name, value)));
    order.setAttribute("aria-label", "Order of the requests");
    order.value = settings.order;
    this.order = order;
    order.addEventListener("change", () => {
      settings.order = order.value as Order;
      changed();
    });
    const inWindow = el("input");
    inWindow.type = "checkbox";
    inWindow.checked = settings.inWindow;
    inWindow.addEventListener("change", () => {
      settings.inWindow = inWindow.checked;
      changed();
    });
    this.element.querySelector(".gutter b")!.after(this.amount, order, el("label", "", inWindow, " in window"));
  }

  private list(): void {
    const found = this.engine.requests.find(
      settings.inWindow ? this.from : -Infinity,
      settings.inWindow ? this.to : Infinity,
    );
    const key = `${found.parts.map(({ columns }) => columns.id).join()} ${
      settings.inWindow ? `${this.from} ${this.to}` : ""
    } ${settings.order}`;
    if (key === this.key) return;
    this.key = key;
    // The search and the address set it, too.
    this.order.value = settings.order;
    const listed: Listed[] = [];
    for (const { columns } of found.parts) {
      this.engine.learn(columns);
      const starts = columns.num("start_ns"), ends = columns.num("end_ns"), numbers = columns.num("request");
      for (let row = 0; row < columns.rows; row++) {
        if (settings.inWindow && (starts[row]! > this.to || ends[row]! < this.from)) continue;
        listed.push({ columns, row, request: numbers[row]! });
      }
    }
    this.rows = this.sort(listed);
    const all = this.engine.contents.requests.total;
    const which = this.engine.totals["finished_requests"] === null ? "evenly spread" : "the longest";
    this.amount.textContent = `${count(listed.length)} of ${count(all)}${found.exact ? "" : `: ${which}`}`;
  }

  private sort(listed: Listed[]): Listed[] {
    const { order } = settings;
    if (order === "arrival") return listed;
    if (order !== "job") return worstFirst(listed, COSTS[order]);
    const job = ({ columns, row }: Listed) => columns.text("session", row) ?? "";
    const start = ({ columns, row }: Listed) => columns.num("start_ns")[row]!;
    return listed.sort((a, b) => job(a).localeCompare(job(b), "en", { numeric: true }) || start(a) - start(b));
  }

  override paint(): void {
    this.list();
    const [from, to] = this.layOut(this.rows.length, 6);
    this.timeGrid();
    for (let index = from; index < to; index++)
      this.paintRequest(this.rows[index]!, index * ROW - this.scroller.scrollTop + 3);
    this.context.clearRect(view.width - RIGHT + 1, 0, RIGHT, this.height);
    if (this.rows.length) return;
    const total = this.engine.contents.requests.total;
    this.say(total ? "No request was alive in this window." : "No requests were recorded for this engine.");
  }

  private paintRequest(each: Listed, y: number): void {
    const { columns, row, request } = each, chosen = isSelected("request", this.engine, request);
    const gap = columns.at("gap_start_ns", row), start = columns.num("start_ns")[row]!;
    if (gap !== null && start > gap) this.paintGap(this.x(gap), this.x(start), y + ROW / 2 - 1);
    const id = this.engine.segmentsOf(columns), segments = id ? peek(id) : null;
    if (!id) this.paintSegment("soft", start, columns.num("end_ns")[row]!, y);
    if (segments) {
      const found = Segments.of(segments, columns.rows), [low, high] = found.range(row);
      if (low === high) this.paintSegment("soft", start, columns.num("end_ns")[row]!, y);
      for (let i = low; i < high; i++) {
        const begin = found.start[i]!, end = begin + found.duration[i]!;
        if (end >= this.from && begin <= this.to)
          this.paintSegment(REQUEST_STATES[found.state[i]!]!, begin, end, y);
      }
    }
    this.paintHits(each, this.x(gap ?? start), this.x(columns.num("end_ns")[row]!), y);
    this.context.clearRect(0, y - 1, LEFT - 1, ROW);
    this.context.textAlign = "right";
    this.context.fillStyle = colour(chosen ? "ink" : "soft");
    this.context.fillText(this.label(each), LEFT - 8, y + ROW / 2 - 1, LEFT - 14);
    if (view.related.has(request) && view.selection?.engine === this.engine) {
      this.context.fillStyle = colour("accent");
      this.context.fillRect(LEFT - 5, y - 1, 4, ROW - 1);
    }
    if (!chosen) return;
    this.context.strokeStyle = colour("accent");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(LEFT + 0.5, y - 1, plotWidth() - 1, ROW - 1);
  }

  private paintGap(from: number, to: number, y: number): void {
    this.context.fillStyle = colour("gap");
    const start = Math.max(LEFT, from), end = Math.min(view.width - RIGHT, to);
    for (let x = start; x < end; x += 5) this.context.fillRect(x, y, Math.min(2, end - x), 1.5);
  }

  private paintSegment(name: string, start: number, end: number, y: number): void {
    const from = Math.max(LEFT, this.x(start)), to = Math.min(view.width - RIGHT, this.x(end));
    const width = Math.max(1, to - from),
      size = name === "queued" ? 2 : name === "preempted" || name === "soft" ? 4 : BAR;
    this.context.fillStyle = colour(name);
    this.context.fillRect(from, y + (ROW - 2 - size) / 2, width > 3 && size === BAR ? width - 0.6 : width, size);
  }

  // hits N/M (P%), and what of them came from outside the GPU.
  // After its lane, or before it where there is no room.
  private paintHits(each: Listed, start: number, end: number, y: number): void {
    const text = hits(each.columns, each.row), room = this.widthOf(text) + 5;
    const after = end >= LEFT && end < view.width - RIGHT - room;
    if (!text || (!after && (start - room < LEFT || start > view.width - RIGHT))) return;
    this.context.textAlign = after ? "left" : "right";
    this.context.fillStyle = colour("soft");
    this.context.fillText(text, after ? end + 5 : start - 5, y + ROW / 2 - 1);
  }

  // Session and turn; the id behind it where there is room.
  private label(each: Listed): string {
    const label = labelOf(each), name = nameOf(each), both = label.length + name.length <= LABEL - 2;
    return isolated(shorten(label, LABEL)) + (label !== name && both ? ` · ${isolated(name)}` : "");
  }

  override hit(x: number, y: number): Hit | null {
    const each = this.rows[Math.floor((y + this.scroller.scrollTop - 3) / ROW)];
    if (!each) return null;
    const { columns, row, request } = each, time = this.time(x), lines = [shorten(labelOf(each), 60)];
    if (labelOf(each) !== nameOf(each)) lines.push(shorten(nameOf(each), 60));
    const id = this.engine.segmentsOf(columns), segments = id ? peek(id) : null;
    if (!id && x >= LEFT) lines.push(this.untold(each));
    if (segments && x >= LEFT) {
      const found = Segments.of(segments, columns.rows), [low, high] = found.range(row);
      let now = low < high ? "not alive here" : this.untold(each);
      for (let i = low; i < high; i++) {
        const begin = found.start[i]!, end = begin + found.duration[i]!;
        if (begin <= time && time < end)
          now = `${REQUEST_STATES[found.state[i]!]} for ${duration(found.duration[i])} from ${clock(begin, 1e5)}`;
      }
      const gap = columns.at("gap_start_ns", row), start = columns.num("start_ns")[row]!;
      lines.push(
        gap !== null && gap < time && time < start ? `tool gap of ${duration(start - gap)} before this turn` : now,
      );
    }
    lines.push(
      `${count(columns.at("prompt_tokens", row))} prompt, ${count(columns.at("output_tokens", row))} output tokens`,
      hits(columns, row, true),
    );
    const preempted = columns.at("preemptions", row);
    if (preempted) lines.push(`preempted ${times(preempted)}`);
    const span: [number, number] = [columns.num("start_ns")[row]!, columns.num("end_ns")[row]!];
    return {
      selection: { kind: "request", engine: this.engine, id: request, row: each, span },
      lines: lines.filter(Boolean),
    };
  }

  // Of a request that no scheduler told of.
  private untold({ columns, row }: Listed): string {
    const arrival = columns.at("arrival_ns", row), end = columns.at("finished_ns", row);
    const known = arrival === null ? "no state known" : `arrived at ${clock(arrival, 1e5)}`;
    return `${known}, ${end === null ? "end unknown" : `ended at ${clock(end, 1e5)}`}: no scheduler was recorded`;
  }

  override get listed(): number[] {
    this.list();
    return this.rows.map((each) => each.request);
  }

  protected override rowOf(id: number): number {
    return this.rows.findIndex((each) => each.request === id);
  }
}

export const descriptor: Descriptor<RequestsLane> = {
  name: "requests",
  place: 110,
  title: "Requests",
  about: "A lane for each request",
  needs: [],
  create: (engine) => new RequestsLane(engine),
  legend({ contents: { requests } }) {
    const told = !requests.total || requests.levels.flat().some(({ segments }) => segments);
    return { unit: "", entries: [...(told ? STATES : UNTOLD), ["tool gap", "gap", "thin"]] };
  },
  selects: request,
  keys: [{
    keys: ["ArrowUp", "ArrowDown"],
    help: ["up and down", "scroll the requests"],
    run: (lane, key) => lane.scroll(key === "ArrowUp" ? -3 : 3),
  }, {
    keys: ["p"],
    help: ["p", "next preempted request"],
    run: (_lane, _key, engine) => void nextPreemption(engine),
  }],
  address: {
    write(address) {
      if (settings.order !== USUAL) address.set("order", settings.order);
    },
    read(address) {
      const wanted = address.get("order") ?? "";
      settings.order = wanted in ORDERS ? wanted as Order : USUAL;
    },
  },
  words: [
    ["queued", "waiting for its first admission"],
    ["preempted", "removed from the batch, waiting to be admitted again"],
    ["states unknown", "from a request's arrival to its end: no scheduler told what became of it in between"],
    ["tool gap", "between the end of a job's turn and its next one"],
  ],
};
