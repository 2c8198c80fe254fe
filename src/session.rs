//! A model with its tokenizer and chat template, on one of the backends: text in, text out.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::cpu::{CpuModel, CpuWeights};
use crate::decoder::calibrate::{Calibrations, Key};
use crate::decoder::memory::Memory;
use crate::decoder::request::{Finish, Generated, Mode, News, Request};
use crate::decoder::step::{MEMORY, scratch_sizes, widest_bucket};
use crate::decoder::{FusionChoice, GpuDecoder, SamplingOptions, Weights};
use crate::gpu::{Adapter, Gpu, GpuOptions, LimitsRequest};
use crate::hash::fnv_1a;
use crate::model::plan::MemoryPlan;
use crate::model::{Blocks, Config, MatrixInfo, Model, ModelOptions, STAGING, Source, VectorKind, WeightSink};
use crate::text::{ChatTemplate, Message, RenderOptions, TextStream, Tokenizer};
use crate::{Error, Result, kernels};

/// The context where nothing else is asked for, in tokens.
const DEFAULT_CONTEXT: usize = 4096;

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// On the GPU, through WebGPU's API or a native one.
    #[default]
    Gpu,
    /// On the CPU.
    Cpu,
}

/// How to load a model.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Tokens the context shall hold; at most 4,096, and at most what the model was trained for, where `None`.
    pub context: Option<usize>,
    /// Where the model runs.
    pub backend: BackendChoice,
    /// Which limits to ask the GPU for.
    pub limits: LimitsRequest,
    /// Which plan of a step to use.
    pub fusion: FusionChoice,
    /// Leaves out optional GPU features, so that the plain helpers run.
    pub plain: bool,
    /// Which tensors keep 8 bits.
    pub model: ModelOptions,
    /// What earlier loads found out about steps and windows, from [`Engine::calibrations`]; what fits is not timed again.
    pub calibrations: Calibrations,
    /// Times steps and windows whatever is known, and on adapters too that are programs and so never draft otherwise.
    pub recalibrate: bool,
}

/// What loading is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    /// The header is being read.
    Header,
    /// Weights are on their way to where the model runs.
    Weights {
        /// Bytes of the file read so far.
        loaded: u64,
        /// Bytes of the file to read.
        total: u64,
    },
    /// Kernels are being compiled, compared and timed.
    Compile,
    /// Steps and windows are being timed.
    Calibrate,
    /// Ready to answer.
    Ready,
}

/// What to continue.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// A text as it stands.
    Raw(&'a str),
    /// A conversation, which the model's chat template turns into a text.
    Chat(&'a [Message]),
}

/// How to answer.
#[derive(Debug, Clone, Default)]
pub struct Completing {
    /// The most tokens to generate; to the end of the context where `None`.
    pub max_tokens: Option<usize>,
    /// How the loop decodes.
    pub mode: Mode,
    /// How the tokens are chosen.
    pub sampling: SamplingOptions,
    /// Asks for log-probabilities of each token, with this many of the most probable ones in its place, at most 20. See
    /// [`TokenLogprobs`](crate::decoder::TokenLogprobs).
    pub logprobs: Option<usize>,
}

/// A token and its log-probability, for reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpelledToken {
    /// Its text; where it is a part of a character, that shows as U+FFFD.
    pub token: String,
    /// Its id.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// A token of an answer, and the most probable ones in its place, for reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpelledLogprobs {
    /// The token.
    #[serde(flatten)]
    pub chosen: SpelledToken,
    /// The most probable ones, the most probable one first.
    pub top: Vec<SpelledToken>,
}

/// A piece of an answer, as it comes.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The new text, whole characters only.
    pub text: &'a str,
    /// The same, token by token.
    pub tokens: &'a [PieceToken],
    /// What the backend reported.
    pub news: News<'a>,
    tokenizer: &'a Tokenizer,
}

/// The text that a token added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceToken {
    /// Whole characters: empty where a token is a part of one.
    pub text: String,
    /// Whether the token was drafted and accepted.
    pub drafted: bool,
}

impl Piece<'_> {
    /// The draft tree of the last step: the text of each node, its parent, and whether it was accepted.
    pub fn tree(&self) -> impl Iterator<Item = (String, usize, bool)> {
        self.news.tree.iter().map(|node| (self.tokenizer.piece(node.token).into_owned(), node.parent, node.accepted))
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The text, without the token that ended it.
    pub text: String,
    /// What the backend did.
    pub generated: Generated,
}

