// Elements made from text. Nothing here ever parses markup.

type Child = Node | string;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Text from a trace: shown as it is, and it cannot turn its surroundings around.
export const outside = (text: string): HTMLElement => el("bdi", "", text);

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no #${id} in the page`);
  return found as T;
}

export type Pair = [name: string, value: Child | null | undefined];

export function facts(pairs: Pair[]): HTMLElement {
  const list = el("dl", "facts");
  for (const [name, value] of pairs) {
    if (value === null || value === undefined) continue;
    list.append(el("dt", "", name), el("dd", "", typeof value === "string" ? outside(value) : value));
  }
  return list;
}

export function section(title: string, pairs: Pair[]): Node[] {
  return pairs.some(([, value]) => value !== null && value !== undefined)
    ? [...(title ? [el("h3", "", title)] : []), facts(pairs)]
    : [];
}

export function button(label: string, run: () => void, title = ""): HTMLButtonElement {
  const made = el("button", "", label);
  made.type = "button";
  if (title) made.title = title;
  made.addEventListener("click", run);
  return made;
}

// A button in running text that leads to another thing.
export function link(label: string, run: () => void): HTMLButtonElement {
  const made = button("", run);
  made.className = "link";
  made.append(outside(label));
  return made;
}
