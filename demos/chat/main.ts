// A chat with a model that runs in this page.
//
// The address may carry ?model=URL and the options by their names, as in ?mode=greedy&fusion=none; with ?load the
// model is loaded at once. <html data-state> is `choose`, `loading`, `ready` or `answering`.

import { load, type Completion, type Engine, type LoadOptions, type Message, type Progress } from "forerun";
import { PHASES, element, tell } from "../shared.ts";

const SUGGESTIONS = ["Why is the sky blue?", "Explain gravity to a child.", "Write a haiku about the sea."];
const FINISH: Record<Completion["finishReason"], string> = { stop: "", length: "length limit", abort: "stopped" };

const url = element<HTMLInputElement>("url");
const file = element<HTMLInputElement>("file");
const mode = element<HTMLSelectElement>("mode");
const fusion = element<HTMLSelectElement>("fusion");
const backend = element<HTMLSelectElement>("backend");
const context = element<HTMLInputElement>("context");
const longest = element<HTMLInputElement>("max");
const question = element<HTMLTextAreaElement>("question");
const messages = element("messages");

let engine: Engine | undefined;
let loading: AbortController | undefined;
let answering: AbortController | undefined;
let conversation: Message[] = [];

function show(state: "choose" | "loading" | "ready" | "answering"): void {
  document.documentElement.dataset.state = state;
  const isOpen = state === "ready" || state === "answering";
  element("start").hidden = isOpen;
  element("load-form").hidden = state !== "choose";
  element("progress").hidden = state !== "loading";
  for (const id of ["chat", "composer", "change-model", "model-chip"]) element(id).hidden = !isOpen;
  element("new-chat").hidden = !isOpen || conversation.length === 0;
  element("empty").hidden = conversation.length > 0;
  element("send").hidden = state === "answering";
  element("stop").hidden = state !== "answering";
  element<HTMLButtonElement>("send").disabled = question.value.trim() === "";
}

// ---- Loading ----

function options(): LoadOptions {
  return {
    mode: mode.value as NonNullable<LoadOptions["mode"]>,
    fusion: fusion.value as "auto" | "all" | "none",
    backend: backend.value as "gpu" | "cpu",
    ...(context.value ? { contextLength: Number(context.value) } : {}),
  };
}

