// Shows speculation at work: which tokens were guessed, the tree of the last step, the width that was chosen.
//
// `?model=URL&mode=tree8&max=160&run` fills the form and starts at once.

import { load, type Engine, type LoadOptions, type StepReport } from "forerun";
import { PHASES, element, tell } from "../shared.ts";

const TEXT = `The harbour of Westrand was built in 1871, when the old quay could no longer hold the herring fleet. Its two stone piers reach 400 metres into the sea, and a lighthouse with a red lantern stands at the end of the northern pier. For ninety years the herring fleet sailed from the harbour every evening in autumn and came back before dawn.

In 1962 the herring stayed away. Within three winters most of the fleet was sold, and the ice factory on the southern pier closed. The town thought of filling the harbour, but the stone piers were too costly to remove. A group of sailors rented the empty ice factory instead, and in 1974 they opened a school for wooden boats in it.

Today the school for wooden boats teaches 120 pupils a year. They repair old fishing boats, and each summer one boat is launched from the northern pier, under the lighthouse with the red lantern. The school for wooden boats also keeps a register of the herring fleet: of the 83 boats that once sailed from the harbour, 31 are still afloat, and nine of them are back in Westrand.`;
const QUESTION = "Answer in four short sentences, in the words of the text: what happened to the harbour and to the herring fleet?";

interface Step {
  width: number;
  tokens: number;
}

const query = new URLSearchParams(location.search);
const url = element<HTMLInputElement>("url");
const mode = element<HTMLSelectElement>("mode");
const max = element<HTMLInputElement>("max");
const buttons = [element<HTMLButtonElement>("answer"), element<HTMLButtonElement>("compare"), element<HTMLButtonElement>("choose")];
let engine: Engine | undefined;
let loaded: string | File | undefined;
let file: File | undefined;
let last: { tokens: number[]; ms: number; mode: string } | undefined;

url.value = query.get("model") ?? "../models/smollm2-135m.gguf";
mode.value = query.get("mode") ?? "adaptive";
max.value = query.get("max") ?? max.value;
element<HTMLTextAreaElement>("text").value = query.get("text") ?? TEXT;
element<HTMLInputElement>("question").value = query.get("question") ?? QUESTION;

function show(state: "choose" | "loading" | "answering" | "ready" | "failed"): void {
  document.documentElement.dataset.state = state;
  const isBusy = state === "loading" || state === "answering";
  for (const button of buttons) button.disabled = isBusy;
  element<HTMLButtonElement>("compare").disabled = isBusy || !last;
}

async function ready(): Promise<Engine> {
  const model = file ?? url.value;
  if (engine && loaded === model) return engine;
  engine?.dispose();
  engine = undefined;
  last = undefined;
  show("loading");
  const onProgress: LoadOptions["onProgress"] = ({ phase, loaded, total }) => {
    const share = total > 0 ? ` ${((100 * loaded) / total).toFixed(0)} %` : "";
    element("status").textContent = `${PHASES[phase]}${share}`;
  };
  engine = await load(model, { onProgress });
  loaded = model;
  const { adapter, isSoftware } = engine.info;
  element("adapter").textContent = `${adapter ?? "CPU"}${isSoftware ? " (software)" : ""}`;
  element("adapter").hidden = false;
  return engine;
}

function prompt(): string {
  const text = element<HTMLTextAreaElement>("text").value.trim();
  const question = element<HTMLInputElement>("question").value.trim();
  return text ? `${text}\n\n${question}` : question;
}

async function answer(): Promise<void> {
  element("error").hidden = true;
  element("comparison").textContent = "";
  try {
    const model = await ready();
    show("answering");
    element("status").textContent = "Reading the text";
    element("shown").hidden = false;
    element("output").replaceChildren();
    const steps: Step[] = [];
    let began = 0;
    let tokens = 0;
    const onSteps = (report: StepReport) => {
      began ||= performance.now();
      element("status").textContent = "Answering";
      append(report);
      steps.push(...report.steps.map(({ width, accepted }) => ({ width, tokens: accepted + 1 })));
      tokens += report.tokens.length;
      draw(steps);
      if (report.tree.length) grow(report.tree);
      const seconds = (performance.now() - began) / 1000;
      if (seconds > 0.2) element("speed").textContent = (tokens / seconds).toFixed(0);
      element("gain").textContent = (tokens / steps.length).toFixed(2);
    };
    const chosen = mode.value as LoadOptions["mode"] & string;
    const messages = [{ role: "user", content: prompt() }];
    const done = await model.generate(messages, { mode: chosen, maxTokens: Number(max.value), onSteps }).completion;
    // Where no step reports, as on the CPU, the text still stands.
    if (!element("output").textContent) element("output").textContent = done.text;
    figures(done.decodeMsPerToken, done.tokensPerStep, done.drafted, done.accepted);
    last = { tokens: done.tokens, ms: done.decodeMsPerToken, mode: chosen };
    element("status").textContent = `${done.tokens.length} tokens in ${done.steps} steps`;
    show("ready");
  } catch (error) {
    fail(error);
  }
}

