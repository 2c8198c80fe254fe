//! The forward pass, as the list of dispatches of one step.
//!
//! `forward` reads from top to bottom like the model's equations. Nothing is computed here: each operation is
//! composed from its kernel and noted down, and [`super::step`] compiles and records the list.

use std::fmt::Display;

use super::step::{Pass, Scratch};
use super::weights::{Layer, Matrix, Weights};
use crate::Result;
use crate::cpu::lanes;
use crate::gpu::{Buffer, Range};
use crate::kernels::{Features, compose};
use crate::model::{BLOCK, Config, Format};

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
    /// Six dispatches a layer.
    pub const ALL: Fusion = Fusion { norm: true, qkv: true, mlp: true };
}

/// What follows the layers in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Nothing: the tokens only enter the cache, and the last token of the context is left for a later step.
    Prefill,
    /// Logits, argmax and the next token.
    Predict,
    /// Logits of every node, but no new token.
    Score,
}

/// One dispatch to come: a kernel's source, its buffers and its workgroups.
pub(super) type Op<'a> = (crate::gpu::Source, Vec<Range<'a>>, [u32; 3]);

/// Notes the dispatches of one step of `pass.tokens` nodes.
pub(super) fn forward<'a>(
    config: &Config,
    weights: &'a Weights,
    s: &'a Scratch,
    pass: &Pass,
    note: &mut dyn FnMut(Op<'a>),
) -> Result<()> {
    let mut ops = Ops { config, s, pass, note };
    ops.begin()?;
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
        ops.argmax()?;
    }
    ops.accept()
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
        let ranges = vec![self.s.control.whole(), self.s.context.whole()];
        self.op("begin", &[("TOKENS", &self.pass.tokens), ("KEPT", &kept)], &["control"], ranges, [1, 1, 1])
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
            let n_blocks = matrix.n_cols / BLOCK;
            let shape = Tiling::of(n_blocks, self.pass.tokens, 64, if matrix.n_rows > 16384 { 4 } else { 2 });
            let (inverse, eps) = (inverse(self.config.dim), float(self.config.rms_norm_eps));
            let values: [(&str, &dyn Display); 11] = [
                ("N_BLOCKS", &n_blocks),
                ("N_ROWS", &part.n_rows),
                ("FIRST_ROW", &part.first_row),
                ("OUT_DIM", &matrix.n_rows),
                ("INV_DIM", &inverse),
                ("EPS", &eps),
                ("TOKENS", &self.pass.tokens),
                ("TILE", &shape.tile),
                ("ROWS", &shape.rows),
                ("LANES", &shape.lanes),
                ("WG", &shape.wg),
            ];
            let (input, mut helpers) = self.input(fused_norm);
            helpers.push(weights_helper(matrix.format));
            let ranges = vec![
                self.s.control.whole(),
                input.whole(),
                vectors.whole(),
                part.codes.whole(),
                part.scales.whole(),
                out.whole(),
            ];
            self.op("matmul", &values, &helpers, ranges, [part.n_rows.div_ceil(shape.wg_rows()), 1, 1])?;
        }
        Ok(())
    }

    pub fn qkv(&mut self, matrix: &'a Matrix, vectors: &'a Buffer, cache: &'a Buffer, fused_norm: bool) -> Result<()> {
        let c = self.config;
        let n_blocks = matrix.n_cols / BLOCK;
        let shape = Tiling::of(n_blocks, self.pass.tokens, 64, 2);
        let (inverse, eps) = (inverse(c.dim), float(c.rms_norm_eps));
        let (q_dim, kv_dim) = (c.q_dim(), c.kv_dim());
        let scale = score_scale(c);
        let values: [(&str, &dyn Display); 16] = [
            ("N_BLOCKS", &n_blocks),
            ("N_ROWS", &matrix.n_rows),
            ("Q_DIM", &q_dim),
            ("KV_DIM", &kv_dim),
            ("N_KV_HEADS", &c.n_kv_heads),
            ("HEAD_DIM", &c.head_dim),
            ("SCALE", &scale),
            ("MAX_SEQ_LEN", &self.s.max_seq_len),
            ("HAS_BIAS", &c.qkv_bias),
            ("INV_DIM", &inverse),
            ("EPS", &eps),
            ("TOKENS", &self.pass.tokens),
            ("TILE", &shape.tile),
            ("ROWS", &shape.rows),
            ("LANES", &shape.lanes),
            ("WG", &shape.wg),
        ];
        let (input, mut helpers) = self.input(fused_norm);
        helpers.extend([weights_helper(matrix.format), "rotary"]);
        let part = &matrix.parts[0];
        let ranges = vec![
            self.s.control.whole(),
            input.whole(),
            vectors.whole(),
            part.codes.whole(),
            part.scales.whole(),
            self.s.rope.whole(),
            self.s.q.whole(),
            cache.whole(),
        ];
        self.op("qkv", &values, &helpers, ranges, [matrix.n_rows.div_ceil(shape.wg_rows()), 1, 1])
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
        let values: [(&str, &dyn Display); 5] = [
            ("N_HEADS", &c.n_heads),
            ("N_KV_HEADS", &c.n_kv_heads),
            ("HEAD_DIM", &c.head_dim),
            ("MAX_SEQ_LEN", &self.s.max_seq_len),
            ("MAX_CHUNKS", &self.s.max_chunks()),
        ];
        let ranges = vec![self.s.control.whole(), self.s.q.whole(), cache.whole(), self.s.partial.whole()];
        let pairs = self.pass.tokens * (c.n_heads / c.n_kv_heads);
        let workgroups = [self.s.max_chunks(), c.n_kv_heads, pairs.div_ceil(8)];
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

    pub fn project(&mut self, matrix: &'a Matrix, input: &'a Buffer) -> Result<()> {
        let n_blocks = matrix.n_cols / BLOCK;
        let shape = Tiling::of(n_blocks, self.pass.tokens, 64, 2);
        let values: [(&str, &dyn Display); 7] = [
            ("N_BLOCKS", &n_blocks),
            ("N_ROWS", &matrix.n_rows),
            ("TOKENS", &self.pass.tokens),
            ("TILE", &shape.tile),
            ("ROWS", &shape.rows),
            ("LANES", &shape.lanes),
            ("WG", &shape.wg),
        ];
        let (_, mut helpers) = self.input(false);
        helpers.push(weights_helper(matrix.format));
        let part = &matrix.parts[0];
        let ranges = vec![
            self.s.control.whole(),
            input.whole(),
            // A product without a bias has no use for vectors; any buffer fills the place.
            self.s.rope.whole(),
            part.codes.whole(),
            part.scales.whole(),
            self.s.x.whole(),
        ];
        self.op("project", &values, &helpers, ranges, [matrix.n_rows.div_ceil(shape.wg_rows()), 1, 1])
    }

    pub fn gate_up(&mut self, matrix: &'a Matrix, vectors: &'a Buffer, fused_norm: bool) -> Result<()> {
        let c = self.config;
        let n_blocks = matrix.n_cols / BLOCK;
        let lanes = lanes(n_blocks);
        let shape = Tiling::of(n_blocks, self.pass.tokens, 256, lanes / 4);
        let (inverse, eps) = (inverse(c.dim), float(c.rms_norm_eps));
        let values: [(&str, &dyn Display); 10] = [
            ("N_BLOCKS", &n_blocks),
            ("N_ROWS", &matrix.n_rows),
            ("HIDDEN_DIM", &c.hidden_dim),
            ("INV_DIM", &inverse),
            ("EPS", &eps),
            ("TOKENS", &self.pass.tokens),
            ("TILE", &shape.tile),
            ("ROWS", &shape.rows),
            ("LANES", &shape.lanes),
            ("WG", &shape.wg),
        ];
        let (input, mut helpers) = self.input(fused_norm);
        helpers.extend([weights_helper(matrix.format), "silu", "store_quantized"]);
        let part = &matrix.parts[0];
        let ranges = vec![
            self.s.control.whole(),
            input.whole(),
            vectors.whole(),
            part.codes.whole(),
            part.scales.whole(),
            self.s.act.whole(),
        ];
        self.op("gate_up", &values, &helpers, ranges, [c.hidden_dim / BLOCK, 1, 1])
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

    pub fn accept(&mut self) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        let predicts = self.pass.outcome == Outcome::Predict;
        let parts = vocab_parts(vocab_size);
        let values: [(&str, &dyn Display); 3] =
            [("PREDICTS", &predicts), ("N_PARTS", &parts), ("VOCAB_SIZE", &vocab_size)];
        let ranges = vec![self.s.control.whole(), self.s.context.whole(), self.s.best.whole()];
        self.op("accept", &values, &["control", "best"], ranges, [1, 1, 1])
    }

    /// Where a product reads its input, and the helpers for that.
    fn input(&self, fused_norm: bool) -> (&'a Buffer, Vec<&'static str>) {
        let mut helpers = PRODUCT.to_vec();
        if fused_norm {
            helpers.extend(["input_normed", "norm"]);
            (&self.s.x, helpers)
        } else {
            helpers.push("input_quantized");
            (&self.s.h, helpers)
        }
    }
}

/// How a product is cut into threads. Only `lanes` touches the order of additions, and it depends on the shape alone.
struct Tiling {
    wg: usize,
    lanes: usize,
    rows: usize,
    tile: usize,
}

impl Tiling {
    fn of(n_blocks: usize, tokens: usize, wg: usize, rows: usize) -> Tiling {
        let tile = tokens.min(if rows > 4 { 4 } else { 8 });
        Tiling { wg, lanes: lanes(n_blocks), rows, tile }
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