impl Completion {
    /// `stop` for an end token, `length` for a limit, `abort` where the caller broke off.
    pub fn finish_reason(&self) -> &'static str {
        match self.generated.finish {
            Some(Finish::EndToken) => "stop",
            Some(Finish::Length) => "length",
            None => "abort",
        }
    }
}

/// A loaded model.
pub struct Engine {
    backend: Backend,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Bytes of the longest token.
    longest_token: usize,
    calibrations: Calibrations,
}

enum Backend {
    Gpu(Box<GpuDecoder>),
    Cpu(Box<CpuModel>),
}

impl Engine {
    /// Loads a model; `on_progress` hears of each phase.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] or [`Error::Unsupported`] for a file that cannot be run, [`Error::BadInput`] for a
    /// context the model cannot hold, [`Error::GpuUnavailable`] and [`Error::OutOfMemory`].
    pub async fn load<S: Source>(
        source: &S,
        options: &EngineOptions,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Engine> {
        on_progress(Progress::Header);
        let model = Model::open(source, &options.model).await?;
        let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
        let template = ChatTemplate::from_metadata(&model.metadata)?;
        let config = &model.config;
        let context = context_length(config, options.context)?;
        let mut calibrations = options.calibrations.clone();
        let backend = match options.backend {
            BackendChoice::Gpu => {
                let gpu = Gpu::new(GpuOptions { limits: options.limits, plain: options.plain }).await?;
                let mut weights = Weights::new(&gpu, config, model.matrices()).await?;
                model.stream(source, STAGING, &mut Reporting { sink: &mut weights, on_progress }).await?;
                gpu.finish().await?;
                on_progress(Progress::Compile);
                let key = calibration_key(gpu.adapter(), options.fusion, &model, &tokenizer, context);
                let known = calibrations.get(&key).filter(|_| !options.recalibrate);
                let fusion = match (options.fusion, &known) {
                    (FusionChoice::Auto, Some(known)) if known.is_fused => FusionChoice::All,
                    (FusionChoice::Auto, Some(_)) => FusionChoice::None,
                    (asked, _) => asked,
                };
                let mut decoder = GpuDecoder::new(&gpu, config, weights, context, fusion).await?;
                match known {
                    Some(known) => decoder.set_calibration(&known).await?,
                    // Draft trees never pay on a program that plays a GPU: it has no work to spare in a step of one.
                    None if gpu.adapter().is_software && !options.recalibrate => {}
                    None => {
                        on_progress(Progress::Calibrate);
                        calibrations.insert(key, &decoder.calibrate().await?);
                    }
                }
                Backend::Gpu(Box::new(decoder))
            }
            BackendChoice::Cpu => {
                let mut weights = CpuWeights::new(config.clone());
                model.stream(source, STAGING, &mut Reporting { sink: &mut weights, on_progress }).await?;
                Backend::Cpu(Box::new(CpuModel::new(weights, context)?))
            }
        };
        on_progress(Progress::Ready);
        let longest_token = (0..tokenizer.vocab_size() as u32).map(|token| tokenizer.token_bytes(token).len()).max();
        Ok(Engine { backend, tokenizer, template, longest_token: longest_token.unwrap_or(1).max(1), calibrations })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        match &self.backend {
            Backend::Gpu(decoder) => decoder.config(),
            Backend::Cpu(decoder) => decoder.config(),
        }
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens the context holds.
    pub fn context(&self) -> usize {
        match &self.backend {
            Backend::Gpu(decoder) => decoder.max_seq_len(),
            Backend::Cpu(decoder) => decoder.max_seq_len(),
        }
    }

    /// `gpu` or `cpu`.
    pub fn backend_name(&self) -> &'static str {
        match &self.backend {
            Backend::Gpu(_) => "gpu",
            Backend::Cpu(_) => "cpu",
        }
    }

    /// The GPU adapter, where the model runs on one.
    pub fn adapter(&self) -> Option<&Adapter> {
        match &self.backend {
            Backend::Gpu(decoder) => Some(decoder.gpu().adapter()),
            Backend::Cpu(_) => None,
        }
    }

    /// The decoder on the GPU, where the model runs there.
    pub fn gpu_decoder(&self) -> Option<&GpuDecoder> {
        match &self.backend {
            Backend::Gpu(decoder) => Some(decoder),
            Backend::Cpu(_) => None,
        }
    }

    /// The decoder on the GPU, to change, where the model runs there.
    pub fn gpu_decoder_mut(&mut self) -> Option<&mut GpuDecoder> {
        match &mut self.backend {
            Backend::Gpu(decoder) => Some(decoder),
            Backend::Cpu(_) => None,
        }
    }

    /// What was given as known when the model was loaded, and what was found out then: to be kept for later loads.
    pub fn calibrations(&self) -> &Calibrations {
        &self.calibrations
    }

    /// The session memory as bytes; empty on the CPU, which does not draft.
    pub fn export_memory(&self) -> Vec<u8> {
        self.gpu_decoder().map(|decoder| decoder.memory().to_bytes(self.fingerprint())).unwrap_or_default()
    }

    /// Replaces the session memory by one that was exported with the same model; by an empty one where there are no
    /// bytes.
    ///
    /// # Errors
    /// [`Error::BadInput`] for bytes that are no memory of this model.
    pub fn import_memory(&mut self, bytes: &[u8]) -> Result<()> {
        let memory = match bytes {
            [] => Memory::new(MEMORY),
            _ => Memory::from_bytes(bytes, self.fingerprint(), self.config().vocab_size, MEMORY)?,
        };
        if let Some(decoder) = self.gpu_decoder_mut() {
            decoder.set_memory(memory);
        }
        Ok(())
    }

    /// Tells models apart whose tokens mean other things: a hash of the vocabulary and of the shape.
    pub fn fingerprint(&self) -> u64 {
        fingerprint(self.config(), &self.tokenizer)
    }

    /// Dispatches of a decode step of one token; 0 on the CPU.
    pub fn dispatches_per_step(&self) -> usize {
        self.gpu_decoder().map_or(0, GpuDecoder::dispatches_per_step)
    }

    /// The tokens of a prompt, as the model will see them.
    ///
    /// # Errors
    /// [`Error::BadInput`] where the model has no chat template or the template refuses the conversation,
    /// [`Error::ContextOverflow`] for a text that is far too long.
    pub fn tokens(&self, prompt: Prompt<'_>) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Raw(text) => self.encode(text, true),
            Prompt::Chat(messages) => {
                let template = self.template.as_ref().ok_or_else(|| {
                    Error::BadInput("this model has no chat template: give it a raw text to continue (--raw)".into())
                })?;
                let spelling = |token: Option<u32>| token.map(|token| self.tokenizer.piece(token)).unwrap_or_default();
                let (bos, eos) = (spelling(self.tokenizer.bos()), spelling(self.tokenizer.eos()));
                let options =
                    RenderOptions { add_generation_prompt: true, bos: &bos, eos: &eos, ..RenderOptions::default() };
                self.encode(&template.render(messages, &options)?, false)
            }
        }
    }