/** The same prompt without guesses: the time, and whether the tokens are the same. */
async function compare(): Promise<void> {
  if (!last || !engine) return;
  element("comparison").textContent = "Answering again, without guesses …";
  show("answering");
  try {
    const messages = [{ role: "user", content: prompt() }];
    const plain = await engine.generate(messages, { mode: "loop", maxTokens: last.tokens.length }).completion;
    const isSame = plain.tokens.join() === last.tokens.slice(0, plain.tokens.length).join();
    const gain = (plain.decodeMsPerToken / last.ms).toFixed(2);
    element("comparison").textContent = `Without guesses ${plain.decodeMsPerToken.toFixed(2)} ms a token, with ${last.mode} ${last.ms.toFixed(2)}: ${gain} times as fast. ${isSame ? "The tokens are the same." : "The tokens differ!"}`;
    show("ready");
  } catch (error) {
    fail(error);
  }
}

function fail(error: unknown): void {
  tell(element("error"), error);
  element("status").textContent = "";
  show("failed");
}

function append({ tokens }: StepReport): void {
  const spans = tokens.map(({ text, drafted }) => {
    const span = document.createElement("span");
    span.textContent = text;
    if (drafted) span.className = "drafted";
    return span;
  });
  element("output").append(...spans);
}

function figures(ms: number, perStep: number, drafted: number, accepted: number): void {
  element("speed").textContent = ms > 0 ? (1000 / ms).toFixed(ms > 100 ? 1 : 0) : "–";
  element("pace").textContent = ms > 0 ? ms.toFixed(2) : "–";
  element("gain").textContent = perStep.toFixed(2);
  element("rate").textContent = drafted ? `${((100 * accepted) / drafted).toFixed(0)} %` : "–";
}

function shape(name: string, attributes: Record<string, string | number>, text = ""): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.textContent = text;
  return element;
}

/** The last steps: bars for tokens, a line for the width, both on a scale of doublings. */
function draw(steps: Step[]): void {
  const shown = steps.slice(-80);
  const [width, height, left, bottom] = [480, 170, 26, 150];
  const level = (n: number) => bottom - (Math.log2(n) / 5) * 135;
  const across = (width - left) / Math.max(shown.length, 24);
  const marks = [1, 2, 4, 8, 16, 32].flatMap((n) => [
    shape("line", { class: "grid", x1: left, x2: width, y1: level(n), y2: level(n) }),
    shape("text", { x: left - 6, y: level(n) + 4, "text-anchor": "end" }, String(n)),
  ]);
  const bars = shown.map(({ tokens }, i) =>
    shape("rect", { class: "bar-mark", x: left + i * across + 1, width: Math.max(across - 2, 1), y: level(tokens) - 4, height: bottom + 4 - level(tokens) }),
  );
  const path = shown.map(({ width }, i) => `${i ? "L" : "M"}${left + i * across} ${level(width)}H${left + (i + 1) * across}`).join("");
  const label = shape("text", { x: left, y: height - 2 }, "line: nodes of the step · bars: tokens it gave");
  element("chart").setAttribute("viewBox", `0 0 ${width} ${height}`);
  element("chart").replaceChildren(...marks, ...bars, shape("path", { class: "width", d: path }), label);
}

/** The tree from left to right, a column for each depth; whitespace is made visible. */
function grow(tree: StepReport["tree"]): void {
  const depth: number[] = [];
  const line: number[] = [];
  const children = tree.map((_, node) => tree.flatMap(({ parent }, child) => (child > 0 && parent === node ? [child] : [])));
  let lines = 0;
  const place = (node: number, column: number): void => {
    depth[node] = column;
    const [first, ...rest] = children[node] ?? [];
    line[node] = lines;
    if (first === undefined) lines += 1;
    else [first, ...rest].forEach((child) => place(child, column + 1));
  };
  place(0, 0);
  const [column, row, box, high] = [104, 30, 84, 22];
  const x = (node: number) => 1 + depth[node]! * column;
  const y = (node: number) => 4 + line[node]! * row;
  const links = tree.slice(1).map(({ parent, accepted }, i) => {
    const [from, to] = [x(parent) + box, x(i + 1)];
    const [up, down] = [y(parent) + high / 2, y(i + 1) + high / 2];
    return shape("path", { class: accepted ? "accepted" : "", d: `M${from} ${up}C${from + 12} ${up} ${to - 12} ${down} ${to} ${down}` });
  });
  const nodes = tree.map(({ text, accepted }, node) => {
    const group = shape("g", { class: accepted ? "accepted" : "" });
    const visible = text.replaceAll(" ", "·").replaceAll("\n", "↵");
    group.append(
      shape("rect", { x: x(node), y: y(node), width: box, height: high, rx: 6 }),
      shape("text", { x: x(node) + 7, y: y(node) + 15 }, visible.length > 12 ? `${visible.slice(0, 11)}…` : visible),
    );
    return group;
  });
  const [width, height] = [(Math.max(...depth) + 1) * column, lines * row + 8];
  const svg = element("tree");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", String(width));
  svg.setAttribute("height", String(height));
  svg.replaceChildren(...links, ...nodes);
}

element<HTMLFormElement>("form").addEventListener("submit", (event) => {
  event.preventDefault();
  void answer();
});
element("compare").addEventListener("click", () => void compare());
element("choose").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", () => {
  file = element<HTMLInputElement>("file").files?.[0];
  if (file) {
    url.value = file.name;
    void answer();
  }
});
url.addEventListener("input", () => (file = undefined));
if (query.has("run")) void answer();
