//! The commands and their options.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use forerun::decoder::{FusionChoice, Mode, SamplingOptions};
use forerun::gpu::LimitsRequest;
use forerun::session::{BackendChoice, EngineOptions};

use crate::cache;
use crate::failure::{Failure, say};

const MODEL_HELP: &str = "A .gguf file, or the name of one in ./models or in $FORERUN_MODELS";

/// Run language models on the GPU.
#[derive(Debug, Parser)]
#[command(
    name = "forerun",
    version,
    max_term_width = 100,
    after_help = "\
Models are GGUF files of the architectures llama (Llama 2 and 3, SmolLM2) and qwen2 (Qwen2, Qwen2.5).

Example:
  forerun run smollm2-135m -p \"Why is the sky blue?\""
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Chat(ChatArgs),
    Inspect(InspectArgs),
    Perplexity(PerplexityArgs),
    GenerateWorkload(GenerateWorkloadArgs),
    Replay(ReplayArgs),
    Agreement(AgreementArgs),
}

impl Command {
    /// Whether the command will open a GPU.
    pub fn uses_gpu(&self) -> bool {
        let engine = match self {
            Command::Run(args) => &args.engine,
            Command::Chat(args) => &args.engine,
            Command::Perplexity(args) => &args.engine,
            Command::GenerateWorkload(args) => &args.engine,
            Command::Agreement(_) => return true,
            Command::Inspect(_) | Command::Replay(_) => return false,
        };
        engine.backend == Backend::Gpu
    }
}

/// Answer one prompt
///
/// The answer goes to stdout as it comes, its statistics to stderr. Ctrl-C ends the answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forerun run smollm2-135m -p \"Why is the sky blue?\" --max-tokens 100
  git diff | forerun run qwen2.5-0.5b --system \"Summarise this change in a line.\" -p -")]
pub struct RunArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// What to ask; `-` reads it from stdin (without a last line break)
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// What the model shall be, in front of the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Continue the text as it stands, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object instead: text, tokens (their ids), prompt_tokens, finish_reason (stop, length or abort),
    /// backend, adapter, mode, steps, n_drafted, n_accepted, tokens_per_step, steps_by_width and step_ms (of 1, 2, 4,
    /// 8, 16 and 32 nodes), window (its steps, and windows in flight), dispatches_per_step, ttft_ms,
    /// decode_ms_per_token
    #[arg(long)]
    pub json: bool,
    /// With --json: for each token its log-probability and those of the N most probable ones in its place (0 to 20), by
    /// the model's own softmax at temperature 1, before penalties and biases
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
}

/// Have a conversation
///
/// A line is a message; in a pipe, the lines of stdin are the messages. Ctrl-C ends an answer.
#[derive(Debug, Args)]
#[command(after_help = "\
While chatting: /clear forgets the conversation, /help lists these words, /exit leaves.

Example:
  forerun chat qwen2.5-0.5b --system \"You answer in one sentence.\"")]
pub struct ChatArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// What the model shall be, in front of the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Show what a model file holds and what it would take in memory
///
/// Shapes, tokenizer and tensors, how each matrix would be held, and the bytes of weights, cache and scratch. Needs no
/// GPU.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  forerun inspect qwen2.5-0.5b --context 8192")]
pub struct InspectArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// Plan the memory for this many tokens [default: 4096, or what the model was trained for]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// List every tensor, not one line for those of all layers
    #[arg(long)]
    pub tensors: bool,
    /// Print one JSON object instead, with every tensor and matrix, in bytes
    #[arg(long)]
    pub json: bool,
}

/// Measure how well a model predicts a text
///
/// Perplexity is the exponential of the mean negative log-likelihood of the text's tokens, each predicted from those in
/// front of it in a window as long as the context.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  forerun perplexity smollm2-135m book.txt --context 512 --max-tokens 4096")]
pub struct PerplexityArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// The text, in UTF-8: a file or a pipe
    pub file: PathBuf,
    /// Read at most this many tokens of the text
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    pub max_tokens: Option<NonZeroUsize>,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object instead: tokens (how many were predicted), perplexity, ids (the text's tokens), and for
    /// each predicted one nll and top1 (the token the model held most probable there)
    #[arg(long)]
    pub json: bool,
}

