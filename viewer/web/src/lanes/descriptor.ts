// A lane is a folder with one descriptor, exported by its lane.ts. Everything else of the page reads descriptors.

import type { Any } from "../data/columns";
import type { TableName } from "../data/contract";
import type { Engine } from "../data/engine";
import type { Selection } from "../view";
import type { Lane, Look } from "./lane";

export interface Descriptor<L extends Lane = Lane> extends Look {
  // Lanes lie in this order from the top: steps are at 10, requests at 110.
  place: number;
  // Tables of the contract without which the lane is not offered.
  needs: readonly TableName[];
  create(engine: Engine): L;
  // The kind of thing that is this lane's own; a click may also select one of another lane's kind.
  selects?: Selectable;
  keys?: Key<L>[];
  // Words on the page that the help explains.
  words?: Entry[];
  address?: AddressPart;
}

export type Entry = [what: string, meaning: string];

// Keys that act on this lane of the engine that is selected, or whose turn it is.
export interface Key<L extends Lane> {
  keys: string[];
  help: Entry;
  run(lane: L, key: string, engine: Engine): void;
}

// Settings of a lane that the page's address keeps.
export interface AddressPart {
  write(address: URLSearchParams): void;
  read(address: URLSearchParams): void;
}

export interface Match {
  label: string;
  more: string;
  run: () => void;
}

// A kind of thing that can be selected: by a click, a key, a link, the search or the page's address.
export interface Selectable<T extends TableName = Any> {
  // Its parameter in the address.
  kind: string;
  // The panel's content.
  describe(selection: Selection<T>): Promise<Node[]>;
  // Selects one by its name in the address; `time` is in the engine's.
  open(engine: Engine, name: string, time: number): Promise<void> | void;
  // Selects the first in that stretch of the engine's time, if there is any.
  first(engine: Engine, from: number, to: number, lane: Lane | undefined): Promise<boolean>;
  // Selects the one after (1) or before (-1).
  next(selection: Selection<T>, by: 1 | -1, lane: Lane | undefined): Promise<void> | void;
  // Its name in the address, if that is not its number.
  name?(selection: Selection<T>): string;
  // Those found by their names.
  search?(engine: Engine, text: string): Promise<Match[]>;
  // The one with that number, if there is one.
  numbered?(engine: Engine, number: number): Match | null;
}
