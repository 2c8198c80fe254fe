//! A model's weights in the CPU's memory, filled as they stream from the file.

use super::packed::PackedBlocks;
use crate::model::package::{MatrixInfo, MatrixKind, VectorKind, WeightSink};
use crate::model::{BLOCK, Blocks, Config, Format};
use crate::{Error, Result};

/// The weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// `[dim]`
    pub attn_norm: Vec<f32>,
    /// `[qkv_dim, dim]`
    pub qkv_proj: Matrix,
    /// `[qkv_dim]`, or empty.
    pub qkv_bias: Vec<f32>,
    /// `[dim, q_dim]`
    pub o_proj: Matrix,
    /// `[dim]`
    pub mlp_norm: Vec<f32>,
    /// `[2 * hidden_dim, dim]`
    pub gate_up_proj: Matrix,
    /// `[dim, hidden_dim]`
    pub down_proj: Matrix,
}

/// A matrix, and how many of its rows have come.
#[derive(Debug)]
pub(super) struct Matrix {
    pub blocks: PackedBlocks,
    n_set: usize,
}

impl Matrix {
    fn empty() -> Matrix {
        Matrix { blocks: PackedBlocks::new(Format::Q8, 0, 0), n_set: 0 }
    }
}

/// All weights of a model, packed for the CPU. Fill it as a [`WeightSink`], then make a [`super::CpuModel`] of it.
#[derive(Debug)]
pub struct CpuWeights {
    pub(super) config: Config,
    /// `[vocab_size, dim]`
    pub(super) embed_tokens: Matrix,
    pub(super) layers: Vec<Layer>,
    /// `[dim]`
    pub(super) norm: Vec<f32>,
    /// `[vocab_size, dim]`; empty where the head is tied.
    pub(super) lm_head: Matrix,
}

impl CpuWeights {
    /// No weights yet, for a model of this shape.
    pub fn new(config: Config) -> CpuWeights {
        let layer = |_| Layer {
            attn_norm: Vec::new(),
            qkv_proj: Matrix::empty(),
            qkv_bias: Vec::new(),
            o_proj: Matrix::empty(),
            mlp_norm: Vec::new(),
            gate_up_proj: Matrix::empty(),
            down_proj: Matrix::empty(),
        };
        CpuWeights {
            embed_tokens: Matrix::empty(),
            layers: (0..config.n_layers).map(layer).collect(),
            norm: Vec::new(),
            lm_head: Matrix::empty(),
            config,
        }
    }

    /// The matrix that multiplies the last activations: the head, or the embedding where it is tied.
    pub(super) fn head(&self) -> &PackedBlocks {
        if self.config.tied_head { &self.embed_tokens.blocks } else { &self.lm_head.blocks }
    }

    /// Checks that every weight has come, whole and in its shape, so that the forward pass need not.
    pub(super) fn check(&self) -> Result<()> {
        let config = &self.config;
        let is_sound = config.n_kv_heads > 0
            && config.n_heads > 0
            && config.n_heads.is_multiple_of(config.n_kv_heads)
            && config.head_dim > 0
            && config.head_dim.is_multiple_of(8)
            && config.rope_frequencies.len() == config.head_dim / 2
            && [config.dim, config.hidden_dim, config.q_dim()].iter().all(|n| *n > 0 && n.is_multiple_of(BLOCK))
            && config.vocab_size > 0;
        if !is_sound {
            return Err(Error::Unsupported(format!(
                "the model's shape does not work out (dim {}, hidden_dim {}, {} heads and {} key-value heads of {}, {} \
                 tokens): use a model of a supported architecture",
                config.dim, config.hidden_dim, config.n_heads, config.n_kv_heads, config.head_dim, config.vocab_size
            )));
        }
        let (dim, qkv_dim) = (config.dim, config.qkv_dim());
        let matrix = |name: &str, matrix: &Matrix, n_rows: usize, n_cols: usize| {
            let shape = (matrix.blocks.n_rows(), matrix.blocks.n_cols());
            if shape == (n_rows, n_cols) && matrix.n_set == n_rows { Ok(()) } else { Err(missing(name)) }
        };
        let vector = |name: &str, vector: &[f32], len: usize| {
            if vector.len() == len { Ok(()) } else { Err(missing(name)) }
        };
        matrix("embed_tokens", &self.embed_tokens, config.vocab_size, dim)?;
        for layer in &self.layers {
            vector("attn_norm", &layer.attn_norm, dim)?;
            matrix("qkv_proj", &layer.qkv_proj, qkv_dim, dim)?;
            vector("qkv_bias", &layer.qkv_bias, if config.qkv_bias { qkv_dim } else { 0 })?;
            matrix("o_proj", &layer.o_proj, dim, config.q_dim())?;
            vector("mlp_norm", &layer.mlp_norm, dim)?;
            matrix("gate_up_proj", &layer.gate_up_proj, 2 * config.hidden_dim, dim)?;
            matrix("down_proj", &layer.down_proj, dim, config.hidden_dim)?;
        }
        vector("norm", &self.norm, dim)?;
        if !config.tied_head {
            matrix("lm_head", &self.lm_head, config.vocab_size, dim)?;
        }
        Ok(())
    }

    fn layer(&mut self, layer: usize, name: &str) -> Result<&mut Layer> {
        self.layers.get_mut(layer).ok_or_else(|| {
            Error::ModelFormat(format!(
                "the model has a {name} for a layer {layer} that it does not have: get it again"
            ))
        })
    }
}

fn missing(name: &str) -> Error {
    Error::ModelFormat(format!("the model's {name} is missing, incomplete or of the wrong shape: get the file again"))
}

impl WeightSink for CpuWeights {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()> {
        match kind {
            VectorKind::AttnNorm => self.layer(layer, "attn_norm")?.attn_norm = values,
            VectorKind::MlpNorm => self.layer(layer, "mlp_norm")?.mlp_norm = values,
            VectorKind::QkvBias => self.layer(layer, "qkv_bias")?.qkv_bias = values,
            VectorKind::Norm => self.norm = values,
        }
        Ok(())
    }

    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        let name = matrix.kind.name();
        let target = match matrix.kind {
            MatrixKind::EmbedTokens => &mut self.embed_tokens,
            MatrixKind::LmHead => &mut self.lm_head,
            MatrixKind::QkvProj => &mut self.layer(matrix.layer, name)?.qkv_proj,
            MatrixKind::OProj => &mut self.layer(matrix.layer, name)?.o_proj,
            MatrixKind::GateUpProj => &mut self.layer(matrix.layer, name)?.gate_up_proj,
            MatrixKind::DownProj => &mut self.layer(matrix.layer, name)?.down_proj,
        };
        if target.blocks.n_rows() == 0 {
            target.blocks = PackedBlocks::new(matrix.format, matrix.n_rows, matrix.n_cols);
        }
        if !target.blocks.set_rows(first_row, &rows) {
            return Err(missing(name));
        }
        target.n_set += rows.n_rows;
        Ok(())
    }
}