/// Answer a file of prompts and record the tokens, for `forerun replay`
///
/// A line of a prompts file is {"task", "id", "messages"}, with messages as chat templates take them; a line of the
/// output is {"task", "id", "prompt", "output", "decode_ms"}, with token ids. Prompts whose ids the output has already
/// are left out, so that a run that was broken off goes on where it ended.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  forerun generate-workload smollm2-135m workload/*.jsonl -o smollm2-135m.jsonl")]
pub struct GenerateWorkloadArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// Files of prompts
    #[arg(required = true)]
    pub prompts: Vec<PathBuf>,
    /// The file to write, or to go on with
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The most tokens of an answer
    #[arg(long, value_name = "N", value_parser = at_least_1, default_value = "128")]
    pub max_tokens: NonZeroUsize,
    /// Answer only the first prompts of each task
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    pub limit: Option<NonZeroUsize>,
    /// How to decode; the tokens are the same
    #[arg(long, value_parser = modes(), default_value = Mode::default().name())]
    pub mode: Mode,
    /// Draft from each prompt alone, not from the answers before it
    #[arg(long)]
    pub no_memory: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Simulate drafting over recorded answers
///
/// Replays the answers that `forerun generate-workload` recorded: a step accepts the longest drafted path that the
/// answer follows, and one token more. Shows the mean number of tokens a step for prompt lookup, a suffix tree and
/// context mixing (the engine's own drafter), without and with a memory of the answers before, and for memories of
/// several sizes. Needs no model and no GPU.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  forerun replay smollm2-135m.jsonl --plot replay.svg")]
pub struct ReplayArgs {
    /// What `forerun generate-workload` wrote
    pub file: PathBuf,
    /// Draw the numbers into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print one JSON object instead: drafters (name, nodes, memory, tokens_per_step, tasks) and memory_sizes
    #[arg(long)]
    pub json: bool,
}

