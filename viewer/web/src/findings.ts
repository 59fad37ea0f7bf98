// What cost most: the sentences that `kvtrace findings` and the report begin with, folded so that the lanes have room.

import type { Finding, RunContents } from "./data/contents";
import { byId, el, link, outside } from "./dom";
import { count } from "./format";
import { selectRequest, selectStep } from "./inspect/select";
import { view } from "./view";

const ROOM = "(min-height: 1200px)";

// Open at first where the window has room; later as the reader left it.
let opened = matchMedia(ROOM).matches;

export function showFindings(): void {
  const runs = view.contents!.runs, several = runs.length > 1;
  const found = runs.flatMap((run) => run.findings.found), [first] = found;
  const instead = runs.filter(({ findings: { instead } }) => instead)
    .map((run) => outside(several ? `${run.name}: ${run.findings.instead}` : run.findings.instead));
  const box = byId("findings");
  if (!first) {
    box.replaceChildren(...instead.map((text) => el("p", "", el("b", "", "What cost most"), " ", text)));
    return;
  }
  const more = found.length > 1 ? `and ${count(found.length - 1)} more` : "";
  const head = el(
    "summary",
    "",
    el("b", "", "What cost most"),
    el("span", "closed", outside(first.text)),
    el("span", "unit closed", more),
    el("span", "unit opened", "the most first; their times overlap"),
  );
  const lists = runs.flatMap((run) => [
    ...(several ? [el("h2", "", outside(run.name))] : []),
    run.findings.found.length
      ? el("ol", "", ...run.findings.found.map((finding) => el("li", "", ...describe(run, finding))))
      : el("p", "", run.findings.instead),
  ]);
  const list = el("div", "list", ...lists);
  list.tabIndex = 0;
  list.setAttribute("role", "region");
  list.setAttribute("aria-label", "Findings");
  const details = el("details", "", head, list);
  details.open = opened;
  details.addEventListener("toggle", () => {
    opened = details.open;
  });
  box.replaceChildren(details);
}

// Opens or closes the list.
export function toggleFindings(): void {
  const details = byId("findings").querySelector("details");
  if (details) details.open = !details.open;
}

// What stands between backticks is code.
const prose = (text: string): (Node | string)[] =>
  text.split("`").map((part, index) => (index % 2 ? el("code", "", part) : part));

// Its sentences; what to try; how it is known, and where to look.
function describe(run: RunContents, { text, basis, evidence, remedy, worst }: Finding): (Node | string)[] {
  const known = el("span", "unit", `${basis}: `, el("code", "", `kvtrace query ${evidence}`));
  const engine = worst
    && view.engines.find((each) => each.run === run && (each.facts["engine_id"] ?? null) === worst.engine_id);
  if (engine) {
    const open = worst.kind === "step" ? selectStep : selectRequest;
    known.append(
      "; the worst: ",
      link(`${worst.kind} ${count(worst.number)}`, () => void open(engine, worst.number)),
    );
  }
  return [outside(text), ...(remedy ? [" ", el("b", "", "Try: "), ...prose(remedy)] : []), " ", known];
}
