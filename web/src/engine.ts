// The page's handle on the engine, which runs in a worker.

import {
  ForerunError, type Completion, type EngineInfo, type EngineOptions, type FromWorker, type Message, type Mode,
  type Progress, type SamplingOptions, type StepReport, type ToWorker,
} from "./protocol.ts";

/** How to load a model. */
export interface LoadOptions extends EngineOptions {
  /** How to decode, where a request does not say. */
  mode?: Mode;
  /** Hears how far loading is. */
  onProgress?: (progress: Progress) => void;
  /** Breaks off loading. */
  signal?: AbortSignal;
}

/** How to answer. */
export interface GenerateOptions extends SamplingOptions {
  /** The most tokens to generate; to the end of the context if absent. */
  maxTokens?: number;
  mode?: Mode;
  /** Asks for log-probabilities of each token, with this many of the most probable ones in its place, at most 20. */
  logprobs?: number;
  /** Hears what the steps did, with each piece of text: for pages that show how the answer comes about. */
  onSteps?: (report: StepReport) => void;
  /** Ends the answer; what was generated so far stands, with the finish reason `abort`. */
  signal?: AbortSignal;
}

/** An answer on its way: iterate over its pieces of text, or wait for the whole. */
export interface Generation extends AsyncIterable<string> {
  /** The whole answer with its statistics. */
  readonly completion: Promise<Completion>;
  /** Ends the answer. */
  abort(): void;
}

interface Pending {
  onProgress?: ((progress: Progress) => void) | undefined;
  onText?: ((piece: string, steps?: StepReport) => void) | undefined;
  resolve(value: unknown): void;
  reject(error: Error): void;
}

/** A loaded model. */
export class Engine {
  private pending: Pending | undefined;
  /** The end of the last request: the next one waits for it. */
  private last: Promise<unknown> = Promise.resolve();
  private dead: Error | undefined;
  private about: EngineInfo | undefined;
  private mode: Mode = "adaptive";

  private constructor(private readonly worker: Worker) {
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.hear(data);
    worker.onerror = (event) => {
      event.preventDefault();
      this.die(new ForerunError("EngineError", `the engine broke down (${event.message || "its worker did not start"}): load the model again`));
    };
  }

  /**
   * Loads a model from a URL or a file (GGUF).
   *
   * @throws ForerunError, whose message says what happened and what to do.
   */
  static async load(model: string | URL | Blob, options: LoadOptions = {}): Promise<Engine> {
    const { mode, onProgress, signal, ...engineOptions } = options;
    signal?.throwIfAborted();
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "forerun" });
    const engine = new Engine(worker);
    if (mode) engine.mode = mode;
    const where = model instanceof Blob ? model : new URL(model, globalThis.document?.baseURI ?? globalThis.location?.href).href;
    // A worker that is compiling kernels hears nothing, so it is ended from outside.
    const onAbort = () => {
      engine.die(new ForerunError("AbortError", "the request was aborted"));
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      engine.about = (await engine.ask({ kind: "load", model: where, options: engineOptions }, { onProgress })) as EngineInfo;
    } catch (error) {
      engine.dispose();
      throw error;
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
    return engine;
  }

  /** What was loaded and where it runs, as it was after loading. */
  get info(): EngineInfo {
    if (!this.about) throw new ForerunError("BadInputError", "no model is loaded: load one first");
    return this.about;
  }

  /** The same, as it is now: GPU objects and memory may have changed. */
  async refreshInfo(): Promise<EngineInfo> {
    this.about = (await this.ask({ kind: "info" }, {})) as EngineInfo;
    return this.about;
  }

  /** The session memory, from which guesses are taken: the tokens of earlier answers, as bytes for {@link importMemory}. */
  async exportMemory(): Promise<Uint8Array> {
    return (await this.ask({ kind: "exportMemory" }, {})) as Uint8Array;
  }

  /** Replaces the session memory by one that was exported with the same model; by an empty one if there are no bytes. */
  async importMemory(bytes: Uint8Array): Promise<void> {
    await this.ask({ kind: "importMemory", bytes }, {});
  }

  /** Continues a text, or answers a conversation. Requests are served one after the other. */
  generate(prompt: string | Message[], options: GenerateOptions = {}): Generation {
    const { maxTokens, mode, onSteps, signal, ...sampling } = options;
    const pieces: string[] = [];
    let isDone = false;
    let wake = () => {};
    let state: "waiting" | "running" | "ended" = "waiting";
    let isAborted = false;
    const abort = () => {
      isAborted = true;
      if (state === "running") this.send({ kind: "abort" });
    };
    const request = {
      ...(typeof prompt === "string" ? { text: prompt } : { messages: prompt }),
      ...(maxTokens === undefined ? {} : { maxTokens }),
      mode: mode ?? this.mode,
      ...(onSteps ? { steps: true } : {}),
      ...sampling,
    };
    const onText = (piece: string, steps?: StepReport) => {
      if (steps) onSteps?.(steps);
      pieces.push(piece);
      wake();
    };
    const onStart = () => {
      if (isAborted) throw new ForerunError("AbortError", "the request was aborted");
      state = "running";
    };
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort, { once: true });
    const completion = this.ask({ kind: "complete", request }, { onText }, onStart) as Promise<Completion>;
    const end = () => {
      state = "ended";
      isDone = true;
      signal?.removeEventListener("abort", abort);
      wake();
    };
    completion.then(end, end);

    async function* stream(): AsyncGenerator<string, void, void> {
      try {
        for (;;) {
          const piece = pieces.splice(0).join("");
          if (piece) yield piece;
          else if (isDone) break;
          else await new Promise<void>((resolve) => (wake = resolve));
        }
        await completion;
      } finally {
        // Whoever leaves the loop early wants no more of it.
        if (!isDone) abort();
      }
    }
    return { completion, abort, [Symbol.asyncIterator]: stream };
  }

  /** Frees the model and the GPU's memory. */
  dispose(): void {
    this.die(new ForerunError("AbortError", "the engine was disposed of: load the model again"));
  }

  private ask(message: ToWorker, listeners: Pick<Pending, "onProgress" | "onText">, onStart = () => {}): Promise<unknown> {
    const answer = this.last.then(() => {
      if (this.dead) throw this.dead;
      onStart();
      return new Promise((resolve, reject) => {
        this.pending = { ...listeners, resolve, reject };
        this.send(message);
      });
    });
    this.last = answer.catch(() => {});
    return answer;
  }

  private send(message: ToWorker): void {
    if (!this.dead) this.worker.postMessage(message);
  }

  private hear(message: FromWorker): void {
    const pending = this.pending;
    if (!pending) return;
    switch (message.kind) {
      case "progress":
        return pending.onProgress?.(message.progress);
      case "text":
        return pending.onText?.(message.piece, message.steps);
      case "done":
        this.pending = undefined;
        return pending.resolve(message.value);
      case "failed":
        this.pending = undefined;
        return pending.reject(new ForerunError(message.failure.name, message.failure.message));
    }
  }

  private die(error: Error): void {
    this.dead ??= error;
    this.worker.terminate();
    this.pending?.reject(error);
    this.pending = undefined;
  }
}

/** Short for {@link Engine.load}. */
export function load(model: string | URL | Blob, options?: LoadOptions): Promise<Engine> {
  return Engine.load(model, options);
}