/// Check that settings change no token on this device
///
/// Answers prompts in every mode, with both plans of a step, with the limits and without the features that not every
/// GPU has, and compares the tokens with those of the first way: a readback after each token and a kernel an operation.
/// Ends with 1 if one differs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forerun agreement smollm2-135m
  forerun agreement smollm2-135m workload/*.jsonl --limit 3 --temperature 0.8 --vary --only auto")]
pub struct AgreementArgs {
    #[arg(help = MODEL_HELP)]
    pub model: String,
    /// Files of prompts, as `forerun generate-workload` takes them [default: ten questions]
    pub prompts: Vec<PathBuf>,
    /// The most tokens of an answer
    #[arg(long, value_name = "N", value_parser = at_least_1, default_value = "64")]
    pub max_tokens: NonZeroUsize,
    /// Answer only the first prompts of each task
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    pub limit: Option<NonZeroUsize>,
    /// Compare only the ways whose names hold this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Besides the most probable tokens, compare sampled ones
    #[arg(long, value_name = "T", allow_negative_numbers = true, default_value_t = 0.0)]
    pub temperature: f32,
    /// With --temperature: for how many seeds
    #[arg(long, value_name = "N", default_value = "3")]
    pub seeds: u32,
    /// Vary the windows from answer to answer, and draft from made-up memories: the right answer, wrong ones, any
    /// tokens, answers that turn wrong
    #[arg(long)]
    pub vary: bool,
    /// Tokens the context holds [default: 4096, or what the model was trained for]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
}

/// How to answer.
#[derive(Debug, Args)]
pub struct AnswerArgs {
    /// The most tokens of an answer [default: to the end of the context]
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    pub max_tokens: Option<NonZeroUsize>,
    /// How to decode: a readback after each token (greedy), windows of steps (loop), with draft trees of some width
    /// (tree2 to tree32), or of the width that pays best (adaptive); the tokens are the same
    #[arg(long, value_parser = modes(), default_value = Mode::default().name())]
    pub mode: Mode,
    /// Draft from earlier answers too, kept in this file from session to session
    #[arg(long, value_name = "FILE", conflicts_with = "no_memory")]
    pub memory: Option<PathBuf>,
    /// Draft from the prompt and the conversation alone
    #[arg(long)]
    pub no_memory: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// How tokens are chosen.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// 0 takes the most probable token, 1 samples from the model's own softmax, more is more daring
    #[arg(long, value_name = "T", allow_negative_numbers = true, default_value_t = 0.0, help_heading = "Sampling")]
    pub temperature: f32,
    /// Sample from the K most probable tokens [default: all]
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true, help_heading = "Sampling")]
    pub top_k: usize,
    /// Sample from the most probable tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 1.0, help_heading = "Sampling")]
    pub top_p: f32,
    /// Sample from the tokens at least this many times as probable as the most probable one
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 0.0, help_heading = "Sampling")]
    pub min_p: f32,
    /// The same seed gives the same tokens, in every mode
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Sampling")]
    pub seed: u32,
    /// Divide the positive logits of the last 1,024 tokens and multiply the negative ones
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 1.0, help_heading = "Sampling")]
    pub repetition_penalty: f32,
    /// Take this from the logits of the answer's tokens
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 0.0, help_heading = "Sampling")]
    pub presence_penalty: f32,
    /// Take this from them once for each time they stand in the answer
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 0.0, help_heading = "Sampling")]
    pub frequency_penalty: f32,
    /// Add this to the logit of a token, given by its id; up to 64 times
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = bias, help_heading = "Sampling")]
    pub logit_bias: Vec<(u32, f32)>,
}

impl SamplingArgs {
    /// The engine's own options.
    pub fn options(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
        }
    }
}

/// Where and how a model runs.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Tokens the context holds [default: 4096, or what the model was trained for]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Where the model runs
    #[arg(long, value_enum, default_value_t = Backend::Gpu)]
    pub backend: Backend,
    /// The limits to ask of the GPU
    #[arg(long, value_enum, default_value_t = Limits::Adapter)]
    pub limits: Limits,
    /// Which operations share a kernel; the tokens are the same
    #[arg(long, value_enum, default_value_t = Fusion::Auto)]
    pub fusion: Fusion,
    /// Time steps and windows again, not as an earlier run with this GPU and model did
    #[arg(long)]
    pub recalibrate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// On the GPU
    Gpu,
    /// On the CPU
    Cpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Limits {
    /// What WebGPU promises everywhere
    Default,
    /// All that the adapter offers
    Adapter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fusion {
    /// Time both plans and take the faster
    Auto,
    /// A kernel for each operation
    None,
    /// As few dispatches as there can be
    All,
}

/// The names of the engine's modes.
fn modes() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::NAMED.map(|(name, _)| name))
        .try_map(|name| Mode::from_name(&name).map_err(|error| error.to_string()))
}

impl EngineArgs {
    /// The engine's own options.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            calibrations: cache::calibrations(),
            recalibrate: self.recalibrate,
            context: self.context,
            backend: match self.backend {
                Backend::Gpu => BackendChoice::Gpu,
                Backend::Cpu => BackendChoice::Cpu,
            },
            limits: match self.limits {
                Limits::Default => LimitsRequest::Default,
                Limits::Adapter => LimitsRequest::Adapter,
            },
            fusion: match self.fusion {
                Fusion::Auto => FusionChoice::Auto,
                Fusion::None => FusionChoice::None,
                Fusion::All => FusionChoice::All,
            },
            ..EngineOptions::default()
        }
    }
}

fn bias(text: &str) -> Result<(u32, f32), &'static str> {
    let (token, bias) = text.split_once('=').ok_or("give a token's id and a number, as in 42=-1.5")?;
    let parsed = token.trim().parse().ok().zip(bias.trim().parse().ok());
    parsed.ok_or("give a token's id and a number, as in 42=-1.5")
}

fn at_least_1(text: &str) -> Result<NonZeroUsize, &'static str> {
    text.parse().map_err(|_| "give a number from 1 on")
}

/// Prints help where it was asked for, and what is wrong with the arguments in one sentence where it was not.
pub fn explain(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        // A closed pipe is no reason to complain about help.
        let _ = error.print();
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            say("no command was given: choose one of those above");
        }
        return ExitCode::from(error.exit_code() as u8);
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<&str> =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information")).collect();
    let told = told.join(" ").replace(" tip: ", "; tip: ");
    let told = told.strip_prefix("error: ").unwrap_or(&told);
    let words: Vec<String> = std::env::args().skip(1).take(1).filter(|word| !word.starts_with('-')).collect();
    let command = match words.first() {
        Some(word) if error.kind() != ErrorKind::InvalidSubcommand => format!("forerun {word} --help"),
        _ => "forerun --help".into(),
    };
    Failure::Input(format!("{}; see `{command}`", told.trim_end_matches('.'))).report()
}
