// Brings chunks from the page, or from the folder beside it, and keeps the lately used ones decoded.

import { Columns } from "./columns";
import type { ChunkId, Contents } from "./contents";
import type { TableName } from "./contract";

const KEPT_ROWS = 12_000_000;

const asked = new Map<string, Promise<Columns>>();
const loaded = new Map<string, Columns>();
const arriving = new Map<string, (text: string) => void>();
const missing = new Set<string>();
let arrived: () => void = () => undefined;
let complain: (text: string) => void = () => undefined;

declare global {
  interface Uint8ArrayConstructor {
    fromBase64?(text: string): Uint8Array<ArrayBuffer>;
  }
  interface Window {
    kvtraceChunk?: (name: string, text: string) => void;
  }
}

// Calls `then` whenever a chunk has come, and `otherwise` with the reason when one cannot be had.
export function whenLoaded(then: () => void, otherwise: (text: string) => void): void {
  arrived = then;
  complain = otherwise;
  window.kvtraceChunk = (name, text) => arriving.get(name)?.(text);
}

export async function readContents(): Promise<Contents> {
  if (typeof DecompressionStream === "undefined") {
    throw new Error(
      "This browser has no DecompressionStream. Chrome 80, Firefox 113 and Safari 16.4 or later have it.",
    );
  }
  const bytes = await unpack(document.getElementById("contents")!.textContent ?? "");
  return JSON.parse(new TextDecoder().decode(bytes)) as Contents;
}

// A chunk if it is there already; otherwise it is asked for.
export function peek<T extends TableName>(id: ChunkId<T>): Columns<T> | null {
  const found = loaded.get(id) as Columns<T> | undefined;
  if (!found) {
    if (!asked.has(id)) load(id).catch(() => undefined);
    return null;
  }
  loaded.delete(id);
  loaded.set(id, found);
  return found;
}

export function load<T extends TableName>(id: ChunkId<T>): Promise<Columns<T>> {
  let promise = asked.get(id);
  if (!promise) {
    asked.set(id, promise = bring(id));
    promise.catch((error: unknown) => {
      missing.add(id);
      complain(`A part of the data cannot be read: ${error instanceof Error ? error.message : String(error)}.`);
      arrived();
    });
  }
  return promise as Promise<Columns<T>>;
}

export const isLoading = (): boolean => asked.size > loaded.size + missing.size;

async function bring(id: string): Promise<Columns> {
  const element = document.getElementById(id);
  const columns = new Columns(id, await unpack(element ? element.textContent ?? "" : await beside(id)));
  loaded.set(id, columns);
  forget();
  arrived();
  return columns;
}

function forget(): void {
  let rows = 0;
  for (const columns of loaded.values()) rows += columns.rows;
  for (const [id, columns] of loaded) {
    if (rows <= KEPT_ROWS || loaded.size < 2) return;
    rows -= columns.rows;
    loaded.delete(id);
    asked.delete(id);
  }
}

// A page from disk may not fetch its neighbours, but may run them as scripts.
function beside(id: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const done = () => {
      script.remove();
      arriving.delete(id);
    };
    arriving.set(id, (text) => {
      done();
      resolve(text);
    });
    script.onerror = () => {
      done();
      reject(new Error(`data/${id}.js is missing beside this page`));
    };
    script.src = `data/${id}.js`;
    document.head.append(script);
  });
}

async function unpack(text: string): Promise<Uint8Array> {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}
