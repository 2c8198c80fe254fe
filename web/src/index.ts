// Forerun in a page: load a model, stream its answers.

export { Engine, ForerunError, load, type GenerateOptions, type Generation, type LoadOptions } from "./engine.ts";
export type { Completion, EngineInfo, EngineOptions, Logprobs, Message, Mode, Progress, SamplingOptions, StepReport, TokenLogprob } from "./protocol.ts";