    /// Tokenises a text, unless it is so long that its tokens cannot fit the context: that would only take memory.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        // Normalisation may shorten a text, but not to a quarter.
        let needed = text.len() / 4 / self.longest_token;
        if needed > self.context() {
            return Err(Error::ContextOverflow { needed, context: self.context() });
        }
        self.tokenizer.encode(text, add_special)
    }

    /// Answers a prompt; `on_piece` gets the text as it comes, whole characters only and now and then an empty piece,
    /// and may break off.
    ///
    /// # Errors
    /// As [`Engine::tokens`], [`GpuDecoder::generate`].
    pub async fn complete(
        &mut self,
        prompt: Prompt<'_>,
        how: &Completing,
        on_piece: &mut dyn FnMut(&Piece<'_>) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let tokens = self.tokens(prompt)?;
        let end_tokens = self.tokenizer.end_tokens().to_vec();
        let request = Request {
            prompt: &tokens,
            max_tokens: how.max_tokens.unwrap_or(usize::MAX / 2),
            end_tokens: &end_tokens,
            mode: how.mode,
            sampling: how.sampling.clone(),
            logprobs: how.logprobs,
        };
        let mut text = String::new();
        let mut stream = match prompt {
            Prompt::Raw(_) => TextStream::continuing(&self.tokenizer),
            Prompt::Chat(_) => TextStream::new(&self.tokenizer),
        };
        let tokenizer = &self.tokenizer;
        let mut on_tokens = |news: &News<'_>| {
            let known = text.len();
            // A step gives the tokens that it accepted, and one that was not drafted.
            let drafted = news
                .steps
                .iter()
                .flat_map(|step| std::iter::repeat_n(true, usize::from(step.n_accepted)).chain([false]));
            let mut tokens = Vec::new();
            for (&token, drafted) in news.tokens.iter().zip(drafted.chain(std::iter::repeat(false))) {
                if !end_tokens.contains(&token) {
                    let piece = stream.push(token);
                    text.push_str(&piece);
                    tokens.push(PieceToken { text: piece, drafted });
                }
            }
            on_piece(&Piece { text: &text[known..], tokens: &tokens, news: *news, tokenizer })
        };
        let generated = match &mut self.backend {
            Backend::Gpu(decoder) => decoder.generate(&request, &mut on_tokens).await?,
            Backend::Cpu(decoder) => decoder.generate(&request, &mut on_tokens).await?,
        };
        let rest = stream.finish();
        if !rest.is_empty() {
            text.push_str(&rest);
            let _ = on_piece(&Piece { text: &rest, tokens: &[], news: News::default(), tokenizer });
        }
        Ok(Completion { text, generated })
    }

    /// The log-probabilities of an answer with the tokens' texts, one for each of its tokens; empty where the request did
    /// not ask for them.
    pub fn spelled_logprobs(&self, generated: &Generated) -> Vec<SpelledLogprobs> {
        let spelled = |id, logprob| SpelledToken { token: self.tokenizer.piece(id).into_owned(), id, logprob };
        let pairs = generated.tokens.iter().zip(&generated.logprobs);
        pairs
            .map(|(&id, told)| SpelledLogprobs {
                chosen: spelled(id, told.logprob),
                top: told.top.iter().map(|&(id, logprob)| spelled(id, logprob)).collect(),
            })
            .collect()
    }

    /// Logits behind each token, for measuring: `on_logits(i, logits)` gets those behind token `i`.
    ///
    /// # Errors
    /// As [`GpuDecoder::score`].
    pub async fn score(
        &mut self,
        tokens: &[u32],
        on_logits: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<()> {
        match &mut self.backend {
            Backend::Gpu(decoder) => decoder.score(tokens, on_logits).await,
            Backend::Cpu(decoder) => decoder.score(tokens, on_logits),
        }
    }
}

