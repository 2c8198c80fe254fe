// What the page and its worker say to each other.

/** What loading is doing. */
export interface Progress {
  /** `start`: the engine itself is fetched. `header`, `weights`: the model is read. `compile`: kernels are compiled and compared. `calibrate`: steps and windows are timed. */
  phase: "start" | "header" | "weights" | "compile" | "calibrate" | "ready";
  /** Bytes of the model read so far, in the phase `weights`. */
  loaded: number;
  /** Bytes of the model to read, in the phase `weights`. */
  total: number;
}

/** How the loop decodes. The tokens do not depend on it. */
export type Mode = "adaptive" | "loop" | "greedy" | "tree2" | "tree4" | "tree8" | "tree16" | "tree32";

/** Options for the engine itself; the names are those that the bindings read. */
export interface EngineOptions {
  /** Tokens the context shall hold. */
  contextLength?: number;
  /** Where the model runs. */
  backend?: "gpu" | "cpu";
  /** Which limits to ask the adapter for: all it offers, or what WebGPU promises everywhere. */
  limits?: "default" | "adapter";
  /** Which plan of a step to use. `auto` times both once. */
  fusion?: "auto" | "none" | "all";
  /** Leaves out optional GPU features. */
  plain?: boolean;
  /** Times steps and windows again, where the browser keeps what an earlier visit found. */
  recalibrate?: boolean;
  /**
   * Whether guesses are taken from earlier answers too: never (`off`), from those of this engine (`session`, the
   * default), or from those of earlier visits with this model as well (`kept`), for which the answers' tokens stay in
   * the browser's storage of this site.
   */
  memory?: "off" | "session" | "kept";
}

/** What was loaded and where it runs. */
export interface EngineInfo {
  architecture: string;
  contextLength: number;
  backend: "gpu" | "cpu";
  /** The adapter as the browser names it; null on the CPU. */
  adapter: string | null;
  /** Whether the adapter is a program on the CPU. */
  isSoftware: boolean;
  fusion: "none" | "all" | "some" | null;
  /** GPU dispatches for one token. */
  dispatchesPerStep: number;
  /** What a step of 1, 2, 4, 8, 16 and 32 nodes takes in milliseconds; null where it was not timed; empty where nothing was. */
  stepMs: (number | null)[];
  /** Steps of a window and windows in flight, where they were calibrated. */
  window: [number, number] | null;
  /** What differs on this device and is not used, a sentence each. */
  leftOut: string[];
  /** GPU objects made so far. */
  buffers: number;
  bindings: number;
  kernels: number;
  /** Bytes of the engine's own memory on the CPU; the weights are on the GPU. */
  heapBytes: number;
}

/** One message of a conversation. */
export interface Message {
  role: "system" | "user" | "assistant" | (string & {});
  content: string;
}

/** How tokens are chosen; by default the most probable ones. The same seed gives the same tokens in every mode. */
export interface SamplingOptions {
  /** 0, the default, for the most probable token; else from 0.01 to 100, where 1 is the model's own softmax. */
  temperature?: number;
  /** Leaves only this many tokens, the most probable ones; 0 leaves all. */
  topK?: number;
  /** Leaves only the most probable tokens that together have this probability. */
  topP?: number;
  /** Leaves only tokens at least this many times as probable as the most probable one. */
  minP?: number;
  /** Tells one answer from another: an integer from 0 to 4,294,967,295. The same one gives the same tokens. */
  seed?: number;
  /** Divides the positive logits of the last 1,024 tokens and multiplies the negative ones. */
  repetitionPenalty?: number;
  /** Is taken from the logits of the answer's tokens, from -2 to 2. */
  presencePenalty?: number;
  /** The same, once for each time that the token stands in the answer. */
  frequencyPenalty?: number;
  /** What the logits of tokens gain, from -100 to 100, by token id; at most 64. */
  logitBias?: Record<number, number>;
}

/** A request, as the bindings read it: a text to continue, or a conversation to answer. */
export interface CompletionRequest extends SamplingOptions {
  text?: string;
  messages?: Message[];
  maxTokens?: number;
  mode?: Mode;
  /** Asks for log-probabilities of each token, with this many of the most probable ones in its place, at most 20. */
  logprobs?: number;
  /** Whether to report what the steps did. */
  steps?: boolean;
}

/** What the steps of a window did. */
export interface StepReport {
  /** The new text, token by token, and whether the token was drafted and accepted. */
  tokens: { text: string; drafted: boolean }[];
  /** Each step's width in nodes, its drafted and accepted tokens, and how many tokens its best candidate matched. */
  steps: { width: number; drafted: number; accepted: number; matchLength: number }[];
  /** The draft tree of the last step, its root first; empty without a draft. */
  tree: { text: string; parent: number; accepted: boolean }[];
}

/** A token and the natural logarithm of its probability (null for a probability of 0). */
export interface TokenLogprob {
  token: string;
  id: number;
  logprob: number | null;
}

/** The log-probability of an answer's token, and the most probable ones in its place. */
export interface Logprobs extends TokenLogprob {
  top: TokenLogprob[];
}

/** A whole answer and how it came about. */
export interface Completion {
  text: string;
  tokens: number[];
  /** Of each token, where the request asked for them: by the model's own softmax at temperature 1, before penalties and biases. */
  logprobs?: Logprobs[];
  promptTokens: number;
  /** Tokens of the prompt that the cache still held. */
  cachedTokens: number;
  finishReason: "stop" | "length" | "abort";
  mode: Mode;
  steps: number;
  /** Drafted tokens that were verified, and those of them that were accepted. */
  drafted: number;
  accepted: number;
  /** Tokens that a decode step gave. */
  tokensPerStep: number;
  /** Decode steps of 1, 2, 4, 8, 16 and 32 nodes. */
  stepsByWidth: number[];
  dispatchesPerStep: number;
  /** From the request to the first token, in milliseconds. */
  ttftMs: number;
  /** Time of each token behind the first, in milliseconds. */
  decodeMsPerToken: number;
}

/** Why a request failed. `name` is the kind: `GpuUnavailableError`, `OutOfMemoryError`, `ModelFormatError`, … */
export class ForerunError extends Error {
  constructor(
    override readonly name: string,
    message: string,
  ) {
    super(message);
  }
}

/** An error on its way between threads. */
export interface Failure {
  name: string;
  message: string;
}

export type ToWorker =
  | { kind: "load"; model: string | Blob; options: EngineOptions }
  | { kind: "complete"; request: CompletionRequest }
  | { kind: "info" }
  | { kind: "exportMemory" }
  | { kind: "importMemory"; bytes: Uint8Array }
  | { kind: "abort" };

export type FromWorker =
  | { kind: "progress"; progress: Progress }
  | { kind: "text"; piece: string; steps?: StepReport }
  | { kind: "done"; value: unknown }
  | { kind: "failed"; failure: Failure };
