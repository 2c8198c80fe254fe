//! A loaded model, as the worker drives it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use forerun::decoder::calibrate::Calibrations;
use forerun::decoder::{Fusion, FusionChoice, Mode, SamplingOptions};
use forerun::gpu::LimitsRequest;
use forerun::session::{self, BackendChoice, Completing, EngineOptions, Piece, Progress, Prompt, SpelledLogprobs};
use forerun::text::Message;
use js_sys::Function;
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;

use crate::source::JsSource;
use crate::{parse, to_js, to_json};

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Backend {
    #[default]
    Gpu,
    Cpu,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Limits {
    Default,
    #[default]
    Adapter,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum FusionOption {
    #[default]
    Auto,
    None,
    All,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LoadOptions {
    context_length: Option<usize>,
    #[serde(default)]
    backend: Backend,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    fusion: FusionOption,
    #[serde(default)]
    plain: bool,
    #[serde(default)]
    recalibrate: bool,
    #[serde(default)]
    memory: MemoryOption,
}

/// What becomes of the answers; whether they outlive the page is the worker's affair.
#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum MemoryOption {
    Off,
    #[default]
    Session,
    Kept,
}

/// One of `text` and `messages`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    text: Option<String>,
    messages: Option<Vec<Message>>,
    max_tokens: Option<usize>,
    mode: Option<String>,
    #[serde(default)]
    steps: bool,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: Option<u32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logprobs: Option<usize>,
    #[serde(default)]
    logit_bias: BTreeMap<u32, f32>,
}

impl Request {
    /// How tokens are chosen; by default the most probable ones.
    fn sampling(&self) -> SamplingOptions {
        let plain = SamplingOptions::default();
        SamplingOptions {
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_k: self.top_k.unwrap_or(plain.top_k),
            top_p: self.top_p.unwrap_or(plain.top_p),
            min_p: self.min_p.unwrap_or(plain.min_p),
            seed: self.seed.unwrap_or(plain.seed),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(plain.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(plain.frequency_penalty),
            logit_bias: self.logit_bias.iter().map(|(token, bias)| (*token, *bias)).collect(),
        }
    }
}

/// What steps did, for a page that shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Steps {
    tokens: Vec<StepToken>,
    steps: Vec<Step>,
    tree: Vec<Node>,
}

#[derive(Serialize)]
struct StepToken {
    text: String,
    drafted: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    width: u8,
    drafted: u8,
    accepted: u8,
    match_length: u8,
}

#[derive(Serialize)]
struct Node {
    text: String,
    parent: usize,
    accepted: bool,
}

/// What a piece's steps did as JSON, where it is wanted and there were any.
fn report(piece: &Piece<'_>, wanted: bool) -> JsValue {
    if !wanted || piece.news.steps.is_empty() {
        return JsValue::NULL;
    }
    let tokens = piece.tokens.iter().map(|token| StepToken { text: token.text.clone(), drafted: token.drafted });
    let steps = piece.news.steps.iter().map(|step| Step {
        width: step.nodes,
        drafted: step.n_drafted,
        accepted: step.n_accepted,
        match_length: step.match_length,
    });
    let tree = piece.tree().map(|(text, parent, accepted)| Node { text, parent, accepted });
    let steps = Steps { tokens: tokens.collect(), steps: steps.collect(), tree: tree.collect() };
    to_json(&steps).map_or(JsValue::NULL, JsValue::from)
}

/// What was loaded and where it runs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct About {
    architecture: &'static str,
    context_length: usize,
    backend: &'static str,
    adapter: Option<String>,
    is_software: bool,
    fusion: Option<&'static str>,
    dispatches_per_step: usize,
    step_ms: Vec<Option<f64>>,
    window: Option<(usize, usize)>,
    left_out: Vec<String>,
    buffers: usize,
    bindings: usize,
    kernels: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<SpelledLogprobs>>,
    prompt_tokens: usize,
    cached_tokens: usize,
    finish_reason: &'static str,
    mode: &'static str,
    steps: usize,
    drafted: usize,
    accepted: usize,
    tokens_per_step: f64,
    /// Of 1, 2, 4, 8, 16 and 32 nodes.
    steps_by_width: [usize; 6],
    dispatches_per_step: usize,
    ttft_ms: f64,
    decode_ms_per_token: f64,
}

/// A loaded model.
#[wasm_bindgen]
pub struct Engine {
    inner: session::Engine,
}

#[wasm_bindgen]
impl Engine {
    /// Loads the model of `size` bytes behind `read(offset, length) -> Promise<Uint8Array>`; `on_progress(phase, loaded,
    /// total)` hears of each phase (`header`, `weights`, `compile`, `calibrate`, `ready`); `calibrations` is what
    /// [`Engine::calibrations`] gave earlier, or nothing. Throws an `Error` named after its kind.
    pub async fn load(
        name: String,
        size: f64,
        read: Function,
        options: String,
        on_progress: Function,
        calibrations: &[u8],
    ) -> Result<Engine, JsValue> {
        let options: LoadOptions = parse("the options", &options)?;
        let remembers = options.memory != MemoryOption::Off;
        let options = EngineOptions {
            calibrations: Calibrations::from_bytes(calibrations),
            recalibrate: options.recalibrate,
            context: options.context_length,
            backend: match options.backend {
                Backend::Gpu => BackendChoice::Gpu,
                Backend::Cpu => BackendChoice::Cpu,
            },
            limits: match options.limits {
                Limits::Default => LimitsRequest::Default,
                Limits::Adapter => LimitsRequest::Adapter,
            },
            fusion: match options.fusion {
                FusionOption::Auto => FusionChoice::Auto,
                FusionOption::None => FusionChoice::None,
                FusionOption::All => FusionChoice::All,
            },
            plain: options.plain,
            ..EngineOptions::default()
        };
        let source = JsSource::new(name, size as u64, read);
        let mut tell = |progress: Progress| {
            let (phase, loaded, total) = match progress {
                Progress::Header => ("header", 0, 0),
                Progress::Weights { loaded, total } => ("weights", loaded, total),
                Progress::Compile => ("compile", 0, 0),
                Progress::Calibrate => ("calibrate", 0, 0),
                Progress::Ready => ("ready", 0, 0),
            };
            // A listener that throws is the page's own affair.
            let _ = on_progress.call3(&JsValue::NULL, &phase.into(), &(loaded as f64).into(), &(total as f64).into());
        };
        let mut inner = session::Engine::load(&source, &options, &mut tell).await.map_err(to_js)?;
        if let Some(decoder) = inner.gpu_decoder_mut() {
            decoder.set_remembers(remembers);
        }
        Ok(Engine { inner })
    }

