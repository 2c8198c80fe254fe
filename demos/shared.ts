// What the demo pages share: finding elements, the names of the phases of loading, and telling errors.

import type { Progress } from "forerun";

/** What a person reads while a model is loaded. */
export const PHASES: Record<Progress["phase"], string> = {
  start: "Starting the engine",
  header: "Reading the header",
  weights: "Loading the weights",
  compile: "Preparing and checking the kernels",
  calibrate: "Timing steps",
  ready: "Ready",
};

/** The element with an id, which the page has. */
export function element<T extends Element = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as unknown as T;
}

/** Shows an error's sentence in `place`, with a capital letter and a full stop. */
export function tell(place: HTMLElement, error: unknown): void {
  const sentence = error instanceof Error ? error.message : String(error);
  place.textContent = sentence.charAt(0).toUpperCase() + sentence.slice(1) + (/[.!?]$/.test(sentence) ? "" : ".");
  place.hidden = false;
}
