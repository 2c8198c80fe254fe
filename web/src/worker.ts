// The dedicated worker that hosts the engine: the page stays free while it works. One thing is done at a time; the
// page's side (engine.ts) asks for the next when the last is done, and only an abort comes in between.

import init, { Engine } from "../pkg/forerun.js";
import * as kept from "./kept.ts";
import { ForerunError, type EngineInfo, type EngineOptions, type FromWorker, type ToWorker } from "./protocol.ts";
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
let memoryOption: EngineOptions["memory"];
/** Under which name calibrations are kept. */
const CALIBRATIONS = "calibrations";

function say(message: FromWorker): void {
  scope.postMessage(message);
}

function tell(phase: string, loaded = 0, total = 0): void {
  const progress = { phase, loaded, total } as Extract<FromWorker, { kind: "progress" }>["progress"];
  say({ kind: "progress", progress });
}

function loaded(): Engine {
  if (!engine) throw new ForerunError("BadInputError", "no model is loaded: load one first");
  return engine;
}

function info(): EngineInfo {
  return { ...JSON.parse(loaded().about()), heapBytes: memory?.buffer.byteLength };
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
  const known = await kept.read(CALIBRATIONS);
  try {
    engine = await Engine.load(name, size, read, JSON.stringify(options, named), tell, known);
  } finally {
    source.close();
  }
  await kept.write(CALIBRATIONS, engine.calibrations());
  memoryOption = options.memory;
  if (memoryOption === "kept") {
    try {
      engine.importMemory(await kept.read(memoryName(engine)));
    } catch {
      // Not of this model, or damaged: what comes next takes its place.
    }
  }
  return info();
}

/** JSON would make null of these, which means that an option is not given. */
function named(_key: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

/** Under which name a model's memory is kept. */
function memoryName(engine: Engine): string {
  return `memory ${engine.fingerprint()}`;
}

async function keepMemory(engine: Engine): Promise<void> {
  if (memoryOption === "kept") await kept.write(memoryName(engine), engine.exportMemory());
}

async function importMemory(bytes: Uint8Array): Promise<void> {
  loaded().importMemory(bytes);
  await keepMemory(loaded());
}

async function complete({ request }: Extract<ToWorker, { kind: "complete" }>): Promise<unknown> {
  const answer = await loaded().complete(JSON.stringify(request, named), (piece: string, steps: string | null) => {
    if (steps) say({ kind: "text", piece, steps: JSON.parse(steps) });
    else if (piece) say({ kind: "text", piece });
    return !isAborted;
  });
  await keepMemory(loaded());
  return JSON.parse(answer);
}

function serve(message: Exclude<ToWorker, { kind: "abort" }>): unknown {
  switch (message.kind) {
    case "load":
      return load(message);
    case "complete":
      return complete(message);
    case "info":
      return info();
    case "exportMemory":
      return loaded().exportMemory();
    case "importMemory":
      return importMemory(message.bytes);
  }
}

scope.onmessage = async ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "abort") {
    isAborted = true;
    source?.close();
    return;
  }
  isAborted = false;
  try {
    say({ kind: "done", value: await serve(data) });
  } catch (error) {
    const { name, message } = error instanceof Error || error instanceof DOMException ? error : new Error(String(error));
    say({ kind: "failed", failure: { name, message } });
  }
};