async function start(model: string | File): Promise<void> {
  const name = model instanceof File ? model.name : (model.split(/[?#]/)[0]?.split("/").pop() ?? model);
  element("load-error").hidden = true;
  loading = new AbortController();
  show("loading");
  element("cancel").focus();
  try {
    engine = await load(model, { ...options(), signal: loading.signal, onProgress: progressReport() });
  } catch (error) {
    show("choose");
    element("load").focus();
    if (!loading.signal.aborted) tell(element("load-error"), error);
    return;
  } finally {
    loading = undefined;
  }
  const info = engine.info;
  const adapter = info.adapter ?? "CPU";
  element("model-chip").textContent = name;
  element("adapter").textContent = info.isSoftware ? `${adapter} (software)` : adapter;
  element("adapter").title = `${info.dispatchesPerStep} dispatches a token, context of ${info.contextLength} tokens`;
  element("mode-name").textContent = mode.value;
  if (info.leftOut.length) console.info(info.leftOut.join("\n"));
  startOver();
}

function progressReport(): (progress: Progress) => void {
  const meter = element<HTMLProgressElement>("meter");
  let began = 0;
  return ({ phase, loaded, total }) => {
    element("phase").textContent = PHASES[phase];
    const items = [...element("phases").children] as HTMLElement[];
    const now = items.findIndex((item) => item.dataset.phase === phase);
    items.forEach((item, i) => {
      item.className = i < now ? "done" : i === now ? "now" : "";
    });
    if (total > 0) {
      began ||= performance.now();
      const seconds = (performance.now() - began) / 1000;
      const rate = seconds > 0.5 ? ` · ${megabytes(loaded / seconds)}/s` : "";
      meter.value = loaded / total;
      element("amount").textContent = `${megabytes(loaded)} of ${megabytes(total)}${rate}`;
    } else {
      meter.removeAttribute("value");
      element("amount").textContent = "";
    }
  };
}

function megabytes(bytes: number): string {
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(0)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

// ---- Chatting ----

function startOver(): void {
  conversation = [];
  messages.replaceChildren();
  element("speed").textContent = "–";
  show("ready");
  question.focus();
}

function add(role: "user" | "assistant", text: string): { box: HTMLElement; text: HTMLElement } {
  const box = document.createElement("article");
  box.className = `message ${role}`;
  box.setAttribute("aria-label", role === "user" ? "You" : "Model");
  const body = document.createElement("div");
  body.className = "text";
  body.textContent = text;
  box.append(body);
  messages.append(box);
  return { box, text: body };
}

/** Keeps the end in view, unless the person has scrolled up to read. */
function follow(change: () => void): void {
  const page = document.documentElement;
  const isAtEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (isAtEnd) page.scrollTo({ top: page.scrollHeight, behavior: "instant" });
}

async function ask(text: string): Promise<void> {
  if (!engine || answering) return;
  // The person may start over or change the model meanwhile: this answer then belongs to nothing any more.
  const [answerer, talk] = [engine, conversation];
  talk.push({ role: "user", content: text });
  question.value = "";
  answering = new AbortController();
  show("answering");
  add("user", text);
  const answer = add("assistant", "");
  answer.box.classList.add("is-streaming");
  document.documentElement.scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
  const generation = answerer.generate(talk, { maxTokens: Number(longest.value) || 1024, signal: answering.signal });
  try {
    const began = performance.now();
    let first = 0;
    let pieces = 0;
    for await (const piece of generation) {
      first ||= performance.now();
      pieces += 1;
      follow(() => answer.text.append(piece));
      if (pieces > 1) speak((1000 * (pieces - 1)) / (performance.now() - first), "about ");
      else element("speed").textContent = `first word after ${Math.round(first - began)} ms`;
    }
    const done = await generation.completion;
    talk.push({ role: "assistant", content: done.text });
    finish(answer, done);
  } catch (error) {
    talk.pop();
    const place = document.createElement("p");
    place.className = "error";
    tell(place, error);
    follow(() => answer.box.append(place));
  } finally {
    answer.box.classList.remove("is-streaming");
    answering = undefined;
    if (engine === answerer) {
      show("ready");
      question.focus();
    }
  }
}

function finish(answer: { box: HTMLElement; text: HTMLElement }, done: Completion): void {
  answer.text.textContent = done.text;
  const rate = done.decodeMsPerToken > 0 ? 1000 / done.decodeMsPerToken : 0;
  if (rate) speak(rate);
  const facts = [
    `${done.tokens.length} tokens`,
    rate ? `${rate.toFixed(1)} tokens/s` : "",
    `first after ${Math.round(done.ttftMs)} ms`,
    FINISH[done.finishReason],
  ];
  const stats = document.createElement("p");
  stats.className = "stats numbers";
  stats.textContent = facts.filter(Boolean).join(" · ");
  Object.assign(answer.box.dataset, { tokensPerSecond: rate.toFixed(2), finishReason: done.finishReason, mode: done.mode });
  follow(() => answer.box.append(stats));
}

function speak(tokensPerSecond: number, prefix = ""): void {
  element("speed").textContent = `${prefix}${tokensPerSecond.toFixed(1)} tokens/s`;
}

// ---- Controls ----

element("load-form").addEventListener("submit", (event) => {
  event.preventDefault();
  void start(url.value.trim());
});
element("choose").addEventListener("click", () => file.click());
file.addEventListener("change", () => {
  const chosen = file.files?.[0];
  file.value = "";
  if (chosen) void start(chosen);
});
element("cancel").addEventListener("click", () => loading?.abort());
element("stop").addEventListener("click", () => answering?.abort());
element("new-chat").addEventListener("click", () => {
  answering?.abort();
  startOver();
});
element("change-model").addEventListener("click", () => {
  answering?.abort();
  engine?.dispose();
  engine = undefined;
  conversation = [];
  show("choose");
  url.focus();
});
element("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (text) void ask(text);
});
question.addEventListener("input", () => {
  element<HTMLButtonElement>("send").disabled = question.value.trim() === "";
});
question.addEventListener("keydown", (event) => {
  // While a word is being composed, Enter belongs to the input method.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element<HTMLFormElement>("ask-form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") answering?.abort();
});
for (const text of SUGGESTIONS) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", () => void ask(text));
  element("suggestions").append(button);
}

const asked = new URLSearchParams(location.search);
url.value = asked.get("model") ?? "../models/smollm2-135m.gguf";
for (const field of [mode, fusion, backend, context, longest]) {
  const value = asked.get(field.id);
  if (value !== null) field.value = value;
}
show("choose");
if (asked.has("load")) void start(url.value);
