// Numbers, times and names as a reader sees them.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const UNKNOWN = "unknown";

type Known = number | null | undefined;

const missing = (value: Known): value is null | undefined =>
  value === null || value === undefined || Number.isNaN(value);

export const count = (value: Known): string => (missing(value) ? UNKNOWN : WHOLE.format(value));

export function share(part: Known, whole: Known): string {
  return missing(part) || !whole ? UNKNOWN : `${(100 * part / whole).toFixed(1)}%`;
}

export function duration(ns: Known): string {
  if (missing(ns)) return UNKNOWN;
  const size = Math.abs(ns);
  if (size < 1e3) return `${Math.round(ns)} ns`;
  if (size < 1e6) return `${(ns / 1e3).toPrecision(3)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(size < 1e7 ? 2 : 1)} ms`;
  return `${size < 6e10 ? (ns / 1e9).toFixed(size < 1e10 ? 3 : 1) : count(ns / 1e9)} s`;
}

// A time on the axis, precise enough for ticks or steps `resolution` ns apart.
export function clock(ns: Known, resolution: number): string {
  if (missing(ns)) return UNKNOWN;
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(resolution / 1e9))));
  return `${
    (ns / 1e9 || 0).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
  } s`;
}

export function utc(originNs: string, ns: number): string {
  const total = BigInt(originNs) + BigInt(Math.round(ns));
  return new Date(Number(total / 1000000n)).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function bytes(value: Known): string {
  if (missing(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function bandwidth(size: Known, ns: Known): string {
  return missing(size) || !ns ? UNKNOWN : `${(size / ns).toPrecision(3)} GB/s`;
}

export const times = (number: number): string => (number === 1 ? "once" : `${count(number)} times`);

export const words = (name: string): string => name.replaceAll("_", " ");

// A long name cut in the middle; what tells two apart is often at the end.
export function shorten(text: string, most: number): string {
  const letters = Array.from(text.slice(0, 4 * most));
  if (letters.length <= most && text.length <= 4 * most) return text;
  const tail = Array.from(text.slice(-2 * most)).slice(-(most >> 1));
  return `${letters.slice(0, most - tail.length - 1).join("")}…${tail.join("")}`;
}

// Isolated, so that right-to-left names do not turn what stands beside them.
export const isolated = (text: string): string => `\u2068${text}\u2069`;

export function commandLine(text: string | null | undefined): string | null {
  try {
    return (JSON.parse(text ?? "null") as string[]).join(" ");
  } catch {
    return text ?? null;
  }
}
