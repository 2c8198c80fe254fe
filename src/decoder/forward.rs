//! The forward pass, as the list of dispatches of one step.
//!
//! `forward` reads from top to bottom like the model's equations. Nothing is computed here: each operation is
//! composed from its kernel and noted down, and [`super::step`] compiles and records the list.

use std::fmt::Display;

use super::control::MAX_NEW;
use super::step::{MEMORY, PER_CHUNK, Pass, Scratch, draft_chunks};
use super::weights::{Layer, Matrix, Part, Weights};
use crate::cpu::draft::{MAX_CANDIDATES, MAX_DEPTH};
use crate::cpu::lanes;
use crate::gpu::{Buffer, Range};
use crate::kernels::{Features, compose};
use crate::model::{BLOCK, Config, Format};
use crate::{Error, Result};

/// Which neighbouring operations share a kernel. The bits do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// Norm and quantisation stand in front of the products that read them.
    pub norm: bool,
    /// Bias, rotary embedding and cache write stand behind the product of q, k and v.
    pub qkv: bool,
    /// SiLU, product and quantisation stand behind the product of gate and up.
    pub mlp: bool,
}

impl Fusion {
    /// A kernel an operation.
    pub const NONE: Fusion = Fusion { norm: false, qkv: false, mlp: false };
    /// The fewest dispatches (`kernels/README.md` counts them).
    pub const ALL: Fusion = Fusion { norm: true, qkv: true, mlp: true };
}

/// What follows the layers in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Nothing: the tokens only enter the cache, and the last token of the context is left for a later step.
    Prefill,
    /// Logits, argmax and the next token.
    Predict,
    /// A draft in front, and behind the logits the tokens of the path that the model agrees with, and the next one.
    Verify,
    /// Logits of every node, but no new token.
    Score,
}

/// One dispatch to come: a kernel's source, its buffers and its workgroups.
pub(super) type Op<'a> = (crate::gpu::KernelSource, Vec<Range<'a>>, [u32; 3]);

/// Notes the dispatches of one step of `pass.tokens` nodes.
pub(super) fn forward<'a>(
    config: &Config,
    weights: &'a Weights,
    s: &'a Scratch,
    pass: &Pass,
    note: &mut dyn FnMut(Op<'a>),
) -> Result<()> {
    let mut ops = Ops { config, s, pass, note };
    if pass.outcome == Outcome::Verify {
        ops.find_matches()?;
        ops.draft()?;
    } else {
        ops.begin()?;
    }
    ops.embed(&weights.embed_tokens)?;
    for (layer, cache) in weights.layers.iter().zip(&s.caches) {
        let Layer { attn_vectors, mlp_vectors, qkv_proj, o_proj, gate_up_proj, down_proj } = layer;

        // q, k, v = rotary(qkv_proj · norm(x) + bias)
        let fused_norm = ops.norm(attn_vectors)?;
        if pass.fusion.qkv {
            ops.qkv(qkv_proj, attn_vectors, cache, fused_norm)?;
        } else {
            ops.matmul(qkv_proj, attn_vectors, &s.qkv, fused_norm)?;
            ops.rope_cache(attn_vectors, cache)?;
        }
        // x += o_proj · attention(q, k, v)
        ops.attention(cache)?;
        ops.merge()?;
        ops.project(o_proj, &s.attn)?;

        // x += down_proj · (silu(gate) * up), with gate and up = gate_up_proj · norm(x)
        let fused_norm = ops.norm(mlp_vectors)?;
        if pass.fusion.mlp {
            ops.gate_up(gate_up_proj, mlp_vectors, fused_norm)?;
        } else {
            ops.matmul(gate_up_proj, mlp_vectors, &s.gate_up, fused_norm)?;
            ops.silu_quantize()?;
        }
        ops.project(down_proj, &s.act)?;
    }
    if pass.outcome != Outcome::Prefill {
        // logits = lm_head · norm(x)
        let fused_norm = ops.norm(&weights.norm)?;
        ops.matmul(weights.head(), &weights.norm, &s.logits, fused_norm)?;
        if pass.sampled {
            ops.penalize()?;
            ops.threshold()?;
            ops.sample()?;
        } else {
            ops.argmax()?;
        }
    }
    ops.accept()?;
    if pass.logprobs {
        // logprob = ln softmax(logits)[token], behind the nodes that gave new tokens
        ops.logprob_parts()?;
        ops.logprobs()?;
    }
    Ok(())
}

