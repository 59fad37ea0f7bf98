// Names and colours of what is drawn. The colours are the style's custom properties, so light and dark differ there only.

export const PHASES = [
  ["decode", "decode", "decode"],
  ["prefill", "prefill", "prefill"],
  ["chunked_prefill", "chunked prefill", "chunked"],
  ["resumed", "resumed", "resumed"],
] as const;

export const LIMITS: [string, string, string][] = [
  ["kv_insufficient", "KV insufficient", "kv-insufficient"],
  ["preempted", "preempted", "preempted"],
  ["max_num_seqs", "max seqs", "max-seqs"],
  ["token_budget", "token budget", "token-budget"],
  ["paused", "paused", "paused"],
  ["other", "other", "other"],
  ["none", "nothing left waiting", "none"],
];
export const LIMIT_RANK = new Map(LIMITS.map(([limit], rank) => [limit, rank]));

export const BLOCK_STATES = [
  ["empty", "free", "free"],
  ["cached", "free, still cached", "cached"],
  ["used", "in use", "used"],
  ["shared", "shared", "shared"],
] as const;

export const PINS: [string, string][] = [
  ["delayed_free", "pin-1"],
  ["in_flight", "pin-2"],
  ["async_load", "pin-3"],
  ["connector", "pin-4"],
  ["ttl", "pin-5"],
  ["streaming", "pin-6"],
];

export const KERNELS: [string, string][] = [
  ["attention", "attention"],
  ["gemm", "gemm"],
  ["kv_write", "kv-write"],
  ["copy", "copy"],
  ["memcpy", "copy"],
  ["memset", "copy"],
  ["norm_activation", "norm"],
  ["communication", "communication"],
  ["sampling", "sampling"],
  ["kvtrace", "own"],
  ["graph", "other-kernel"],
  ["other", "other-kernel"],
];

const NAMES = [
  "ink",
  "soft",
  "line",
  "grid",
  "panel",
  "accent",
  "prefill",
  "chunked",
  "decode",
  "resumed",
  "queued",
  "gap",
  "preempted",
  "running",
  "waiting",
  "used",
  "cached",
  "shared",
  "free",
  "evicted",
  "token-budget",
  "kv-insufficient",
  "max-seqs",
  "paused",
  "other",
  "none",
  "pin-1",
  "pin-2",
  "pin-3",
  "pin-4",
  "pin-5",
  "pin-6",
  "load",
  "store",
  "host",
  "attention",
  "gemm",
  "kv-write",
  "copy",
  "norm",
  "communication",
  "sampling",
  "own",
  "other-kernel",
  "read",
  "read-v",
  "write",
  "write-v",
] as const;

let colours: Record<string, string> = {};
let packed: Record<string, number> = {};
let owners: number[] = [];
let ages: number[] = [];

export const colour = (name: string): string => colours[name] ?? "#888";

// As a pixel of an image: alpha, blue, green, red.
export const pixel = (name: string): number => packed[name] ?? 0xff888888;

export const ownerPixel = (owner: number): number => owners[owner % owners.length]!;

// `share`: 0 just used, 1 long ago.
export const agePixel = (share: number): number =>
  ages[Math.max(0, Math.min(ages.length - 1, Math.round(share * (ages.length - 1))))]!;

export const toCss = (value: number): string => `rgb(${value & 255} ${value >> 8 & 255} ${value >> 16 & 255})`;

export function mix(a: number, b: number, share: number): number {
  const part = (shift: number) => Math.round((a >> shift & 255) * (1 - share) + (b >> shift & 255) * share) << shift;
  return (0xff000000 | part(0) | part(8) | part(16)) >>> 0;
}

function parse(text: string): number {
  const value = parseInt(text.slice(1), 16);
  return (0xff000000 | (value & 255) << 16 | value & 0xff00 | value >> 16) >>> 0;
}

// Seven hues of Okabe and Ito's palette, each plain, lighter and darker: neighbours in number differ in hue.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442"];
// Cividis, from recent to old.
const AGES = ["#fee838", "#d9c55c", "#b3a772", "#918d79", "#72757d", "#575d6d", "#3b496c", "#12356e", "#00204d"];

export function readColours(): void {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  packed = Object.fromEntries(Object.entries(colours).map(([name, text]) => [name, parse(text)]));
  const hues = HUES.map(parse);
  owners = [
    ...hues,
    ...hues.map((hue) => mix(hue, 0xffffffff, 0.35)),
    ...hues.map((hue) => mix(hue, 0xff000000, 0.35)),
  ];
  ages = [];
  for (let i = 0; i < 64; i++) {
    const at = i / 63 * (AGES.length - 1), low = Math.min(AGES.length - 2, Math.floor(at));
    ages.push(mix(parse(AGES[low]!), parse(AGES[low + 1]!), at - low));
  }
}
