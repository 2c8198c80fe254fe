// What the browser tests call.

import { load, type Completion, type EngineInfo, type LoadOptions } from "forerun";
import init, { checkGpu } from "../pkg/forerun.js";
import { openBlob, openUrl, type ByteSource } from "../src/source.ts";

const PROMPT = "The quick brown fox jumps over the lazy dog and then some more. ";
const TOKENS = 48;

async function checkInWindow(limits: string, plain: boolean): Promise<unknown> {
  await init();
  return JSON.parse(await checkGpu(limits, plain));
}

function checkInWorker(limits: string, plain: boolean): Promise<unknown> {
  const worker = new Worker(new URL("./check-worker.ts", import.meta.url), { type: "module" });
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data.report));
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage({ limits, plain });
  });
}

// ---- Sources ----

/** Reads as the engine does: a header that grows, then from behind the header on in windows of 16 MiB. */
async function readThrough(source: ByteSource): Promise<{ size: number; hash: string }> {
  const bytes = new Uint8Array(source.size);
  const fill = async (from: number, to: number) => {
    for (let at = from; at < to; ) {
      const piece = await source.read(at, to - at);
      if (piece.length === 0 || piece.length > to - at) throw new Error(`${piece.length} bytes at ${at}`);
      bytes.set(piece, at);
      at += piece.length;
    }
  };
  await fill(0, Math.min(64 << 10, source.size));
  await fill(64 << 10, Math.min(6 << 20, source.size));
  for (let at = 1 << 20; at < source.size; at += 16 << 20) await fill(at, Math.min(at + (16 << 20), source.size));
  source.close();
  // Only a secure context has it, and this page is one.
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return { size: source.size, hash: Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") };
}

const readAll = async (url: string) => readThrough(await openUrl(url));
const readFile = async (url: string) => readThrough(openBlob(await (await fetch(url)).blob()));

// ---- The engine ----

interface Run {
  options: LoadOptions;
  prompt: string;
  maxTokens: number;
  address: string;
  asFile: boolean;
}

async function run({ options, prompt, maxTokens, address, asFile }: Run): Promise<{
  before: EngineInfo;
  after: EngineInfo;
  pieces: string[];
  completion: Completion;
  phases: string[];
}> {
  const phases: string[] = [];
  const model = asFile ? new File([await (await fetch(address)).blob()], "tiny.gguf") : address;
  const onProgress = ({ phase }: { phase: string }) => {
    if (phases.at(-1) !== phase) phases.push(phase);
  };
  const engine = await load(model, { ...options, onProgress });
  const before = engine.info;
  const pieces = [];
  const generation = engine.generate(prompt, { maxTokens });
  for await (const piece of generation) pieces.push(piece);
  const result = { before, after: await engine.refreshInfo(), pieces, completion: await generation.completion, phases };
  engine.dispose();
  return result;
}

async function converse(url: string): Promise<{ first: Completion; second: Completion }> {
  const engine = await load(url);
  const hello = { role: "user", content: "Hello" };
  const first = await engine.generate([hello], { maxTokens: 8 }).completion;
  const more = [hello, { role: "assistant", content: first.text }, { role: "user", content: "More" }];
  const second = await engine.generate(more, { maxTokens: 8 }).completion;
  engine.dispose();
  return { first, second };
}

async function leaveEarly(url: string): Promise<unknown> {
  const engine = await load(url, { mode: "greedy" });
  const generation = engine.generate(PROMPT);
  for await (const _ of generation) break;
  const left = await generation.completion;
  const leaving = new AbortController();
  const signalled = engine.generate(PROMPT, { signal: leaving.signal });
  for await (const _ of signalled) leaving.abort();
  const bySignal = await signalled.completion;
  const beforeStart = await engine.generate(PROMPT, { signal: AbortSignal.abort() }).completion.catch((error) => error.name);
  const next = await engine.generate(PROMPT, { maxTokens: TOKENS }).completion;
  engine.dispose();
  return { left, bySignal, beforeStart, next };
}

async function abortLoading(url: string): Promise<string> {
  const leaving = new AbortController();
  const onProgress = () => leaving.abort();
  return load(url, { signal: leaving.signal, onProgress }).then(
    () => "it loaded",
    (error) => error.name,
  );
}

async function twoAtOnce(url: string): Promise<number[][]> {
  const engine = await load(url);
  const answers = [1, 2].map(() => engine.generate(PROMPT, { maxTokens: TOKENS }).completion);
  const tokens = (await Promise.all(answers)).map((answer) => answer.tokens);
  engine.dispose();
  return tokens;
}

async function useDisposed(url: string): Promise<string> {
  const engine = await load(url);
  engine.dispose();
  return engine.generate(PROMPT).completion.then(
    () => "it answered",
    (error) => `${error.name}: ${error.message}`,
  );
}

async function tooLong(url: string): Promise<{ error: string; next: number[] }> {
  const engine = await load(url);
  const error = await engine.generate("x".repeat(600)).completion.then(
    () => "it answered",
    (error) => `${error.name}: ${error.message}`,
  );
  const next = await engine.generate(PROMPT, { maxTokens: TOKENS }).completion;
  engine.dispose();
  return { error, next: next.tokens };
}

Object.assign(window, {
  checkInWindow, checkInWorker, readAll, readFile, run, converse, leaveEarly, abortLoading, twoAtOnce, useDisposed, tooLong,
});
