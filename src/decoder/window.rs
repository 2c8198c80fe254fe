//! The loop: windows of steps, of which the CPU reads a few bytes each.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::control::{Control, RECENT};
use super::forward::{Fusion, Outcome};
use super::request::{Generated, Mode, OnTokens, Request, check_request, check_tokens, common_prefix};
use super::step::{MEMORY, Scratch, StepKey, Steps, widest_bucket};
use super::weights::Weights;
use crate::gpu::{Gpu, Staging, now_ms};
use crate::model::Config;
use crate::{Error, Result};

/// Windows that may be in flight.
const IN_FLIGHT: usize = 2;
/// The most steps of a window.
const MAX_WINDOW: usize = 4;
/// A window of decode steps should take about this long, in milliseconds: longer ones make the text stutter.
const WINDOW_MS: f64 = 8.0;
/// A submission of prefill steps should take about this long, in milliseconds.
const PREFILL_MS: f64 = 100.0;

/// Which fusion plan to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FusionChoice {
    /// Times both once and takes the faster.
    #[default]
    Auto,
    /// A kernel an operation.
    None,
    /// Six dispatches a layer.
    All,
}

/// A model on the GPU and the loop that decodes with it.
pub struct GpuDecoder {
    pub(super) gpu: Gpu,
    pub(super) config: Config,
    pub(super) weights: Weights,
    pub(super) scratch: Scratch,
    /// Tokens the context holds; the scratch has room for whole chunks.
    context: usize,
    pub(super) steps: Steps,
    /// Nodes of a prefill step.
    pub(super) prefill_tokens: usize,
    pub(super) fusion: Fusion,
    /// Whether the kernels do without subgroups and the packed dot product.
    pub(super) plain: bool,
    staging: Vec<Staging>,
    /// Windows in flight: the staging buffer and the number of steps of each.
    flying: VecDeque<(usize, usize)>,
    /// Tokens whose keys and values are in the cache, from the first position on.
    cached: Vec<u32>,
    /// Milliseconds of a decode step and of a prefill step, as seen last; 0 before the first.
    step_ms: f64,
    prefill_ms: f64,
    /// What the probe at load left out, in words.
    left_out: Vec<String>,
}

