// Numbers, times and names as a reader sees them; names and colours of phases, limits and states.

const PHASES = [
  ["decode", "decode", "decode"], ["prefill", "prefill", "prefill"],
  ["chunked_prefill", "chunked prefill", "chunked"], ["resumed", "resumed", "resumed"],
];
const LIMITS = [
  ["kv_insufficient", "KV insufficient", "kv-insufficient"], ["preempted", "preempted", "preempted"],
  ["max_seqs", "max seqs", "max-seqs"], ["token_budget", "token budget", "token-budget"],
  ["paused", "paused", "paused"], ["other", "other", "other"], ["none", "nothing left waiting", "none"],
];
const LIMIT_RANK = new Map(LIMITS.map(([limit], rank) => [limit, rank]));
const STATES = new Map([
  ["queued", "queued"], ["prefill", "prefill"], ["decode", "decode"], ["preempted", "preempted"], ["resumed", "resumed"],
]);

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNKNOWN = "unknown";

const count = (value) => (value === null || value === undefined ? UNKNOWN : WHOLE.format(value));

function share(part, whole) {
  return whole ? `${(100 * part / whole).toFixed(1)}%` : UNKNOWN;
}

function duration(ns) {
  if (ns === null || ns === undefined) return UNKNOWN;
  const size = Math.abs(ns);
  if (size < 1e3) return `${ns} ns`;
  if (size < 1e6) return `${(ns / 1e3).toPrecision(3)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(size < 1e7 ? 2 : 1)} ms`;
  return `${size < 6e10 ? (ns / 1e9).toFixed(size < 1e10 ? 3 : 1) : count(ns / 1e9)} s`;
}

// A time on the axis, precise enough for ticks or steps `resolution` ns apart.
function clock(ns, resolution) {
  if (ns === null || ns === undefined) return UNKNOWN;
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(resolution / 1e9))));
  return `${(ns / 1e9 || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} s`;
}

function utc(originNs, ns) {
  const total = BigInt(originNs) + BigInt(Math.round(ns));
  return new Date(Number(total / 1000000n)).toISOString().replace("T", " ").replace("Z", " UTC");
}

// The date too only where it is not the origin's.
function utcTime(originNs, ns) {
  const zero = utc(originNs, 0), time = utc(originNs, ns);
  return time.slice(0, 10) === zero.slice(0, 10) ? time.slice(11, -4) : time.slice(0, -4);
}

const times = (number) => (number === 1 ? "once" : `${count(number)} times`);

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

// A long name cut in the middle; what tells two apart is often at the end.
function shorten(text, most) {
  const letters = Array.from(text.slice(0, 4 * most));
  if (letters.length <= most && text.length <= 4 * most) return text;
  const tail = Array.from(text.slice(-2 * most)).slice(-(most >> 1));
  return `${letters.slice(0, most - tail.length - 1).join("")}…${tail.join("")}`;
}

const requestName = (engine, row) => {
  const columns = engine.requests.columns;
  return columns.external_id[row] ?? columns.internal_id[row] ?? `request ${columns.request[row]}`;
};

// Isolated, so that right-to-left names do not turn what stands beside them.
const isolated = (text) => `\u2068${text}\u2069`;

function element(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text !== null && text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function facts(pairs) {
  const list = element("dl");
  list.className = "facts";
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined) list.append(element("dt", name), element("dd", null, element("bdi", value)));
  }
  return list;
}
