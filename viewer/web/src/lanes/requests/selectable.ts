// Requests as things to select, by their ids and by the job they are of.

import { load } from "../../data/chunks";
import { lastAtMost } from "../../data/columns";
import { type Engine, nameOf } from "../../data/engine";
import { count } from "../../format";
import { selectRequest } from "../../inspect/select";
import { reveal, show, view } from "../../view";
import type { Match, Selectable } from "../descriptor";
import type { Lane } from "../lane";
import { describeRequest } from "./inspect";
import { settings } from "./settings";

const MOST = 12;

// Those that the engine's lane lists, from the top.
const listed = (lane: Lane | undefined): number[] => (lane as { requests?: number[] } | undefined)?.requests ?? [];

export const request: Selectable<"requests"> = {
  kind: "request",
  describe: describeRequest,
  async open(engine, name) {
    const found = /^#\d+$/.test(name) ? Number(name.slice(1)) : await engine.findRequest(name);
    if (found !== null) await selectRequest(engine, found);
  },
  async first(engine, _from, _to, lane) {
    const [found] = listed(lane);
    if (found !== undefined) await selectRequest(engine, found);
    return found !== undefined;
  },
  async next({ engine, id }, by, lane) {
    const all = listed(lane), next = all[all.indexOf(id) + by];
    if (next !== undefined) await selectRequest(engine, next);
  },
  name: ({ id, row }) => (row ? nameOf(row) : String(id)),
  search,
};

// The next preempted request after the one selected, or the first in sight.
export async function nextPreemption(engine: Engine): Promise<void> {
  const columns = await engine.preemptions();
  if (!columns) return;
  const now = view.selection, starts = columns.num("start_ns"), requests = columns.num("request");
  let row = now?.kind === "request" ? requests.indexOf(now.id) + 1 : lastAtMost(starts, view.from + engine.shift) + 1;
  if (row >= columns.rows) row = 0;
  reveal(engine, starts[row]!, columns.at("resume_ns", row) ?? starts[row]!);
  await selectRequest(engine, requests[row]!);
}

async function search(engine: Engine, text: string): Promise<Match[]> {
  const found: Match[] = [], jobs = new Map<string, { requests: number; from: number; to: number }>();
  for (const reference of engine.requests.finest) {
    const columns = await load(reference.id);
    engine.learn(columns);
    for (let row = 0; row < columns.rows; row++) {
      const job = columns.text("session", row), name = nameOf({ columns, row }),
        inside = columns.text("internal_id", row) ?? "";
      if (job?.toLowerCase().includes(text)) {
        const entry = jobs.get(job) ?? { requests: 0, from: Infinity, to: -Infinity };
        entry.requests++;
        entry.from = Math.min(entry.from, columns.num("start_ns")[row]!);
        entry.to = Math.max(entry.to, columns.num("end_ns")[row]!);
        jobs.set(job, entry);
      }
      if (
        found.length < MOST
        && (name.toLowerCase().includes(text) || inside.toLowerCase().includes(text)
          || job?.toLowerCase().includes(text))
      ) {
        const request = columns.num("request")[row]!, turnOf = columns.at("turn", row);
        found.push({
          label: name,
          more: [job === null ? "" : `${job}${turnOf === null ? "" : ` turn ${turnOf}`}`, engine.title].filter(Boolean)
            .join(" · "),
          run: () => void selectRequest(engine, request),
        });
      }
    }
  }
  const exact = found.filter(({ label }) => label.toLowerCase() === text),
    rest = found.filter((match) => !exact.includes(match));
  const ofJobs = [...jobs].slice(0, 3).map(([job, { requests, from, to }]): Match => ({
    label: `Job ${job}`,
    more: `${count(requests)} requests`,
    run: () => {
      const room = (to - from) / 20;
      settings.order = "job";
      show(from - engine.shift - room, to - engine.shift + room);
    },
  }));
  return [...exact, ...ofJobs, ...rest];
}
