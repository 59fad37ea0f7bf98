// An image of the plot's size, filled pixel by pixel: the fast way to draw very many marks.

import { LEFT, plotWidth } from "./view";

export class Image {
  readonly width: number;
  readonly pixels: Uint32Array;
  private readonly data: ImageData;
  private static readonly canvases = new WeakMap<CanvasRenderingContext2D, HTMLCanvasElement>();

  constructor(readonly height: number, background: number) {
    this.width = Math.ceil(plotWidth());
    this.data = new ImageData(this.width, Math.max(1, height));
    this.pixels = new Uint32Array(this.data.data.buffer);
    this.pixels.fill(background);
  }

  // Columns `from` up to, without, `to` of a row; places outside are cut off.
  span(row: number, from: number, to: number, value: number): void {
    const start = row * this.width + Math.max(0, from), end = row * this.width + Math.min(this.width, to);
    if (end - start > 8) this.pixels.fill(value, start, end);
    else for (let at = start; at < end; at++) this.pixels[at] = value;
  }

  // A bar: places outside are cut off.
  bar(x: number, top: number, width: number, tall: number, value: number): void {
    const left = Math.max(0, x), right = Math.min(this.width, x + width), end = Math.min(this.data.height, top + tall);
    for (let row = Math.max(0, top); row < end; row++) {
      for (let at = row * this.width + left, stop = row * this.width + right; at < stop; at++) this.pixels[at] = value;
    }
  }

  // Rows may be repeated: `scale` pixels for each.
  put(context: CanvasRenderingContext2D, top: number, scale = 1): void {
    let canvas = Image.canvases.get(context);
    if (!canvas) Image.canvases.set(context, canvas = document.createElement("canvas"));
    if (canvas.width !== this.width || canvas.height !== this.data.height) {
      [canvas.width, canvas.height] = [this.width, this.data.height];
    }
    canvas.getContext("2d")!.putImageData(this.data, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, LEFT, top, this.width, this.height * scale);
  }
}
