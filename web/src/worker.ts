// The dedicated worker that hosts the engine: the page stays free while it works. One thing is done at a time; the
// page's side (engine.ts) asks for the next when the last is done, and only an abort comes in between.

import init, { Engine } from "../pkg/forerun.js";
import type { EngineInfo, FromWorker, ToWorker } from "./protocol.ts";
import { openBlob, openUrl, type ByteSource } from "./source.ts";

/** What of a worker's global scope is used here; TypeScript's own types of it clash with a page's. */
const scope = self as unknown as {
  postMessage(message: FromWorker): void;
  onmessage: (event: MessageEvent<ToWorker>) => void;
};
let memory: WebAssembly.Memory | undefined;
let engine: Engine | undefined;
let source: ByteSource | undefined;
let isAborted = false;

function say(message: FromWorker): void {
  scope.postMessage(message);
}

function tell(phase: string, loaded = 0, total = 0): void {
  const progress = { phase, loaded, total } as Extract<FromWorker, { kind: "progress" }>["progress"];
  say({ kind: "progress", progress });
}

function info(): EngineInfo {
  if (!engine || !memory) throw new Error("no model is loaded: load one first");
  return { ...JSON.parse(engine.about()), heapBytes: memory.buffer.byteLength };
}

async function load({ model, options }: Extract<ToWorker, { kind: "load" }>): Promise<EngineInfo> {
  tell("start");
  ({ memory } = await init());
  source = typeof model === "string" ? await openUrl(model) : openBlob(model);
  const { name, size } = source;
  const read = (offset: number, length: number) => {
    if (isAborted) return Promise.reject(new DOMException("the request was aborted", "AbortError"));
    return source!.read(offset, length);
  };
  try {
    engine = await Engine.load(name, size, read, JSON.stringify(options, named), tell);
  } finally {
    source.close();
  }
  return info();
}

/** JSON would make null of these, which means that an option is not given. */
function named(_key: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

async function complete({ request }: Extract<ToWorker, { kind: "complete" }>): Promise<unknown> {
  if (!engine) throw new Error("no model is loaded: load one first");
  const answer = await engine.complete(JSON.stringify(request, named), (piece: string, steps: string | null) => {
    if (steps) say({ kind: "text", piece, steps: JSON.parse(steps) });
    else if (piece) say({ kind: "text", piece });
    return !isAborted;
  });
  return JSON.parse(answer);
}

scope.onmessage = async ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "abort") {
    isAborted = true;
    source?.close();
    return;
  }
  isAborted = false;
  try {
    const value = data.kind === "load" ? await load(data) : data.kind === "complete" ? await complete(data) : info();
    say({ kind: "done", value });
  } catch (error) {
    const { name, message } = error instanceof Error || error instanceof DOMException ? error : new Error(String(error));
    say({ kind: "failed", failure: { name, message } });
  }
};
