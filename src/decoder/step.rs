//! Steps: fixed lists of dispatches, recorded once and replayed.

use std::collections::HashMap;

use super::control::{CONTROL_BYTES, Logprobs, MAX_NEW};
use super::forward::{Fusion, Outcome, features, forward, fused_norm_tokens, vocab_parts};
use super::sampler::Sampling;
use super::weights::Weights;
use crate::Result;
use crate::cpu::draft::{MAX_CHUNKS, chunk_len};
use crate::gpu::{Buffer, Dispatch, Gpu, Kernel, Range, Recording};
use crate::kernels::Features;
use crate::model::plan::layer_cache_bytes;
use crate::model::{BLOCK, Config};

pub use crate::cpu::draft::{MEMORY, PER_CHUNK};

/// Positions that one chunk of attention covers.
pub const CHUNK: usize = 32;

/// Positions of a chunk of memory and context, a power of two, and the number of chunks.
pub fn draft_chunks(max_seq_len: usize) -> (usize, usize) {
    let positions = MEMORY + max_seq_len;
    let chunk = chunk_len(positions);
    (chunk, positions.div_ceil(chunk))
}

/// The widths of steps: the node counts for which they are recorded.
pub const BUCKETS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// What a step is recorded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepKey {
    /// Nodes of the step, one of [`BUCKETS`].
    pub tokens: usize,
    /// What follows the layers.
    pub outcome: Outcome,
    /// Which operations share a kernel.
    pub fusion: Fusion,
    /// Does without subgroups and the packed dot product, even where the device has them.
    pub plain: bool,
    /// Tokens are chosen as the request says in [`Scratch::sampling`], instead of the most probable ones.
    pub sampled: bool,
    /// Log-probabilities of the new tokens are written behind the control state.
    pub logprobs: bool,
}

impl StepKey {
    /// One token, the most probable one, a kernel an operation.
    pub const PLAIN: StepKey = StepKey {
        tokens: 1,
        outcome: Outcome::Predict,
        fusion: Fusion::NONE,
        plain: false,
        sampled: false,
        logprobs: false,
    };

    /// The same decode step for another number of nodes.
    pub fn of_width(self, width: usize) -> StepKey {
        let outcome = if width == 1 { Outcome::Predict } else { Outcome::Verify };
        StepKey { tokens: width, outcome, ..self }
    }
}

/// All that shapes the kernels of one step besides the model.
pub(super) struct Pass {
    pub tokens: usize,
    pub outcome: Outcome,
    pub fusion: Fusion,
    /// Up to how many tokens a product's workgroup memory holds their normed input.
    pub fused_norm_tokens: usize,
    /// The device is a program on the CPU.
    pub software: bool,
    pub sampled: bool,
    pub logprobs: bool,
    pub features: Features,
}

/// The buffers that steps work in, made once for a context length and a widest step.
pub struct Scratch {
    /// Rows of the cache, a multiple of [`CHUNK`].
    pub max_seq_len: usize,
    /// Nodes of the widest step.
    pub max_tokens: usize,
    /// The state of the loop, [`Control`](super::control::Control), and [`Logprobs`] of the last tokens.
    pub control: Buffer,
    /// The memory, and behind it the tokens of the prompt and of the answer, `[MEMORY + max_seq_len]`.
    pub text: Buffer,
    /// The cache row of each position, `[max_seq_len]`: a permutation.
    pub slot_map: Buffer,
    /// Candidates of a draft, `[chunks, PER_CHUNK]`.
    pub candidates: Buffer,
    /// cos and sin for the rotary embedding, `[max_seq_len, head_dim / 2]`.
    pub rope: Buffer,
    /// Keys and values of each layer, 16-bit, `[k and v, n_kv_heads, max_seq_len, head_dim]`.
    pub caches: Vec<Buffer>,
    /// Residual, `[max_tokens, dim]`.
    pub x: Buffer,
    /// Quantised input of a product, `[max_tokens, dim]`.
    pub h: Buffer,
    /// Product of q, k and v, `[max_tokens, qkv_dim]`.
    pub qkv: Buffer,
    /// Queries, `[max_tokens, q_dim]`.
    pub q: Buffer,
    /// Attention's chunks, `[max_tokens, n_heads, max_chunks, head_dim + 2]`.
    pub partial: Buffer,
    /// Quantised attention, `[max_tokens, q_dim]`.
    pub attn: Buffer,
    /// Product of gate and up, `[max_tokens, 2 * hidden_dim]`.
    pub gate_up: Buffer,
    /// Quantised activation, `[max_tokens, hidden_dim]`.
    pub act: Buffer,
    /// Logits of each node, `[max_tokens, vocab_size]`.
    pub logits: Buffer,
    /// The best logit of each part of the vocabulary, `[max_tokens, parts]`.
    pub best: Buffer,
    /// How a request chooses its tokens, [`Sampling`].
    pub sampling: Buffer,
    /// How often each token stands in a node's text, `[max_tokens, vocab_size]`: zero between steps.
    pub counts: Buffer,
    /// Which logits may be chosen, `[max_tokens]`.
    pub thresholds: Buffer,
    /// Log-probabilities of each part of the vocabulary, `[9, parts]`.
    pub logprob_parts: Buffer,
    /// The logits before penalties, `[max_tokens, vocab_size]`, once a request that samples asked for log-probabilities.
    pub kept: Option<Buffer>,
}

