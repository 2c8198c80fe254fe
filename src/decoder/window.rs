//! The loop: windows of steps, of which the CPU reads a few bytes each.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::control::{CONTROL_BYTES, Control, LOGPROBS, Logprobs, RECENT};
use super::controller::{Controller, Costs, StepStats};
use super::forward::{Fusion, Outcome};
use super::memory::Memory;
use super::probe::Trace;
use super::request::{Generated, Mode, News, OnTokens, Request, check_request, check_tokens, common_prefix};
use super::sampler::SamplingOptions;
use super::step::{BUCKETS, MEMORY, Scratch, StepKey, Steps, widest_bucket};
use super::weights::Weights;
use crate::cpu::draft::MAX_ORDER;
use crate::gpu::{Gpu, Staging, now_ms};
use crate::model::Config;
use crate::{Error, Result};

/// Windows that may be in flight: the most, and where nothing was calibrated.
const MAX_IN_FLIGHT: usize = 4;
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
    /// [`Fusion::NONE`].
    None,
    /// [`Fusion::ALL`].
    All,
}

/// A window that was submitted.
struct Flight {
    /// Which staging buffer takes its control state.
    staging: usize,
    steps: usize,
    /// Nodes of its steps.
    width: usize,
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
    /// The plan that was to be used; [`GpuDecoder::fusion`] is another where its bits differ on this device.
    pub(super) planned: Fusion,
    /// Whether the kernels do without subgroups and the packed dot product.
    pub(super) plain: bool,
    /// Take the control state; behind them, once a request asked, those that take log-probabilities too.
    staging: Vec<Staging>,
    flying: VecDeque<Flight>,
    /// Steps of a window and windows in flight, where they were calibrated.
    pub(super) window: Option<(usize, usize)>,
    pub(super) controller: Controller,
    /// Widths of draft trees that may be used on this device, one included.
    pub(super) widths: Vec<usize>,
    /// Widths that were found to give other bits.
    pub(super) refused: Vec<usize>,
    /// What the probe's context gives in the plainest kernels.
    pub(super) reference: Trace,
    memory: Memory,
    /// Whether answers are kept in the memory and drafts are taken from it.
    remembers: bool,
    /// Hits and tries of each match length, as the GPU counted last.
    reliability: ([u32; MAX_ORDER], [u32; MAX_ORDER]),
    /// Tokens whose keys and values are in the cache, from the first position on.
    cached: Vec<u32>,
    /// Milliseconds of a decode step and of a prefill step, as seen last; 0 before the first.
    step_ms: f64,
    prefill_ms: f64,
    /// What the probe at load left out, in words.
    pub(super) left_out: Vec<String>,
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
        for _ in 0..MAX_IN_FLIGHT {
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
            planned: Fusion::NONE,
            plain: false,
            staging,
            flying: VecDeque::new(),
            window: None,
            controller: Controller::new(Costs { ms: [f64::INFINITY; BUCKETS.len()] }),
            widths: vec![1],
            refused: Vec::new(),
            reference: Trace::default(),
            memory: Memory::new(MEMORY),
            remembers: true,
            reliability: Default::default(),
            cached: Vec::new(),
            step_ms: 0.0,
            prefill_ms: 0.0,
            left_out: Vec::new(),
        };
        decoder.choose_plan(fusion).await?;
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
        self.width_key(1)
    }

    /// The decode step of a width.
    pub(super) fn width_key(&self, width: usize) -> StepKey {
        StepKey { fusion: self.fusion, plain: self.plain, ..StepKey::PLAIN }.of_width(width)
    }

    /// Answers of earlier requests, from which drafts are taken too.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Replaces the memory, for instance by one that an earlier session exported. Of one that holds more than
    /// [`MEMORY`] tokens, which is what stands in front of the context, the newest answers are kept.
    pub fn set_memory(&mut self, memory: Memory) {
        self.memory = memory.resized(MEMORY);
    }

    /// Says whether answers are kept in the memory and drafts are taken from it, as they are at first; answers what held
    /// before.
    pub fn set_remembers(&mut self, remembers: bool) -> bool {
        std::mem::replace(&mut self.remembers, remembers)
    }

    /// What steps of each width cost, as the controller knows it.
    pub fn costs(&self) -> Costs {
        self.controller.costs()
    }

    /// Gives the controller other costs: calibrated ones, or made-up ones in tests. Widths with finite costs are used
    /// from the next adaptive request on.
    pub fn set_costs(&mut self, costs: Costs) {
        self.controller = Controller::new(costs);
    }

    /// Steps of a window and windows in flight, where they were calibrated.
    pub fn window(&self) -> Option<(usize, usize)> {
        self.window
    }

    /// Steps of a window and windows in flight from now on (at most 4 each); by the time of a step where `None`.
    pub fn set_window(&mut self, window: Option<(usize, usize)>) {
        self.window = window.map(|(steps, flying)| (steps.clamp(1, MAX_WINDOW), flying.clamp(1, MAX_IN_FLIGHT)));
    }

    /// Records what requests of this mode need, and checks it on this device; a request does so itself where it must.
    ///
    /// # Errors
    /// [`Error::Gpu`] where a kernel does not compile, [`Error::DeviceLost`].
    pub async fn prepare(&mut self, mode: Mode) -> Result<()> {
        match mode {
            Mode::Greedy | Mode::Loop => Ok(()),
            Mode::Tree(width) => self.admit(width).await,
            Mode::Adaptive => {
                let costs = self.controller.costs();
                for (i, width) in BUCKETS.into_iter().enumerate().skip(1) {
                    if costs.ms[i].is_finite() {
                        self.admit(width).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Records the steps of requests that sample or want log-probabilities, for every width that may be used. They need
    /// no check of their own: their layers and their head are those of the other steps.
    async fn record_like(&mut self, key: StepKey) -> Result<()> {
        if key.logprobs {
            if key.sampled {
                self.scratch.make_kept(&self.gpu).await?;
            }
            while self.staging.len() < 2 * MAX_IN_FLIGHT {
                self.staging.push(self.gpu.staging(CONTROL_BYTES).await?);
            }
        }
        let keys = self.widths.iter().map(|&width| key.of_width(width));
        let keys: Vec<StepKey> = keys.collect();
        self.record(&keys).await
    }

    /// The widest width that may be used and is not wider.
    fn admitted(&self, width: usize) -> usize {
        self.widths.iter().copied().filter(|&known| known <= width).max().unwrap_or(1)
    }

    pub(super) fn prefill_key(&self) -> StepKey {
        StepKey { tokens: self.prefill_tokens, outcome: Outcome::Prefill, ..self.decode_key() }
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
        let sampling = check_request(request, &self.config, self.context)?;
        self.land().await?;
        self.prepare(request.mode).await?;
        let key = StepKey { sampled: sampling.is_some(), logprobs: request.logprobs.is_some(), ..self.decode_key() };
        self.record_like(key).await?;
        if let Some(sampling) = &sampling {
            self.gpu.write(&self.scratch.sampling, 0, bytemuck::bytes_of(sampling));
        }
        let n_prompt = request.prompt.len();
        let cached_tokens = common_prefix(&self.cached, request.prompt).min(n_prompt - 1);
        self.cached.truncate(cached_tokens);
        self.start(request, cached_tokens);
        let mut generated = Generated::nothing(n_prompt, cached_tokens);
        if self.prefill(&request.prompt[cached_tokens..n_prompt - 1], on_tokens).await?.is_break() {
            return Ok(generated);
        }
        let decoded = self.decode(request, key, on_tokens, started, &mut generated).await;
        if decoded.is_err() {
            self.cached.clear();
            decoded?;
        }
        // The cache holds every token of the context but the last, whose step is yet to come.
        self.cached.push(request.prompt[n_prompt - 1]);
        self.cached.extend_from_slice(&generated.tokens);
        self.cached.pop();
        if self.remembers {
            self.memory.remember(&generated.tokens);
        }
        Ok(generated)
    }

    /// The cache holds nothing of use from now on.
    pub(super) fn forget(&mut self) {
        self.cached.clear();
    }

    /// Waits for windows that an earlier, dropped request left in flight.
    async fn land(&mut self) -> Result<()> {
        while let Some(flight) = self.flying.front() {
            self.cached.clear();
            let read = self.gpu.read_staging(&self.staging[flight.staging]).await;
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
            n_memory: if self.remembers { self.memory.tokens().len() as u32 } else { 0 },
            hits: self.reliability.0,
            tries: self.reliability.1,
            n_top: request.logprobs.unwrap_or(0) as u32,
            ..Control::new()
        };
        control.end_tokens[..request.end_tokens.len()].copy_from_slice(request.end_tokens);
        self.gpu.write(&self.scratch.control, 0, bytemuck::bytes_of(&control));
        if control.n_memory > 0 {
            self.gpu.write(&self.scratch.text, 0, bytemuck::cast_slice(self.memory.tokens()));
        }
        let new = &request.prompt[n_committed..];
        let at = 4 * (MEMORY + n_committed) as u64;
        self.gpu.write(&self.scratch.text, at, bytemuck::cast_slice(new));
    }

    /// Runs tokens of the prompt through the widest step, in submissions short enough for others to share the GPU.
    /// Between them the caller may break off.
    async fn prefill(&mut self, tokens: &[u32], on_tokens: OnTokens<'_>) -> Result<ControlFlow<()>> {
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
            if on_tokens(&News::default()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.prefill_ms = prefill_ms;
        Ok(ControlFlow::Continue(()))
    }

    async fn decode(
        &mut self,
        request: &Request<'_>,
        key: StepKey,
        on_tokens: OnTokens<'_>,
        started: f64,
        generated: &mut Generated,
    ) -> Result<()> {
        let (calibrated, mut in_flight) = self.window.map_or((0, IN_FLIGHT), |(steps, flying)| (steps, flying));
        if request.mode == Mode::Greedy {
            in_flight = 1;
        }
        self.controller.begin();
        let mut submitted = 0;
        let mut ended = false;
        let (mut first_end, mut last_end) = (0.0, 0.0);
        loop {
            while !ended && self.flying.len() < in_flight && submitted < request.max_tokens {
                // The first token should not wait for a whole window.
                let steps = match request.mode {
                    Mode::Greedy => 1,
                    _ if submitted == 0 => 1,
                    _ if calibrated > 0 => calibrated,
                    _ if self.step_ms > 0.0 => (WINDOW_MS / self.step_ms) as usize,
                    _ => 1,
                };
                let steps = steps.clamp(1, MAX_WINDOW).min(request.max_tokens - submitted);
                let own = if key.logprobs { MAX_IN_FLIGHT..2 * MAX_IN_FLIGHT } else { 0..MAX_IN_FLIGHT };
                let free = own.clone().find(|i| !self.flying.iter().any(|flight| flight.staging == *i));
                let Some(staging) = free else { break };
                let width = match request.mode {
                    Mode::Greedy | Mode::Loop => 1,
                    Mode::Tree(width) => self.admitted(width),
                    Mode::Adaptive => {
                        let width = self.controller.width(steps);
                        self.admitted(width)
                    }
                };
                let step = self.recording(key.of_width(width))?;
                self.gpu.submit(&[step; MAX_WINDOW][..steps], Some((&self.scratch.control, &self.staging[staging])));
                submitted += steps;
                self.flying.push_back(Flight { staging, steps, width });
            }
            let Some(flight) = self.flying.front() else { break };
            let (width, planned) = (flight.width, flight.steps);
            let read = self.gpu.read_staging(&self.staging[flight.staging]).await;
            self.flying.pop_front();
            let bytes = read?;
            let (control, behind) = bytes.split_at(size_of::<Control>());
            let control: Control = bytemuck::pod_read_unaligned(control);
            let known = generated.tokens.len();
            let end = now_ms();
            if known == 0 {
                generated.ttft_ms = end - started;
                first_end = end;
            } else if control.n_generated as usize > known {
                self.step_ms = (end - last_end) / planned as f64;
                generated.decode_ms = end - first_end;
            }
            let took = (known > 0).then_some(end - last_end);
            last_end = end;
            if ended {
                continue;
            }
            let steps: Vec<StepStats> =
                (generated.steps as u32..control.n_steps).map(|step| control.step(step, width)).collect();
            for &stats in &steps {
                generated.n_drafted += usize::from(stats.n_drafted);
                generated.n_accepted += usize::from(stats.n_accepted);
                generated.widths[width.ilog2() as usize] += 1;
                if request.mode == Mode::Adaptive {
                    self.controller.observe(stats);
                }
            }
            if request.mode == Mode::Adaptive {
                // A window that the end of the text cut short tells nothing.
                let whole = steps.len() == planned;
                self.controller.window_took(width, planned, took.filter(|_| whole));
            }
            self.reliability = (control.hits, control.tries);
            let new: Vec<u32> = (known..control.n_generated as usize).map(|g| control.recent[g % RECENT]).collect();
            generated.tokens.extend_from_slice(&new);
            if let Some(n_top) = request.logprobs {
                let told: Vec<Logprobs> = bytemuck::pod_collect_to_vec(behind);
                let n_top = n_top.min(self.config.vocab_size);
                let new = (known..generated.tokens.len()).map(|g| told[g % LOGPROBS].told(n_top));
                generated.logprobs.extend(new);
            }
            generated.steps = control.n_steps as usize;
            generated.finish = control.finish();
            ended = generated.finish.is_some();
            let logprobs = generated.logprobs.get(known..).unwrap_or_default();
            if on_tokens(&News { tokens: &new, logprobs, steps: &steps, tree: &control.tree() }).is_break() {
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
        let request = Request {
            prompt: tokens,
            max_tokens: 1,
            end_tokens: &[],
            mode: Mode::Greedy,
            sampling: SamplingOptions::default(),
            logprobs: None,
        };
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
