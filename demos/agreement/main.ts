// Checks on this device that modes, plans and limits change no token.
//
// `?model=URL&prompts=10&max=64&run` starts at once; `&post` also posts the report to /agreement and then to /done, for
// a machine without a person. `&workload=URL` asks the prompts of a file as in workload/, `&only=tree,adaptive` takes
// the first configuration and those whose names hold one of these words, `&temperature=0.8&seeds=3` asks every question
// again for each seed.

import { load, type Completion, type GenerateOptions, type LoadOptions, type Message } from "forerun";
import { element, tell } from "../shared.ts";
import questions from "../../tools/prompts.txt?raw";

interface Row {
  name: string;
  same: number;
  prompts: number;
  adapter: string | null;
  fusion: string | null;
  leftOut: string[];
  dispatchesPerStep: number;
  /** Of all answers together, and the median answer's. */
  totalMsPerToken: number;
  decodeMsPerToken: number;
  ttftMs: number;
  tokensPerStep: number;
  stepMs: (number | null)[];
  window: [number, number] | null;
  loadMs: number;
  heapBytes: number;
  tokens: number[][];
  text: string;
}

const configurations: [string, LoadOptions][] = [
  ["greedy, none", { mode: "greedy", fusion: "none" }],
  ["loop, none", { mode: "loop", fusion: "none" }],
  ["greedy, all", { mode: "greedy", fusion: "all" }],
  ["loop, all", { mode: "loop", fusion: "all" }],
  ["loop, all, default limits", { mode: "loop", fusion: "all", limits: "default" }],
  ["loop, all, no optional features", { mode: "loop", fusion: "all", plain: true }],
  ["loop, auto", { mode: "loop", fusion: "auto" }],
  ["tree of 2", { mode: "tree2" }],
  ["tree of 4", { mode: "tree4" }],
  ["tree of 8", { mode: "tree8" }],
  ["tree of 16", { mode: "tree16" }],
  ["tree of 32", { mode: "tree32" }],
  ["adaptive", { mode: "adaptive" }],
];

const query = new URLSearchParams(location.search);
const workload = query.get("workload");
const only = query.get("only")?.split(",");
const temperature = Number(query.get("temperature") ?? 0);
const seeds = temperature ? Number(query.get("seeds") ?? 1) : 0;
const url = element<HTMLInputElement>("url");
const promptCount = element<HTMLInputElement>("prompts");
const maxTokens = element<HTMLInputElement>("max");
const say = (text: string) => (element("status").textContent = text);

url.value = query.get("model") ?? "../models/smollm2-135m.gguf";
promptCount.value = query.get("prompts") ?? promptCount.value;
maxTokens.value = query.get("max") ?? maxTokens.value;

/** What to ask: the questions of a file, each a conversation, or those that the page has. */
async function conversations(): Promise<Message[][]> {
  if (!workload) return questions.trim().split("\n").map((content) => [{ role: "user", content }]);
  const response = await fetch(workload);
  if (!response.ok) throw new Error(`the workload ${workload} cannot be had (${response.status}): give the URL of one`);
  const lines = (await response.text()).trim().split("\n");
  return lines.map((line) => (JSON.parse(line) as { messages: Message[] }).messages);
}

function median(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Answers every question in one configuration. */
async function answers(name: string, options: LoadOptions, prompts: Message[][]): Promise<Row> {
  const started = performance.now();
  const engine = await load(url.value, { contextLength: workload ? 4096 : 1024, ...options, onProgress: ({ phase }) => say(`${name}: ${phase}`) });
  const loadMs = performance.now() - started;
  try {
    const completions: Completion[] = [];
    for (const [i, messages] of prompts.entries()) {
      say(`${name}: question ${i + 1} of ${prompts.length}`);
      const ask = (options: GenerateOptions) => engine.generate(messages, { maxTokens: Number(maxTokens.value), ...options }).completion;
      completions.push(await ask({}));
      for (let seed = 1; seed <= seeds; seed++) completions.push(await ask({ temperature, seed }));
    }
    const info = engine.info;
    const tokens = completions.reduce((sum, completion) => sum + completion.tokens.length, 0);
    return {
      name,
      same: 0,
      prompts: completions.length,
      adapter: info.adapter,
      fusion: info.fusion,
      leftOut: info.leftOut,
      dispatchesPerStep: info.dispatchesPerStep,
      totalMsPerToken:
        completions.reduce((sum, { decodeMsPerToken, tokens }) => sum + decodeMsPerToken * (tokens.length - 1), 0) /
        completions.reduce((sum, { tokens }) => sum + tokens.length - 1, 0),
      decodeMsPerToken: median(completions.map((completion) => completion.decodeMsPerToken)),
      ttftMs: median(completions.map((completion) => completion.ttftMs)),
      tokensPerStep: tokens / completions.reduce((sum, completion) => sum + completion.steps, 0),
      stepMs: info.stepMs,
      window: info.window,
      loadMs,
      heapBytes: info.heapBytes,
      tokens: completions.map((completion) => completion.tokens),
      text: completions[0]?.text ?? "",
    };
  } finally {
    engine.dispose();
  }
}

function show(row: Row): void {
  element("results").hidden = false;
  const cells = [
    row.name,
    `${row.same} of ${row.prompts}`,
    String(row.dispatchesPerStep),
    row.tokensPerStep.toFixed(2),
    row.decodeMsPerToken.toFixed(2),
    `${row.ttftMs.toFixed(0)} ms`,
    `${(row.loadMs / 1000).toFixed(1)} s`,
  ];
  const line = document.createElement("tr");
  line.className = row.same === row.prompts ? "" : "differs";
  line.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
  element("rows").append(line);
}

async function check(): Promise<void> {
  const rows: Row[] = [];
  element("rows").replaceChildren();
  element("error").hidden = true;
  document.documentElement.dataset.state = "loading";
  try {
    const prompts = (await conversations()).slice(0, Number(promptCount.value));
    const chosen = configurations.filter(([name], i) => i === 0 || !only || only.some((word) => name.includes(word)));
    for (const [name, options] of chosen) {
      const row = await answers(name, options, prompts);
      const first = rows[0] ?? row;
      row.same = row.tokens.filter((tokens, i) => tokens.join() === first.tokens[i]?.join()).length;
      rows.push(row);
      show(row);
    }
    const differing = rows.filter((row) => row.same !== row.prompts).length;
    say(differing ? `${differing} configurations differ on ${rows[0]?.adapter}.` : `All the same on ${rows[0]?.adapter}.`);
    document.documentElement.dataset.state = differing ? "differs" : "agrees";
  } catch (error) {
    tell(element("error"), error);
    say("");
    document.documentElement.dataset.state = "failed";
  }
  if (query.has("post")) {
    const error = element("error").textContent;
    await fetch("/agreement", { method: "POST", body: JSON.stringify({ model: url.value, error, rows }) });
    await fetch("/done", { method: "POST", body: "" });
  }
}

element<HTMLFormElement>("form").addEventListener("submit", (event) => {
  event.preventDefault();
  void check();
});
if (query.has("run")) void check();