impl GpuDecoder {
    /// Makes cache, scratch and steps for a context of `max_seq_len` tokens, and checks on this device that every
    /// step that will be used gives the same bits.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has no room; [`Error::Gpu`] where a kernel does not compile.
    pub async fn new(
        gpu: &Gpu,
        config: &Config,
        weights: Weights,
        max_seq_len: usize,
        fusion: FusionChoice,
    ) -> Result<GpuDecoder> {
        let prefill_tokens = widest_bucket(config, max_seq_len, gpu.adapter().max_binding);
        let scratch = Scratch::new(gpu, config, max_seq_len, prefill_tokens).await?;
        let mut staging = Vec::new();
        for _ in 0..IN_FLIGHT {
            staging.push(gpu.staging(size_of::<Control>() as u64).await?);
        }
        let mut decoder = GpuDecoder {
            gpu: gpu.clone(),
            config: config.clone(),
            weights,
            scratch,
            context: max_seq_len,
            steps: Steps::default(),
            prefill_tokens,
            fusion: Fusion::NONE,
            plain: false,
            staging,
            flying: VecDeque::new(),
            cached: Vec::new(),
            step_ms: 0.0,
            prefill_ms: 0.0,
            left_out: Vec::new(),
        };
        decoder.left_out = decoder.choose_plan(fusion).await?;
        Ok(decoder)
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens the context holds.
    pub fn max_seq_len(&self) -> usize {
        self.context
    }

    /// The GPU it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// What the probe at load found to differ on this device and left out, a sentence each.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The plan in use.
    pub fn fusion(&self) -> Fusion {
        self.fusion
    }

    /// Dispatches of one decode step of one token.
    pub fn dispatches_per_step(&self) -> usize {
        self.steps.get(self.decode_key()).map_or(0, |recording| recording.len())
    }

    pub(super) fn decode_key(&self) -> StepKey {
        StepKey { tokens: 1, outcome: Outcome::Predict, fusion: self.fusion, plain: self.plain }
    }

    pub(super) fn prefill_key(&self) -> StepKey {
        StepKey { tokens: self.prefill_tokens, outcome: Outcome::Prefill, fusion: self.fusion, plain: self.plain }
    }

    pub(super) async fn record(&mut self, keys: &[StepKey]) -> Result<()> {
        self.steps.record(&self.gpu, &self.config, &self.weights, &self.scratch, keys).await
    }

    pub(super) fn recording(&self, key: StepKey) -> Result<&crate::gpu::Recording> {
        let missing = || Error::Gpu { what: format!("step {key:?}"), message: "it was not recorded".into() };
        self.steps.get(key).ok_or_else(missing)
    }

    /// Continues `request.prompt`. What the cache holds of the prompt already is not computed again.
    ///
    /// # Errors
    /// [`Error::ContextOverflow`] where the prompt leaves no room for a token; [`Error::BadInput`] for an empty
    /// prompt, a token outside the vocabulary, or too many end tokens; [`Error::DeviceLost`].
    pub async fn generate(&mut self, request: &Request<'_>, on_tokens: OnTokens<'_>) -> Result<Generated> {
        let started = now_ms();
        check_request(request, &self.config, self.context)?;
        self.land().await?;
        let n_prompt = request.prompt.len();
        let cached_tokens = common_prefix(&self.cached, request.prompt).min(n_prompt - 1);
        self.cached.truncate(cached_tokens);
        self.start(request, cached_tokens);
        let mut generated = Generated::nothing(n_prompt, cached_tokens);
        if self.prefill(&request.prompt[cached_tokens..n_prompt - 1], on_tokens).await?.is_break() {
            return Ok(generated);
        }
        let decoded = self.decode(request, on_tokens, started, &mut generated).await;
        if decoded.is_err() {
            self.cached.clear();
            decoded?;
        }
        // The cache holds every token of the context but the last, whose step is yet to come.
        self.cached.push(request.prompt[n_prompt - 1]);
        self.cached.extend_from_slice(&generated.tokens);
        self.cached.pop();
        Ok(generated)
    }

    /// Waits for windows that an earlier, dropped request left in flight.
    async fn land(&mut self) -> Result<()> {
        while let Some(&(slot, _)) = self.flying.front() {
            self.cached.clear();
            let read = self.gpu.read_staging(&self.staging[slot]).await;
            self.flying.pop_front();
            read?;
        }
        Ok(())
    }

    /// Writes the prompt and the control state of a new request.
    fn start(&self, request: &Request<'_>, n_committed: usize) {
        let n_prompt = request.prompt.len();
        let mut control = Control {
            n_committed: n_committed as u32,
            n_context: n_prompt as u32,
            max_context: n_prompt.saturating_add(request.max_tokens).min(self.context) as u32,
            n_end_tokens: request.end_tokens.len() as u32,
            ..Control::new()
        };
        control.end_tokens[..request.end_tokens.len()].copy_from_slice(request.end_tokens);
        self.gpu.write(&self.scratch.control, 0, bytemuck::bytes_of(&control));
        let new = &request.prompt[n_committed..];
        let at = 4 * (MEMORY + n_committed) as u64;
        self.gpu.write(&self.scratch.text, at, bytemuck::cast_slice(new));
    }

    /// Runs tokens of the prompt through the widest step, in submissions short enough for others to share the GPU.
    /// Between them the caller may break off.
    async fn prefill(
        &mut self,
        tokens: &[u32],
        on_tokens: &mut dyn FnMut(&[u32]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut prefill_ms = self.prefill_ms;
        let mut left = tokens;
        while !left.is_empty() {
            let most = if prefill_ms > 0.0 { (PREFILL_MS / prefill_ms) as usize } else { 1 };
            let steps = left.len().div_ceil(self.prefill_tokens).min(most.clamp(1, 32));
            let (now, later) = left.split_at(left.len().min(steps * self.prefill_tokens));
            let started = now_ms();
            let step = self.recording(self.prefill_key())?;
            self.gpu.submit(&vec![step; steps], None);
            left = later;
            if !left.is_empty() {
                self.gpu.finish().await?;
                prefill_ms = (now_ms() - started) / steps as f64;
            }
            self.cached.extend_from_slice(now);
            if on_tokens(&[]).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.prefill_ms = prefill_ms;
        Ok(ControlFlow::Continue(()))
    }

    async fn decode(
        &mut self,
        request: &Request<'_>,
        on_tokens: OnTokens<'_>,
        started: f64,
        generated: &mut Generated,
    ) -> Result<()> {
        let key = self.decode_key();
        let in_flight = if request.mode == Mode::Greedy { 1 } else { IN_FLIGHT };
        let mut submitted = 0;
        let mut ended = false;
        let (mut first_end, mut last_end) = (0.0, 0.0);
        loop {
            while !ended && self.flying.len() < in_flight && submitted < request.max_tokens {
                // The first token should not wait for a whole window.
                let window = match request.mode {
                    Mode::Loop if submitted > 0 && self.step_ms > 0.0 => (WINDOW_MS / self.step_ms) as usize,
                    _ => 1,
                };
                let window = window.clamp(1, MAX_WINDOW).min(request.max_tokens - submitted);
                let free = (0..self.staging.len()).find(|slot| !self.flying.iter().any(|(used, _)| used == slot));
                let Some(slot) = free else { break };
                let step = self.recording(key)?;
                self.gpu.submit(&[step; MAX_WINDOW][..window], Some((&self.scratch.control, &self.staging[slot])));
                submitted += window;
                self.flying.push_back((slot, window));
            }
            let Some(&(slot, window)) = self.flying.front() else { break };
            let read = self.gpu.read_staging(&self.staging[slot]).await;
            self.flying.pop_front();
            let bytes = read?;
            let control: Control = bytemuck::pod_read_unaligned(&bytes);
            let known = generated.tokens.len();
            let end = now_ms();
            if known == 0 {
                generated.ttft_ms = end - started;
                first_end = end;
            } else if control.n_generated as usize > known {
                self.step_ms = (end - last_end) / window as f64;
                generated.decode_ms = end - first_end;
            }
            last_end = end;
            if ended {
                continue;
            }
            let new: Vec<u32> = (known..control.n_generated as usize).map(|g| control.recent[g % RECENT]).collect();
            generated.tokens.extend_from_slice(&new);
            generated.steps = control.n_steps as usize;
            generated.finish = control.finish();
            ended = generated.finish.is_some();
            if on_tokens(&new).is_break() {
                ended = true;
                generated.finish = None;
            }
        }
        Ok(())
    }

    /// Logits of every token of `tokens`, for measuring: `on_logits(i, logits)` gets the logits behind token `i` and
    /// may break off.
    ///
    /// # Errors
    /// As [`GpuDecoder::generate`].
    pub async fn score(
        &mut self,
        tokens: &[u32],
        on_logits: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<()> {
        let request = Request { prompt: tokens, max_tokens: 1, end_tokens: &[], mode: Mode::Greedy };
        if tokens.len() > self.context {
            return Err(Error::ContextOverflow { needed: tokens.len(), context: self.context });
        }
        check_tokens(tokens, &self.config)?;
        let key = StepKey { outcome: Outcome::Score, ..self.prefill_key() };
        self.record(&[key]).await?;
        self.cached.clear();
        self.start(&request, 0);
        let vocab_size = self.config.vocab_size;
        for first in (0..tokens.len()).step_by(self.prefill_tokens) {
            let n = self.prefill_tokens.min(tokens.len() - first);
            self.gpu.submit(&[self.recording(key)?], None);
            let bytes = self.gpu.read(&self.scratch.logits, 0, (4 * n * vocab_size) as u64).await?;
            let logits: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
            for (i, logits) in logits.chunks(vocab_size).enumerate() {
                if on_logits(first + i, logits).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
