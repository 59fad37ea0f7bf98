// Mouse and keys of a close-up.

import type { Picture, Spot } from "./picture";

const DRAG_PIXELS = 4;

interface Drag {
  x: number;
  from: number;
  to: number;
  pan: boolean;
  moved: boolean;
}

export class Input {
  private drag: Drag | null = null;
  // True after a click: the description stays until the next one.
  private kept = false;
  // The row of the window gone to; -1 before that.
  private layer = -1;

  constructor(
    private readonly area: HTMLElement,
    private readonly picture: Picture,
    private readonly turn: (by: number) => void,
    private readonly describe: (spot: Spot, kept: boolean) => void,
  ) {
    area.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    area.addEventListener("pointerdown", (event) => this.onDown(event));
    area.addEventListener("pointermove", (event) => this.onMove(event));
    area.addEventListener("pointerup", (event) => this.onUp(event));
    area.addEventListener("dblclick", (event) => this.onDoubleClick(event));
    area.addEventListener("keydown", (event) => this.onKey(event));
  }

  private place(event: MouseEvent): { x: number; y: number } {
    const box = this.picture.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private say(spot: Spot | null, keep: boolean): void {
    this.kept = keep && spot !== null;
    if (spot) this.describe(spot, this.kept);
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    const { picture } = this, { x, y } = this.place(event), amount = event.deltaY || event.deltaX;
    const factor = Math.exp(Math.max(-1, Math.min(1, amount * 0.002)));
    if (event.altKey) picture.zoomBlocks(factor, picture.rank(y));
    else if (event.shiftKey) picture.pan(Math.sign(amount) * 0.1);
    else picture.zoom(factor, picture.time(x));
    picture.paint();
  }

  private onDown(event: PointerEvent): void {
    if (event.button) return;
    const { from, to } = this.picture;
    this.drag = { x: this.place(event).x, from, to, pan: event.shiftKey, moved: false };
    this.area.setPointerCapture(event.pointerId);
  }

  private onMove(event: PointerEvent): void {
    const { picture, drag } = this, { x, y } = this.place(event);
    if (!drag) {
      if (!this.kept) this.say(picture.at(x, y), false);
      return;
    }
    drag.moved ||= Math.abs(x - drag.x) > DRAG_PIXELS;
    if (!drag.moved || !drag.pan) return;
    picture.show(drag.from, drag.to);
    picture.pan((picture.time(drag.x) - picture.time(x)) / (picture.to - picture.from));
    picture.paint();
  }

  private onUp(event: PointerEvent): void {
    const { picture, drag } = this, { x, y } = this.place(event);
    this.drag = null;
    if (drag && !drag.moved) this.say(picture.at(x, y), true);
    if (!drag?.moved || drag.pan) return;
    const ends = [picture.time(drag.x), picture.time(x)];
    picture.show(Math.min(...ends), Math.max(...ends));
    picture.paint();
  }

  private onDoubleClick(event: MouseEvent): void {
    const { x, y } = this.place(event), spot = this.picture.at(x, y);
    if (spot?.columns !== this.picture.windows) return;
    this.layer = spot.row;
    this.showLayer();
    this.picture.paint();
  }

  private onKey(event: KeyboardEvent): void {
    const { picture } = this;
    const keys: Record<string, () => void> = {
      "+": () => this.zoomIn(),
      "=": () => this.zoomIn(),
      "-": () => picture.zoom(2),
      z: () => this.showLayer(),
      "0": () => {
        picture.show(picture.first, picture.last);
        picture.zoomBlocks(Infinity);
      },
      ArrowLeft: () => picture.pan(-0.15),
      ArrowRight: () => picture.pan(0.15),
      ArrowUp: () => picture.panBlocks(-0.15),
      ArrowDown: () => picture.panBlocks(0.15),
      "[": () => picture.zoomBlocks(2),
      "]": () => picture.zoomBlocks(0.5),
      ",": () => this.goTo(-1),
      ".": () => this.goTo(1),
      PageUp: () => this.turn(-1),
      PageDown: () => this.turn(1),
    };
    const run = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!run) return;
    event.preventDefault();
    run();
    if (!event.key.startsWith("Page")) picture.paint();
  }

  // From when to when the layer gone to is at work.
  private span(): [number, number] {
    const { windows } = this.picture, row = Math.max(0, this.layer);
    return [windows.num("start_ns")[row]!, windows.num("end_ns")[row]!];
  }

  // With room around it.
  private showLayer(): void {
    const [start, end] = this.span(), room = (end - start) / 8;
    this.picture.show(start - room, end + room);
  }

  private goTo(by: number): void {
    const { picture } = this, half = (picture.to - picture.from) / 2;
    this.layer = Math.max(0, Math.min(picture.windows.rows - 1, this.layer + by));
    const [start, end] = this.span();
    if (start < picture.from || end > picture.to) picture.show(start - half, start + half);
    this.say({ columns: picture.windows, row: this.layer, exact: true }, true);
  }

  // To the layer gone to, if it is in sight.
  private zoomIn(): void {
    const { picture } = this, [start, end] = this.span(), middle = (start + end) / 2;
    const quarter = (picture.to - picture.from) / 4;
    if (this.layer < 0 || middle < picture.from || middle > picture.to) picture.zoom(0.5);
    else picture.show(middle - quarter, middle + quarter);
  }
}
