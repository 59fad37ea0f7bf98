// The base of lanes that list things, a row each, and scroll.

import type { Engine } from "../data/engine";
import { el } from "../dom";
import { changed, type Selection } from "../view";
import { Lane, type Look } from "./lane";

export const ROW = 14;

export abstract class RowsLane extends Lane {
  override readonly hitsGutter = true;
  private readonly spacer = el("div");
  private wanted: number | null = null;
  protected readonly scroller: HTMLElement;

  // `kind` is that of the things it lists, `name` the scrolling element's class, `label` what screen readers call it.
  constructor(engine: Engine, look: Look, private readonly kind: string, name: string, label: string) {
    super(engine, look);
    this.scroller = el("div", name, this.canvas, this.spacer);
    this.element.append(this.scroller);
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "group");
    this.scroller.setAttribute("aria-label", label);
    this.scroller.addEventListener("scroll", changed);
  }

  // The row of a thing by its number; -1 if it is not listed.
  protected abstract rowOf(id: number): number;

  // Makes room for the rows, scrolls to the one that was asked for, and returns the first and the end of those in sight.
  protected layOut(rows: number, margin: number): [number, number] {
    const { scroller } = this, { clientHeight } = scroller;
    this.spacer.style.height = `${Math.max(0, rows * ROW + margin - clientHeight)}px`;
    if (this.wanted !== null && rows) {
      const top = this.rowOf(this.wanted) * ROW;
      this.wanted = null;
      if (top >= 0 && (top < scroller.scrollTop || top + ROW > scroller.scrollTop + clientHeight))
        scroller.scrollTop = top - clientHeight / 2;
    }
    const first = Math.floor(scroller.scrollTop / ROW);
    return [first, Math.min(rows, first + Math.ceil(clientHeight / ROW) + 1)];
  }

  // Scrolls a thing into sight, once it is listed.
  override reveal({ kind, id }: Selection): void {
    if (kind !== this.kind) return;
    this.wanted = id;
    if (!this.inSight()) this.element.scrollIntoView({ block: "nearest" });
  }

  scroll(rows: number): void {
    this.scroller.scrollTop += rows * ROW;
  }

  override get scrolls(): boolean {
    return this.scroller.scrollHeight > this.scroller.clientHeight + 1;
  }
}
