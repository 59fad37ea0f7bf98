// Opens the page's data and keeps everything in step with it.

import "./style.css";
import { keepAddress, openAddress, watchAddress } from "./address";
import { forgetColours } from "./colours";
import { isLoading, readContents, whenLoaded } from "./data/chunks";
import { FORMAT, VERSION } from "./data/contract";
import { byId, el } from "./dom";
import { chooseEngines, offerEngines } from "./engines";
import { showFindings } from "./findings";
import { clock, count, duration } from "./format";
import { measureFrames } from "./frames";
import { listen } from "./input";
import { inspect } from "./inspect/inspector";
import { Axis } from "./lanes/axis";
import type { Lane } from "./lanes/lane";
import { LANES } from "./lanes/list";
import { listenToScope } from "./scope";
import { listenToSearch } from "./search";
import { keepCards, showCards, showHead, showNotes } from "./summary";
import { changed, onDraw, onSelect, open, select, setSpan, show, view } from "./view";

const REASONS =
  `Likely reasons: the command ended before vLLM's engine started, it did not use vLLM, or kvtrace is not installed in the
environment vLLM ran in. The summary that kvtrace record printed at its end lists the processes and hooks it saw.`;

let lanes: Lane[] = [];
let axis: Axis | null = null;

function draw(): void {
  view.width = byId("lanes").clientWidth;
  axis?.draw();
  for (const lane of lanes) lane.draw();
  const { from, to } = view;
  byId("window").textContent = `${clock(Math.max(0, from), (to - from) / 1e3)} – ${clock(to, (to - from) / 1e3)}  (${
    duration(to - from)
  })`;
  document.documentElement.dataset["drawn"] = String(Number(document.documentElement.dataset["drawn"] ?? 0) + 1);
  document.documentElement.dataset["loading"] = String(isLoading());
  keepAddress();
}

// The engines of a choice; of several runs with equal beginnings.
function openEngines(choice: string): void {
  chooseEngines(choice);
  const spans = view.engines.map(({ contents, run, shift }) => {
    const timeless = !contents.span_ns && run.engines.some((each) => each.span_ns);
    const span = timeless ? [0, 0] : contents.span_ns ?? [run.first_ns ?? 0, run.last_ns ?? 0];
    return span.map((moment) => moment - shift);
  });
  setSpan(Math.min(...spans.map(([first]) => first!)), Math.max(...spans.map(([, last]) => last!)));
  const work = view.engines.flatMap(({ contents, run, shift }) =>
    (contents.span_ns ?? run.work_ns ?? []).map((moment) => moment - shift)
  );
  if (work.length) open(Math.min(...work), Math.max(...work));
  showHead();
  showFindings();
  showNotes();
  showCards();
  buildLanes();
  select(null);
}

function buildLanes(): void {
  const area = byId("lanes");
  for (const old of area.querySelectorAll(".lane, .axis")) old.remove();
  axis = new Axis(view.engines.length > 1 ? "first event" : view.engines[0]?.run.origin ?? "start");
  area.append(axis.element);
  lanes = [];
  // Lanes of one kind lie below each other, so that runs can be compared.
  for (const { needs, create } of LANES) {
    for (const engine of view.engines) {
      if (!needs.every((table) => engine.has(table))) continue;
      const lane = create(engine);
      lanes.push(lane);
      area.append(lane.element);
    }
  }
  area.classList.toggle("several", view.engines.length > 1);
  area.classList.toggle("profile", view.engines.every(({ contents }) => !contents.requests.total && contents.kernels));
  offerLanes();
  showLanes();
}

function offerLanes(): void {
  const offered = new Set(lanes.map((lane) => lane.name));
  byId("lane-list").replaceChildren(...LANES.map(({ name, title }) => {
    const box = el("input");
    box.type = "checkbox";
    box.dataset["name"] = name;
    box.disabled = !offered.has(name);
    box.addEventListener("change", () => {
      if (box.checked) view.hidden.delete(name);
      else view.hidden.add(name);
      showLanes();
    });
    return el("label", box.disabled ? "unit" : "", box, ` ${title}${box.disabled ? ": nothing recorded" : ""}`);
  }));
}

function showLanes(): void {
  for (const lane of lanes) lane.element.hidden = view.hidden.has(lane.name);
  for (const box of byId("lane-list").querySelectorAll("input"))
    box.checked = !box.disabled && !view.hidden.has(box.dataset["name"] ?? "");
  changed();
}

function complain(text: string): void {
  const box = byId("failure");
  box.textContent = text;
  box.hidden = false;
}

function fail(text: string): void {
  complain(text);
  document.documentElement.dataset["state"] = "failed";
}

function nothingRecorded(): string {
  const sources = view.contents!.runs.map((run) => new Map(run.run).get("source") ?? "capture");
  if (sources.every((source) => !source.includes("capture"))) {
    return `Nothing to draw: ${
      sources.join(", ")
    } told of no scheduler step, no request and no GPU activity. kvtrace report and kvtrace sql show what the trace holds.`;
  }
  const roles = view.contents!.runs.flatMap((run) => run.processes).map((process) =>
    String(process["roles"] || "unknown role")
  );
  return `Nothing to draw: this trace holds no engine, no scheduler step, no request and no profile.
Processes that recorded: ${roles.length ? `${count(roles.length)} (${roles.join("; ")})` : "none"}.

${REASONS}`;
}

async function start(): Promise<void> {
  try {
    view.contents = await readContents();
    if (view.contents.format !== FORMAT || view.contents.version !== VERSION) {
      throw new Error(
        `The data is ${view.contents.format} version ${view.contents.version}; this page reads ${FORMAT} version ${VERSION}. Run kvtrace view again.`,
      );
    }
  } catch (error) {
    fail(messageOf(error));
    return;
  }
  Object.assign(globalThis, { kvtrace: { view, contents: view.contents, show, measureFrames, lanes: () => lanes } });
  if (!view.contents.runs.some((run) => run.engines.length)) {
    showHead();
    showFindings();
    showNotes();
    fail(nothingRecorded());
    return;
  }
  byId("main").hidden = byId("tools").hidden = false;
  whenLoaded(changed, complain);
  onDraw(draw);
  onDraw(keepCards);
  listenToScope(showCards);
  onSelect(() => {
    void inspect();
    const now = view.selection;
    for (const lane of lanes) if (lane.engine === now?.engine) lane.reveal(now);
  });
  offerEngines(openEngines);
  await openAddress(openEngines, showLanes);
  showHead();
  watchAddress(openEngines, showLanes);
  listen(() => lanes);
  listenToSearch();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    forgetColours();
    changed();
  });
  new ResizeObserver(changed).observe(byId("lanes"));
  await settled();
  draw();
  document.documentElement.dataset["state"] = "ready";
  document.documentElement.dataset["readyMs"] = String(Math.round(performance.now()));
}

// Resolves when what is in sight has been loaded.
function settled(): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (isLoading()) requestAnimationFrame(look);
      else resolve();
    };
    draw();
    requestAnimationFrame(look);
  });
}

const messageOf = (error: unknown): string => error instanceof Error ? error.message : String(error);

// An error of this page's own is shown, too: a lane that reads a column the data does not have, for example.
addEventListener("error", ({ error }) => {
  if (error) complain(messageOf(error));
});
addEventListener("unhandledrejection", ({ reason }) => complain(messageOf(reason)));

start().catch((error: unknown) => {
  fail(messageOf(error));
  throw error;
});