    /// What is known of steps and windows on any device, as bytes to be kept for later loads.
    pub fn calibrations(&self) -> Vec<u8> {
        self.inner.calibrations().to_bytes()
    }

    /// The session memory as bytes; none on the CPU, which does not draft.
    #[wasm_bindgen(js_name = exportMemory)]
    pub fn export_memory(&self) -> Vec<u8> {
        self.inner.export_memory()
    }

    /// Replaces the session memory by an exported one; by an empty one where there are no bytes.
    #[wasm_bindgen(js_name = importMemory)]
    pub fn import_memory(&mut self, bytes: &[u8]) -> Result<(), JsValue> {
        self.inner.import_memory(bytes).map_err(to_js)
    }

    /// Tells models apart whose tokens mean other things.
    pub fn fingerprint(&self) -> String {
        format!("{:016x}", self.inner.fingerprint())
    }

    /// What was loaded and where it runs, as JSON.
    pub fn about(&self) -> Result<String, JsValue> {
        let decoder = self.inner.gpu_decoder();
        let created = decoder.map(|decoder| decoder.gpu().created()).unwrap_or_default();
        let adapter = self.inner.adapter();
        to_json(&About {
            architecture: self.inner.config().architecture.name(),
            context_length: self.inner.context(),
            backend: self.inner.backend_name(),
            adapter: adapter.map(|adapter| adapter.name.clone()),
            is_software: adapter.is_some_and(|adapter| adapter.is_software),
            fusion: decoder.map(|decoder| match decoder.fusion() {
                Fusion::NONE => "none",
                Fusion::ALL => "all",
                _ => "some",
            }),
            dispatches_per_step: self.inner.dispatches_per_step(),
            step_ms: decoder
                .filter(|decoder| decoder.window().is_some())
                .map(|decoder| decoder.costs().ms.map(|ms| Some(ms).filter(|ms| ms.is_finite())).to_vec())
                .unwrap_or_default(),
            window: decoder.and_then(|decoder| decoder.window()),
            left_out: decoder.map(|decoder| decoder.left_out().to_vec()).unwrap_or_default(),
            buffers: created.buffers,
            bindings: created.bindings,
            kernels: created.kernels,
        })
    }

    /// Answers a request given as JSON (`text` or `messages`, `maxTokens`, `mode`, `logprobs`, how to sample) and gives
    /// back the whole answer with its statistics as JSON. `on_text(piece, steps)` gets the text as it comes, and now and
    /// then an empty piece; it answers whether to go on. Where the request has `steps`, it also gets what the steps did,
    /// as JSON.
    pub async fn complete(&mut self, request: String, on_text: Function) -> Result<String, JsValue> {
        let request: Request = parse("the request", &request)?;
        let prompt = match (&request.text, &request.messages) {
            (Some(text), None) => Prompt::Raw(text),
            (None, Some(messages)) => Prompt::Chat(messages),
            _ => {
                let error =
                    forerun::Error::BadInput("a request has either a text or messages: give one of them".into());
                return Err(to_js(error));
            }
        };
        let mode = request.mode.as_deref().map_or(Ok(Mode::default()), Mode::from_name).map_err(to_js)?;
        let how = Completing {
            max_tokens: request.max_tokens,
            mode,
            sampling: request.sampling(),
            logprobs: request.logprobs,
        };
        let wants_steps = request.steps;
        let mut tell =
            |piece: &Piece<'_>| match on_text.call2(&JsValue::NULL, &piece.text.into(), &report(piece, wants_steps)) {
                Ok(go_on) if go_on.is_truthy() => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            };
        let answer = self.inner.complete(prompt, &how, &mut tell).await.map_err(to_js)?;
        to_json(&Answer {
            logprobs: request.logprobs.map(|_| self.inner.spelled_logprobs(&answer.generated)),
            finish_reason: answer.finish_reason(),
            prompt_tokens: answer.generated.prompt_tokens,
            cached_tokens: answer.generated.cached_tokens,
            mode: mode.name(),
            steps: answer.generated.steps,
            drafted: answer.generated.n_drafted,
            accepted: answer.generated.n_accepted,
            tokens_per_step: answer.generated.tokens_per_step(),
            steps_by_width: answer.generated.widths,
            dispatches_per_step: self.inner.dispatches_per_step(),
            ttft_ms: answer.generated.ttft_ms,
            decode_ms_per_token: answer.generated.decode_ms_per_token(),
            tokens: answer.generated.tokens,
            text: answer.text,
        })
    }
}