/// The operations of one step. Each composes its kernel for the model's shape and the pass.
pub(super) struct Ops<'a, 'p> {
    pub config: &'p Config,
    pub s: &'a Scratch,
    pub pass: &'p Pass,
    pub note: &'p mut dyn FnMut(Op<'a>),
}

/// Helpers that every product needs.
const PRODUCT: [&str; 7] = ["control", "numbers", "quant", "reduce", "exchange", "dot", "rows"];

impl<'a> Ops<'a, '_> {
    fn op(
        &mut self,
        kernel: &str,
        values: &[(&str, &dyn Display)],
        helpers: &[&str],
        ranges: Vec<Range<'a>>,
        workgroups: [usize; 3],
    ) -> Result<()> {
        let source = compose(kernel, values, helpers, self.pass.features)?;
        (self.note)((source, ranges, workgroups.map(|n| n as u32)));
        Ok(())
    }

    pub fn begin(&mut self) -> Result<()> {
        let kept = usize::from(self.pass.outcome == Outcome::Prefill);
        let ranges = vec![self.s.control.whole(), self.s.context(), self.s.slot_map.whole()];
        self.op("begin", &[("TOKENS", &self.pass.tokens), ("KEPT", &kept)], &["control"], ranges, [1, 1, 1])
    }

    pub fn find_matches(&mut self) -> Result<()> {
        let (chunk, n_chunks) = draft_chunks(self.s.max_seq_len);
        let values: [(&str, &dyn Display); 3] =
            [("MAX_SEQ_LEN", &self.s.max_seq_len), ("MEMORY", &MEMORY), ("CHUNK", &chunk)];
        let ranges = vec![self.s.control.whole(), self.s.text.whole(), self.s.candidates.whole()];
        self.op("match", &values, &["control", "sort"], ranges, [n_chunks, 1, 1])
    }

    pub fn draft(&mut self) -> Result<()> {
        let (_, n_chunks) = draft_chunks(self.s.max_seq_len);
        // Candidates are sorted, then the nodes of their trie.
        let keys = (n_chunks * PER_CHUNK).next_power_of_two().max(MAX_CANDIDATES * MAX_DEPTH);
        let values: [(&str, &dyn Display); 5] = [
            ("TOKENS", &self.pass.tokens),
            ("MAX_SEQ_LEN", &self.s.max_seq_len),
            ("MEMORY", &MEMORY),
            ("N_CHUNKS", &n_chunks),
            ("KEYS", &keys),
        ];
        let s = self.s;
        let ranges = vec![s.control.whole(), s.text.whole(), s.slot_map.whole(), s.candidates.whole()];
        self.op("draft", &values, &["control", "sort"], ranges, [1, 1, 1])
    }

    pub fn embed(&mut self, table: &'a Matrix) -> Result<()> {
        let n_blocks = table.n_cols / BLOCK;
        for part in &table.parts {
            let values: [(&str, &dyn Display); 3] =
                [("N_BLOCKS", &n_blocks), ("FIRST_ROW", &part.first_row), ("N_ROWS", &part.n_rows)];
            let helpers = ["control", "numbers", "quant", "reduce", "exchange", "dot", weights_helper(table.format)];
            let ranges = vec![self.s.control.whole(), part.codes.whole(), part.scales.whole(), self.s.x.whole()];
            self.op("embed", &values, &helpers, ranges, [self.pass.tokens, 1, 1])?;
        }
        Ok(())
    }

    /// The norm in front of a product: a kernel of its own, or left to the product. Answers whether it was left.
    pub fn norm(&mut self, vectors: &'a Buffer) -> Result<bool> {
        let dim = self.config.dim;
        if self.pass.fusion.norm && self.pass.tokens <= self.pass.fused_norm_tokens {
            return Ok(true);
        }
        let (inverse, eps) = (inverse(dim), float(self.config.rms_norm_eps));
        let values: [(&str, &dyn Display); 4] =
            [("DIM", &dim), ("INV_DIM", &inverse), ("EPS", &eps), ("WG", &if dim > 1024 { 256 } else { 64 })];
        let helpers = ["control", "numbers", "quant", "reduce", "exchange", "norm", "store_quantized"];
        let ranges = vec![self.s.control.whole(), self.s.x.whole(), vectors.whole(), self.s.h.whole()];
        self.op("norm_quantize", &values, &helpers, ranges, [self.pass.tokens, 1, 1])?;
        Ok(false)
    }

    pub fn matmul(&mut self, matrix: &'a Matrix, vectors: &'a Buffer, out: &'a Buffer, fused_norm: bool) -> Result<()> {
        for part in &matrix.parts {
            let shape = self.tiling(matrix, 64, if matrix.n_rows > 16384 { 4 } else { 2 });
            let values: [(&str, &dyn Display); 2] = [("FIRST_ROW", &part.first_row), ("OUT_DIM", &matrix.n_rows)];
            let input = self.input(vectors, fused_norm);
            self.product("matmul", (matrix, part), shape, input, &values, &["row_of"], &[out])?;
        }
        Ok(())
    }

    pub fn qkv(&mut self, matrix: &'a Matrix, vectors: &'a Buffer, cache: &'a Buffer, fused_norm: bool) -> Result<()> {
        let c = self.config;
        let shape = self.tiling(matrix, 64, 2);
        let (q_dim, kv_dim, scale) = (c.q_dim(), c.kv_dim(), score_scale(c));
        let values: [(&str, &dyn Display); 7] = [
            ("Q_DIM", &q_dim),
            ("KV_DIM", &kv_dim),
            ("N_KV_HEADS", &c.n_kv_heads),
            ("HEAD_DIM", &c.head_dim),
            ("SCALE", &scale),
            ("MAX_SEQ_LEN", &self.s.max_seq_len),
            ("HAS_BIAS", &c.qkv_bias),
        ];
        let input = self.input(vectors, fused_norm);
        let buffers = [&self.s.rope, &self.s.q, cache];
        self.product("qkv", (matrix, &matrix.parts[0]), shape, input, &values, &["row_of", "rotary"], &buffers)
    }

    pub fn project(&mut self, matrix: &'a Matrix, input: &'a Buffer) -> Result<()> {
        let shape = self.tiling(matrix, 64, 2);
        // A product without a bias has no use for vectors; any buffer fills the place.
        let input = Input { buffer: input, vectors: &self.s.rope, fused_norm: false };
        self.product("project", (matrix, &matrix.parts[0]), shape, input, &[], &["row_of"], &[&self.s.x])
    }

    pub fn gate_up(&mut self, matrix: &'a Matrix, vectors: &'a Buffer, fused_norm: bool) -> Result<()> {
        let c = self.config;
        let lanes = lanes(matrix.n_cols / BLOCK);
        let shape = Tiling::of(lanes, self.pass.tokens, 256, lanes / 4);
        let input = self.input(vectors, fused_norm);
        let (values, helpers) = ([("HIDDEN_DIM", &c.hidden_dim as &dyn Display)], ["silu", "store_quantized"]);
        self.product("gate_up", (matrix, &matrix.parts[0]), shape, input, &values, &helpers, &[&self.s.act])
    }

    /// One product of rows: what all of them share, with the kernel's own values, helpers and buffers behind it.
    #[allow(clippy::too_many_arguments)]
    fn product(
        &mut self,
        kernel: &str,
        (matrix, part): (&'a Matrix, &'a Part),
        shape: Tiling,
        input: Input<'a>,
        values: &[(&str, &dyn Display)],
        helpers: &[&'static str],
        buffers: &[&'a Buffer],
    ) -> Result<()> {
        let n_blocks = matrix.n_cols / BLOCK;
        let (inverse, eps) = (inverse(self.config.dim), float(self.config.rms_norm_eps));
        let shared: [(&str, &dyn Display); 7] = [
            ("N_BLOCKS", &n_blocks),
            ("N_ROWS", &part.n_rows),
            ("TOKENS", &self.pass.tokens),
            ("TILE", &shape.tile),
            ("ROWS", &shape.rows),
            ("LANES", &shape.lanes),
            ("WG", &shape.wg),
        ];
        let norm: [(&str, &dyn Display); 2] = [("INV_DIM", &inverse), ("EPS", &eps)];
        let normed = if kernel == "project" { &norm[..0] } else { &norm };
        let values = [&shared, normed, values].concat();
        let source: &[&str] = if input.fused_norm { &["input_normed", "norm"] } else { &["input_quantized"] };
        let helpers = [&PRODUCT, source, &[weights_helper(matrix.format)], helpers].concat();
        let mut ranges = vec![
            self.s.control.whole(),
            input.buffer.whole(),
            input.vectors.whole(),
            part.codes.whole(),
            part.scales.whole(),
        ];
        ranges.extend(buffers.iter().map(|buffer| buffer.whole()));
        self.op(kernel, &values, &helpers, ranges, [part.n_rows.div_ceil(shape.wg_rows()), 1, 1])
    }

    /// Where a product behind a norm reads its input: the residual, where the norm is left to it.
    fn input(&self, vectors: &'a Buffer, fused_norm: bool) -> Input<'a> {
        Input { buffer: if fused_norm { &self.s.x } else { &self.s.h }, vectors, fused_norm }
    }

    /// `rows` is what a thread of a GPU holds; a program that plays one would rather have fewer, longer workgroups.
    fn tiling(&self, matrix: &Matrix, wg: usize, rows: usize) -> Tiling {
        let rows = if self.pass.software { rows.max(4) } else { rows };
        Tiling::of(lanes(matrix.n_cols / BLOCK), self.pass.tokens, wg, rows)
    }

    pub fn rope_cache(&mut self, vectors: &'a Buffer, cache: &'a Buffer) -> Result<()> {
        let c = self.config;
        let (q_dim, kv_dim, rows) = (c.q_dim(), c.kv_dim(), c.qkv_dim());
        let scale = score_scale(c);
        let values: [(&str, &dyn Display); 9] = [
            ("N_ROWS", &rows),
            ("Q_DIM", &q_dim),
            ("KV_DIM", &kv_dim),
            ("N_KV_HEADS", &c.n_kv_heads),
            ("HEAD_DIM", &c.head_dim),
            ("SCALE", &scale),
            ("MAX_SEQ_LEN", &self.s.max_seq_len),
            ("DIM", &c.dim),
            ("HAS_BIAS", &c.qkv_bias),
        ];
        let ranges = vec![
            self.s.control.whole(),
            self.s.qkv.whole(),
            vectors.whole(),
            self.s.rope.whole(),
            self.s.q.whole(),
            cache.whole(),
        ];
        let workgroups = [rows.div_ceil(128), self.pass.tokens, 1];
        self.op("rope_cache", &values, &["control", "numbers", "rotary"], ranges, workgroups)
    }

    pub fn attention(&mut self, cache: &'a Buffer) -> Result<()> {
        let c = self.config;
        let max_chunks = self.s.max_chunks();
        let groups = if self.pass.software { max_chunks.min(2) } else { max_chunks };
        let values: [(&str, &dyn Display); 6] = [
            ("N_HEADS", &c.n_heads),
            ("N_KV_HEADS", &c.n_kv_heads),
            ("HEAD_DIM", &c.head_dim),
            ("MAX_SEQ_LEN", &self.s.max_seq_len),
            ("MAX_CHUNKS", &max_chunks),
            ("GROUPS", &groups),
        ];
        let s = self.s;
        let ranges = vec![s.control.whole(), s.q.whole(), cache.whole(), s.slot_map.whole(), s.partial.whole()];
        let pairs = self.pass.tokens * (c.n_heads / c.n_kv_heads);
        let workgroups = [groups, c.n_kv_heads, pairs.div_ceil(8)];
        self.op("attention", &values, &["control", "numbers", "reduce", "exchange"], ranges, workgroups)
    }

    pub fn merge(&mut self) -> Result<()> {
        let c = self.config;
        let values: [(&str, &dyn Display); 3] =
            [("N_HEADS", &c.n_heads), ("HEAD_DIM", &c.head_dim), ("MAX_CHUNKS", &self.s.max_chunks())];
        let helpers = ["control", "numbers", "quant", "reduce", "exchange", "store_quantized"];
        let ranges = vec![self.s.control.whole(), self.s.partial.whole(), self.s.attn.whole()];
        self.op("merge", &values, &helpers, ranges, [c.q_dim() / BLOCK, self.pass.tokens, 1])
    }

    pub fn silu_quantize(&mut self) -> Result<()> {
        let hidden_dim = self.config.hidden_dim;
        let helpers = ["control", "numbers", "quant", "reduce", "exchange", "silu", "store_quantized"];
        let ranges = vec![self.s.control.whole(), self.s.gate_up.whole(), self.s.act.whole()];
        let workgroups = [hidden_dim.div_ceil(256), self.pass.tokens, 1];
        self.op("silu_quantize", &[("HIDDEN_DIM", &hidden_dim)], &helpers, ranges, workgroups)
    }

    pub fn argmax(&mut self) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        let ranges = vec![self.s.control.whole(), self.s.logits.whole(), self.s.best.whole()];
        let workgroups = [vocab_parts(vocab_size), self.pass.tokens, 1];
        self.op("argmax", &[("VOCAB_SIZE", &vocab_size)], &["control", "best"], ranges, workgroups)
    }

    pub fn penalize(&mut self) -> Result<()> {
        let s = self.s;
        // Where nothing is kept, any buffer fills the place.
        let kept = if self.pass.logprobs { self.model_logits()? } else { &s.best };
        let ranges =
            vec![s.control.whole(), s.sampling.whole(), s.context(), s.logits.whole(), s.counts.whole(), kept.whole()];
        let values: [(&str, &dyn Display); 2] =
            [("VOCAB_SIZE", &self.config.vocab_size), ("KEEPS", &self.pass.logprobs)];
        self.op("penalize", &values, &["control", "sampling"], ranges, [self.pass.tokens, 1, 1])
    }

    pub fn threshold(&mut self) -> Result<()> {
        let s = self.s;
        let ranges = vec![s.control.whole(), s.sampling.whole(), s.logits.whole(), s.thresholds.whole()];
        let values: [(&str, &dyn Display); 1] = [("VOCAB_SIZE", &self.config.vocab_size)];
        self.op("threshold", &values, &["control", "sampling", "keys", "numbers"], ranges, [self.pass.tokens, 1, 1])
    }

    pub fn sample(&mut self) -> Result<()> {
        let (s, vocab_size) = (self.s, self.config.vocab_size);
        let ranges =
            vec![s.control.whole(), s.sampling.whole(), s.logits.whole(), s.thresholds.whole(), s.best.whole()];
        let workgroups = [vocab_parts(vocab_size), self.pass.tokens, 1];
        let helpers = ["control", "sampling", "keys", "numbers", "best"];
        self.op("sample", &[("VOCAB_SIZE", &vocab_size)], &helpers, ranges, workgroups)
    }

    pub fn accept(&mut self) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        let predicts = matches!(self.pass.outcome, Outcome::Predict | Outcome::Verify);
        let parts = vocab_parts(vocab_size);
        let values: [(&str, &dyn Display); 3] =
            [("PREDICTS", &predicts), ("N_PARTS", &parts), ("VOCAB_SIZE", &vocab_size)];
        let s = self.s;
        let ranges = vec![s.control.whole(), s.context(), s.slot_map.whole(), s.best.whole()];
        self.op("accept", &values, &["control", "best"], ranges, [1, 1, 1])
    }

    pub fn logprob_parts(&mut self) -> Result<()> {
        let (s, vocab_size) = (self.s, self.config.vocab_size);
        let ranges = vec![s.control.whole(), self.model_logits()?.whole(), s.logprob_parts.whole()];
        let workgroups = [vocab_parts(vocab_size), self.pass.tokens.min(MAX_NEW), 1];
        let helpers = ["control", "keys", "logprobs", "numbers", "reduce", "exchange"];
        self.op("logprob_parts", &[("VOCAB_SIZE", &vocab_size)], &helpers, ranges, workgroups)
    }

    pub fn logprobs(&mut self) -> Result<()> {
        let (s, vocab_size) = (self.s, self.config.vocab_size);
        let ranges = vec![s.control.whole(), self.model_logits()?.whole(), s.logprob_parts.whole()];
        let values: [(&str, &dyn Display); 2] = [("VOCAB_SIZE", &vocab_size), ("N_PARTS", &vocab_parts(vocab_size))];
        let helpers = ["control", "keys", "logprobs", "numbers"];
        self.op("logprobs", &values, &helpers, ranges, [self.pass.tokens.min(MAX_NEW), 1, 1])
    }

    /// The logits as the model gave them: penalties change those of a request that samples.
    fn model_logits(&self) -> Result<&'a Buffer> {
        let missing = || Error::Gpu { what: "buffer kept".into(), message: "it was not made".into() };
        if self.pass.sampled { self.s.kept.as_ref().ok_or_else(missing) } else { Ok(&self.s.logits) }
    }
}

