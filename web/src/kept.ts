// What stays in the browser between visits, in IndexedDB: calibrations, and session memories where a page wants it.
// Only speed depends on it, so a browser that keeps nothing (a private window, a full disk) changes nothing else.

import { createStore, del, get, set } from "idb-keyval";

const store = createStore("forerun", "kept");

/** What was kept under a name; nothing where there is none. */
export async function read(name: string): Promise<Uint8Array> {
  const bytes = await get<unknown>(name, store).catch(() => undefined);
  return bytes instanceof Uint8Array ? bytes : new Uint8Array();
}

/** Keeps bytes under a name; of none, nothing stays. */
export async function write(name: string, bytes: Uint8Array): Promise<void> {
  await (bytes.length > 0 ? set(name, bytes, store) : del(name, store)).catch(() => {});
}
