// Colours of what is drawn. They are the style's custom properties, so light and dark differ there only.

const read = new Map<string, string>(), packed = new Map<string, number>();

export function colour(name: string): string {
  let text = read.get(name);
  if (text === undefined) {
    text = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    if (!text) throw new Error(`no colour --${name} in the style`);
    read.set(name, text);
  }
  return text;
}

// As a pixel of an image: alpha, blue, green, red.
export function pixel(name: string): number {
  let value = packed.get(name);
  if (value === undefined) packed.set(name, value = parse(colour(name)));
  return value;
}

// What text on it is drawn in, black or white: by its luminance (WCAG), black has the larger contrast above 0.18.
export function inkOn(value: number): string {
  const linear = [0, 8, 16].map((shift) => ((value >> shift & 255) / 255) ** 2.2);
  return 0.2126 * linear[0]! + 0.7152 * linear[1]! + 0.0722 * linear[2]! > 0.18 ? "#000" : "#fff";
}

// After a change between light and dark.
export function forgetColours(): void {
  read.clear();
  packed.clear();
}

export const toCss = (value: number): string => `rgb(${value & 255} ${value >> 8 & 255} ${value >> 16 & 255})`;

export function mix(a: number, b: number, share: number): number {
  const part = (shift: number) => Math.round((a >> shift & 255) * (1 - share) + (b >> shift & 255) * share) << shift;
  return (0xff000000 | part(0) | part(8) | part(16)) >>> 0;
}

export function parse(text: string): number {
  const value = parseInt(text.slice(1), 16);
  return (0xff000000 | (value & 255) << 16 | value & 0xff00 | value >> 16) >>> 0;
}
