// Forerun in a page: load a model, stream its answers.

export { Engine, load, type GenerateOptions, type Generation, type LoadOptions } from "./engine.ts";
export { ForerunError } from "./protocol.ts";
export type { Completion, EngineInfo, EngineOptions, Logprobs, Message, Mode, Progress, SamplingOptions, StepReport, TokenLogprob } from "./protocol.ts";