/// Bytes of each buffer of [`Scratch`], by name, for the memory plan.
pub fn scratch_sizes(config: &Config, max_seq_len: usize, max_tokens: usize) -> Vec<(&'static str, u64)> {
    // In 64 bits and saturating: a page's own integers have 32, and a size that wrapped would seem to fit.
    let product = |factors: &[usize]| factors.iter().fold(1u64, |product, n| product.saturating_mul(*n as u64));
    let quantized = |n: usize| product(&[48, max_tokens, n / BLOCK]);
    let floats = |n: usize| product(&[4, max_tokens, n]);
    let partial = [4, max_tokens, config.n_heads, max_seq_len / CHUNK, config.head_dim + 2];
    vec![
        ("control", CONTROL_BYTES),
        ("text", 4 * (MEMORY as u64).saturating_add(max_seq_len as u64)),
        ("slot_map", product(&[4, max_seq_len])),
        ("candidates", 4 * (PER_CHUNK * MAX_CHUNKS) as u64),
        ("rope", product(&[4, max_seq_len, config.head_dim])),
        ("x", floats(config.dim)),
        ("h", quantized(config.dim)),
        ("qkv", floats(config.qkv_dim())),
        ("q", floats(config.q_dim())),
        ("partial", product(&partial)),
        ("attn", quantized(config.q_dim())),
        ("gate_up", product(&[8, max_tokens, config.hidden_dim])),
        ("act", quantized(config.hidden_dim)),
        ("logits", floats(config.vocab_size)),
        ("best", product(&[8, max_tokens, vocab_parts(config.vocab_size)])),
        ("sampling", size_of::<Sampling>() as u64),
        ("counts", floats(config.vocab_size)),
        ("thresholds", floats(1)),
        // A part has two numbers where a token has one.
        ("logprob_parts", product(&[size_of::<Logprobs>() + 4, MAX_NEW, vocab_parts(config.vocab_size)])),
    ]
}

/// The widest step whose buffers all fit one binding of `max_binding` bytes.
pub fn widest_bucket(config: &Config, max_seq_len: usize, max_binding: u64) -> usize {
    let fits =
        |&&tokens: &&usize| scratch_sizes(config, max_seq_len, tokens).iter().all(|(_, size)| *size <= max_binding);
    BUCKETS.iter().rev().find(fits).copied().unwrap_or(1)
}