/// Tells models apart whose tokens mean other things: a hash of the vocabulary and of the shape.
fn fingerprint(c: &Config, tokenizer: &Tokenizer) -> u64 {
    let shape = [c.dim, c.hidden_dim, c.n_layers, c.n_heads, c.n_kv_heads, c.vocab_size];
    let pieces = (0..c.vocab_size as u32).flat_map(|token| tokenizer.token_bytes(token));
    fnv_1a(shape.iter().flat_map(|n| (*n as u64).to_le_bytes()).chain(pieces.copied()))
}

/// What a calibration depends on.
fn calibration_key(
    adapter: &Adapter,
    fusion: FusionChoice,
    model: &Model,
    tokenizer: &Tokenizer,
    context: usize,
) -> Key {
    let formats = fnv_1a(model.matrices().iter().flat_map(|matrix| format!("{matrix:?}").into_bytes()));
    Key {
        adapter: format!("{adapter:?} {fusion:?}"),
        model: format!("{:016x} {formats:016x} context {context}", fingerprint(&model.config, tokenizer)),
        build: format!("{} {:016x}", env!("CARGO_PKG_VERSION"), kernels::fingerprint()),
    }
}

/// The context to make room for: what was asked for, or the default.
///
/// # Errors
/// [`Error::BadInput`] for a context the model cannot hold.
pub fn context_length(config: &Config, asked: Option<usize>) -> Result<usize> {
    match asked {
        None => Ok(config.max_seq_len.min(DEFAULT_CONTEXT)),
        Some(context) if context < 2 || context > config.max_seq_len => Err(Error::BadInput(format!(
            "a context of {context} tokens was asked for but this model takes 2 to {}: choose a length in between",
            config.max_seq_len
        ))),
        Some(context) => Ok(context),
    }
}

/// What a model would take in memory at a context, with the engine's own buffers, on a device whose bindings span
/// `max_binding` bytes.
pub fn memory_plan(model: &Model, context: usize, max_binding: u64) -> MemoryPlan {
    MemoryPlan::new(model, context, |config, context| {
        let context = context.next_multiple_of(crate::decoder::step::CHUNK);
        let tokens = widest_bucket(config, context, max_binding);
        scratch_sizes(config, context, tokens).iter().map(|(_, size)| size).sum()
    })
}

/// A sink that tells how far it is.
struct Reporting<'a, W> {
    sink: &'a mut W,
    on_progress: &'a mut dyn FnMut(Progress),
}

impl<W: WeightSink> WeightSink for Reporting<'_, W> {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()> {
        self.sink.vector(kind, layer, values).await
    }

    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        self.sink.rows(matrix, first_row, rows).await
    }

    fn progress(&mut self, loaded: u64, total: u64) {
        (self.on_progress)(Progress::Weights { loaded, total });
    }
}
