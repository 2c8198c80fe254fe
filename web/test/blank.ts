// What the browser tests call.

import { load, type Completion, type Engine, type EngineInfo, type LoadOptions } from "forerun";
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

/** Loading takes a software GPU many seconds, so what needs no engine of its own shares this one. */
let shared: Engine;

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
  if (shared) engine.dispose();
  else shared = engine;
  return result;
}

async function converse(): Promise<{ first: Completion; second: Completion }> {
  const hello = { role: "user", content: "Hello" };
  const first = await shared.generate([hello], { maxTokens: 8 }).completion;
  const more = [hello, { role: "assistant", content: first.text }, { role: "user", content: "More" }];
  const second = await shared.generate(more, { maxTokens: 8 }).completion;
  return { first, second };
}

async function leaveEarly(): Promise<unknown> {
  const generation = shared.generate(PROMPT, { mode: "greedy" });
  for await (const _ of generation) break;
  const left = await generation.completion;
  const leaving = new AbortController();
  const signalled = shared.generate(PROMPT, { signal: leaving.signal });
  for await (const _ of signalled) leaving.abort();
  const bySignal = await signalled.completion;
  const beforeStart = await shared.generate(PROMPT, { signal: AbortSignal.abort() }).completion.catch((error) => error.name);
  return { left, bySignal, beforeStart, next: await nextTokens() };
}

async function nextTokens(): Promise<number[]> {
  return (await shared.generate(PROMPT, { maxTokens: TOKENS }).completion).tokens;
}

/** Tokens of a request that samples, in several modes, with another seed, and without. */
async function sample(): Promise<{ same: number[][]; other: number[]; plain: number[]; errors: string[] }> {
  const options = { maxTokens: 24, temperature: 0.8, topP: 0.9, repetitionPenalty: 1.1, logitBias: { 65: 1.5 }, seed: 7 };
  const tokens = async (more: object) => (await shared.generate(PROMPT, { ...options, ...more }).completion).tokens;
  const same = [];
  for (const mode of ["greedy", "loop", "tree4", "tree16"]) same.push(await tokens({ mode }));
  const errors = [];
  for (const wrong of [{ topP: 2 }, { temperature: Number.NaN }]) errors.push(await nameOfFailure(shared.generate(PROMPT, wrong).completion));
  return { same, other: await tokens({ seed: 8 }), plain: await nextTokens(), errors };
}

/** What the browser keeps from one engine to the next: calibrations, and the memory where it is asked for. */
async function keep(url: string): Promise<Record<string, unknown>> {
  const phases: string[] = [];
  const first = await load(url, { memory: "kept", recalibrate: true, onProgress: ({ phase }) => void phases.push(phase) });
  const { window: timed } = first.info;
  const completion = await first.generate(PROMPT, { maxTokens: 24 }).completion;
  const memory = await first.exportMemory();
  first.dispose();
  const again: string[] = [];
  const second = await load(url, { memory: "kept", onProgress: ({ phase }) => void again.push(phase) });
  const kept = await second.exportMemory();
  const tokens = (await second.generate(PROMPT, { maxTokens: 24, mode: "tree4" }).completion).tokens;
  const error = await nameOfFailure(second.importMemory(new TextEncoder().encode("a memory of something else")));
  await second.importMemory(new Uint8Array());
  const emptied = (await second.exportMemory()).length;
  await second.importMemory(memory);
  const restored = await second.exportMemory();
  const result = { phases, timed, again, window: second.info.window, completion: completion.tokens, tokens, error, emptied };
  second.dispose();
  return { ...result, memory: memory.length, isKept: `${kept}` === `${memory}`, isRestored: `${restored}` === `${memory}` };
}

/** Log-probabilities, told in several modes. */
async function logprobs(): Promise<{ told: Completion[]; error: string }> {
  const told = [];
  for (const mode of ["greedy", "loop", "tree16"] as const) {
    told.push(await shared.generate(PROMPT, { maxTokens: 24, mode, logprobs: 3 }).completion);
  }
  return { told, error: await nameOfFailure(shared.generate(PROMPT, { logprobs: 21 }).completion) };
}

function twoAtOnce(): Promise<number[][]> {
  return Promise.all([nextTokens(), nextTokens()]);
}

async function tooLong(): Promise<{ error: string; next: number[] }> {
  return { error: await nameOfFailure(shared.generate("x".repeat(600)).completion), next: await nextTokens() };
}

function useDisposed(): Promise<string> {
  shared.dispose();
  return nameOfFailure(shared.generate(PROMPT).completion);
}

function abortLoading(url: string): Promise<string> {
  const leaving = new AbortController();
  return nameOfFailure(load(url, { signal: leaving.signal, onProgress: () => leaving.abort() }));
}

function nameOfFailure(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => "nothing failed",
    (error) => `${error.name}: ${error.message}`,
  );
}

Object.assign(window, {
  checkInWindow, checkInWorker, readAll, readFile, run, converse, leaveEarly, abortLoading, twoAtOnce, useDisposed, tooLong,
  sample, keep, logprobs,
});