impl Scratch {
    /// Makes the buffers; the cache holds `max_seq_len` tokens, rounded up to whole chunks.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] where the device has no room.
    pub async fn new(gpu: &Gpu, config: &Config, max_seq_len: usize, max_tokens: usize) -> Result<Scratch> {
        let max_seq_len = max_seq_len.next_multiple_of(CHUNK);
        let sizes = scratch_sizes(config, max_seq_len, max_tokens);
        let most = gpu.adapter().max_binding;
        for (name, size) in
            sizes.iter().copied().chain([("the cache of a layer", layer_cache_bytes(config, max_seq_len))])
        {
            if size > most {
                return Err(crate::Error::OutOfMemory(format!(
                    "{name} takes {} MiB and this GPU binds at most {} MiB at once: ask for a shorter context",
                    size.div_ceil(1 << 20),
                    most >> 20
                )));
            }
        }
        let mut buffers = HashMap::new();
        for (name, size) in sizes {
            buffers.insert(name, gpu.buffer(name, size).await?);
        }
        let mut caches = Vec::new();
        for layer in 0..config.n_layers {
            let label = format!("the cache of layer {layer}");
            caches.push(gpu.buffer(&label, layer_cache_bytes(config, max_seq_len)).await?);
        }
        let turns = crate::cpu::rope_table(config, max_seq_len);
        gpu.write(&buffers["rope"], 0, bytemuck::cast_slice(&turns));
        let rows: Vec<u32> = (0..max_seq_len as u32).collect();
        gpu.write(&buffers["slot_map"], 0, bytemuck::cast_slice(&rows));
        let mut take = |name: &str| {
            let missing = || crate::Error::Gpu { what: format!("buffer {name}"), message: "it was not made".into() };
            buffers.remove(name).ok_or_else(missing)
        };
        Ok(Scratch {
            max_seq_len,
            max_tokens,
            control: take("control")?,
            text: take("text")?,
            slot_map: take("slot_map")?,
            candidates: take("candidates")?,
            rope: take("rope")?,
            caches,
            x: take("x")?,
            h: take("h")?,
            qkv: take("qkv")?,
            q: take("q")?,
            partial: take("partial")?,
            attn: take("attn")?,
            gate_up: take("gate_up")?,
            act: take("act")?,
            logits: take("logits")?,
            best: take("best")?,
            sampling: take("sampling")?,
            counts: take("counts")?,
            thresholds: take("thresholds")?,
            logprob_parts: take("logprob_parts")?,
            kept: None,
        })
    }

    /// Makes [`Scratch::kept`], unless it is there.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] where the device has no room.
    pub async fn make_kept(&mut self, gpu: &Gpu) -> Result<()> {
        if self.kept.is_none() {
            self.kept = Some(gpu.buffer("the logits before penalties", self.logits.size()).await?);
        }
        Ok(())
    }

    /// The context's tokens, behind the memory.
    pub fn context(&self) -> Range<'_> {
        let offset = 4 * MEMORY as u64;
        Range { buffer: &self.text, offset, size: self.text.size() - offset }
    }

    /// Chunks of the longest context.
    pub fn max_chunks(&self) -> usize {
        self.max_seq_len / CHUNK
    }
}

/// Recorded steps. Kernels with the same text are compiled once for all of them.
#[derive(Default)]
pub struct Steps {
    kernels: HashMap<String, Kernel>,
    recordings: HashMap<StepKey, Recording>,
}

impl Steps {
    /// Compiles and records the steps of `keys` that are not there yet, all kernels at once.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] where a kernel does not compile.
    pub async fn record(
        &mut self,
        gpu: &Gpu,
        config: &Config,
        weights: &Weights,
        scratch: &Scratch,
        keys: &[StepKey],
    ) -> Result<()> {
        let mut lists = Vec::new();
        for &key in keys.iter().filter(|key| !self.recordings.contains_key(key)) {
            let pass = Pass {
                tokens: key.tokens,
                outcome: key.outcome,
                fusion: key.fusion,
                fused_norm_tokens: fused_norm_tokens(
                    config.dim,
                    gpu.adapter().max_workgroup_memory.min(16 << 10) as usize,
                ),
                software: gpu.adapter().is_software,
                sampled: key.sampled,
                logprobs: key.logprobs,
                features: if key.plain { Features::PLAIN } else { features(gpu.adapter()) },
            };
            let mut ops = Vec::new();
            forward(config, weights, scratch, &pass, &mut |op| ops.push(op))?;
            lists.push((key, ops));
        }
        let mut sources: Vec<crate::gpu::KernelSource> = Vec::new();
        for (source, ..) in lists.iter().flat_map(|(_, ops)| ops) {
            if !self.kernels.contains_key(&source.text) && !sources.iter().any(|known| known.text == source.text) {
                sources.push(source.clone());
            }
        }
        let compiled = gpu.compile(&sources).await?;
        self.kernels.extend(sources.into_iter().map(|source| source.text).zip(compiled));
        for (key, ops) in lists {
            let dispatches = ops.into_iter().map(|(source, ranges, workgroups)| {
                let kernel = self.kernels[&source.text].clone();
                let bindings = gpu.bind(&kernel, &ranges);
                Dispatch { kernel, bindings, workgroups }
            });
            self.recordings.insert(key, gpu.record(dispatches.collect()));
        }
        Ok(())
    }

    /// The recording of a step.
    pub fn get(&self, key: StepKey) -> Option<&Recording> {
        self.recordings.get(&key)
    }
}