/// What a product reads besides the weights.
#[derive(Clone, Copy)]
struct Input<'a> {
    buffer: &'a Buffer,
    vectors: &'a Buffer,
    /// The buffer is the residual, and the norm stands in front of the product.
    fused_norm: bool,
}

/// How a product is cut into threads. Only `lanes` touches the order of additions, and it depends on the shape alone.
struct Tiling {
    wg: usize,
    lanes: usize,
    rows: usize,
    tile: usize,
}

impl Tiling {
    fn of(lanes: usize, tokens: usize, wg: usize, rows: usize) -> Tiling {
        let tile = tokens.min(16 / rows.max(2));
        Tiling { wg, lanes, rows, tile }
    }

    /// Rows of a workgroup.
    fn wg_rows(&self) -> usize {
        self.wg / self.lanes * self.rows
    }
}

/// Tokens whose normed input fits in front of a product in `memory` bytes of workgroup memory.
pub(super) fn fused_norm_tokens(dim: usize, memory: usize) -> usize {
    // The widest product holds 64 rows a workgroup; 5 KiB serve the reductions.
    let a_token = dim + dim / BLOCK * 8 + 64 * 4;
    memory.saturating_sub(5 << 10) / a_token
}

/// Parts of the vocabulary that argmax looks at separately.
pub(super) fn vocab_parts(vocab_size: usize) -> usize {
    vocab_size.div_ceil(4096)
}

/// What the device lets kernels use.
pub(super) fn features(adapter: &crate::gpu::Adapter) -> Features {
    Features { exchange: adapter.subgroup_size.unwrap_or(1).min(32), packed_dot: adapter.packed_dot }
}

fn weights_helper(format: Format) -> &'static str {
    match format {
        Format::Q4 => "q4",
        Format::Q4Min => "q4_min",
        Format::Q8 => "q8",
    }
}

/// What scores of attention are multiplied by.
fn score_scale(config: &Config) -> String {
    float((1.0 / (config.head_dim as f64).sqrt()) as f32)
}

/// A float as WGSL reads it back to the same bits.
fn float(value: f32) -> String {
    format!("{value:e}f")
}

fn inverse(n: usize) -> String {
    float((1.0 / n as f64) as f32)
}
