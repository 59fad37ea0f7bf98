// The document inside the page: decoded once, columns by name.

const DOCUMENT_FORMAT = "kvtrace-page";
const DOCUMENT_VERSION = 1;

async function readDocument() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser has no DecompressionStream. Chrome 80, Firefox 113 and Safari 16.4 or later have it.");
  }
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const found = JSON.parse(await new Response(stream).text());
  if (found.format !== DOCUMENT_FORMAT || found.version !== DOCUMENT_VERSION) {
    throw new Error(`The data is ${found.format} version ${found.version}; this page reads ${DOCUMENT_FORMAT} version ` +
      `${DOCUMENT_VERSION}. Run kvtrace view again.`);
  }
  for (const engine of found.engines) {
    readColumns(engine.steps.columns);
    readColumns(engine.requests.columns);
    readColumns(engine.requests.segments);
    indexEngine(engine);
  }
  return found;
}

function readColumns(columns) {
  for (const name of Object.keys(columns)) {
    if (!Array.isArray(columns[name])) columns[name] = undelta(columns[name].delta);
  }
}

function undelta(differences) {
  let total = 0;
  return differences.map((difference) => (total += difference));
}

function indexEngine(engine) {
  const steps = engine.steps.columns, requests = engine.requests.columns, segments = engine.requests.segments;
  engine.rows = steps.step.length;
  engine.tokens = steps.step.map((_, i) => PHASES.reduce((sum, [phase]) => sum + steps[`${phase}_tokens`][i], 0));
  engine.rowOfRequest = new Map(requests.request.map((request, row) => [request, row]));
  engine.segmentsOf = requests.request.map(() => []);
  segments.row.forEach((row, i) => {
    const start = segments.start_ns[i];
    engine.segmentsOf[row].push({ state: segments.state[i], start, end: start + segments.duration_ns[i] });
  });
  engine.endOf = engine.segmentsOf.map((own, row) => (own.length ? own[own.length - 1].end : requests.start_ns[row]));
  engine.pool = engine.facts.blocks ?? greatest(steps.used_blocks.map((used, i) => used + steps.free_blocks[i]));
  engine.text = requests.request.map((_, row) =>
    [requests.external_id[row], requests.internal_id[row], requests.session[row]].join("\n").toLowerCase());
}

// Not Math.max(...values): a long list would overflow the stack.
function greatest(values) {
  return values.reduce((most, value) => (value > most ? value : most), 0);
}

// The last position whose value is at most `wanted`; -1 if there is none.
function lastAtMost(values, wanted) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1; else high = middle;
  }
  return low - 1;
}
