//! A model's weights in GPU buffers.

use std::collections::HashMap;

use crate::gpu::{Buffer, Gpu};
use crate::model::{Blocks, Config, Format, MatrixInfo, MatrixKind, VectorKind, WeightSink};
use crate::{Error, Result};

/// A matrix in blocks. Tensors larger than a binding are split by rows.
pub struct Matrix {
    /// How its weights are held.
    pub format: Format,
    /// Number of rows.
    pub n_rows: usize,
    /// Elements in a row.
    pub n_cols: usize,
    /// The parts, in the order of their rows.
    pub parts: Vec<Part>,
}

/// Some rows of a matrix.
pub struct Part {
    /// The first row it holds.
    pub first_row: usize,
    /// Number of rows it holds.
    pub n_rows: usize,
    /// Codes, laid out as in [`Blocks`].
    pub codes: Buffer,
    /// Scales, laid out as in [`Blocks`].
    pub scales: Buffer,
}

/// The weights of one layer.
pub struct Layer {
    /// The norm in front of attention `[dim]`, then the bias of q, k and v `[qkv_dim]` where the model has one.
    pub attn_vectors: Buffer,
    /// The norm in front of the feed-forward layer, `[dim]`.
    pub mlp_vectors: Buffer,
    /// Rows of q, k and v, `[qkv_dim, dim]`.
    pub qkv_proj: Matrix,
    /// `[dim, q_dim]`
    pub o_proj: Matrix,
    /// Rows of gate, then of up, `[2 * hidden_dim, dim]`.
    pub gate_up_proj: Matrix,
    /// `[dim, hidden_dim]`
    pub down_proj: Matrix,
}

/// All weights of a model. It is the sink that a model file streams into.
pub struct Weights {
    gpu: Gpu,
    dim: usize,
    /// `[vocab_size, dim]`
    pub embed_tokens: Matrix,
    /// The layers, from the embedding on.
    pub layers: Vec<Layer>,
    /// The last norm, `[dim]`.
    pub norm: Buffer,
    /// `[vocab_size, dim]`, where the head is not the embedding table.
    pub lm_head: Option<Matrix>,
    /// Bytes written since the last wait for the GPU.
    unfinished: usize,
}

/// Bytes that may be on their way to the GPU before the loader waits for it.
const IN_FLIGHT: usize = 16 << 20;

impl Weights {
    /// Makes the buffers for `matrices`, still zeroed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has no room; [`Error::Unsupported`] where a layer's matrix is larger
    /// than a binding may be.
    pub async fn new(gpu: &Gpu, config: &Config, matrices: &[MatrixInfo]) -> Result<Weights> {
        Weights::split(gpu, config, matrices, u64::MAX).await
    }

    /// The same, with the embedding table and the head in parts of at most `max_binding` bytes, for tests.
    ///
    /// # Errors
    /// As [`Weights::new`].
    pub async fn split(gpu: &Gpu, config: &Config, matrices: &[MatrixInfo], max_binding: u64) -> Result<Weights> {
        let mut made = HashMap::new();
        for info in matrices {
            let outside = matches!(info.kind, MatrixKind::EmbedTokens | MatrixKind::LmHead);
            let max_binding = if outside { max_binding } else { u64::MAX };
            made.insert((info.kind, info.layer), Matrix::new(gpu, info, max_binding).await?);
        }
        let mut take = |kind: MatrixKind, layer| {
            let missing = || Error::ModelFormat(format!("the model has no {} in layer {layer}", kind.name()));
            made.remove(&(kind, layer)).ok_or_else(missing)
        };
        let vectors = async |label: &str, n: usize| gpu.buffer(label, 4 * n as u64).await;
        let mut layers = Vec::new();
        for layer in 0..config.n_layers {
            let bias = if config.qkv_bias { config.qkv_dim() } else { 0 };
            layers.push(Layer {
                attn_vectors: vectors("attention vectors", config.dim + bias).await?,
                mlp_vectors: vectors("feed-forward norm", config.dim).await?,
                qkv_proj: take(MatrixKind::QkvProj, layer)?.single()?,
                o_proj: take(MatrixKind::OProj, layer)?.single()?,
                gate_up_proj: take(MatrixKind::GateUpProj, layer)?.single()?,
                down_proj: take(MatrixKind::DownProj, layer)?.single()?,
            });
        }
        Ok(Weights {
            gpu: gpu.clone(),
            dim: config.dim,
            embed_tokens: take(MatrixKind::EmbedTokens, 0)?,
            layers,
            norm: vectors("norm", config.dim).await?,
            lm_head: if config.tied_head { None } else { Some(take(MatrixKind::LmHead, 0)?) },
            unfinished: 0,
        })
    }

    /// The head's matrix: its own, or the embedding table.
    pub fn head(&self) -> &Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    fn matrix(&self, info: &MatrixInfo) -> Option<&Matrix> {
        let layer = self.layers.get(info.layer);
        match info.kind {
            MatrixKind::EmbedTokens => Some(&self.embed_tokens),
            MatrixKind::LmHead => self.lm_head.as_ref(),
            MatrixKind::QkvProj => layer.map(|layer| &layer.qkv_proj),
            MatrixKind::OProj => layer.map(|layer| &layer.o_proj),
            MatrixKind::GateUpProj => layer.map(|layer| &layer.gate_up_proj),
            MatrixKind::DownProj => layer.map(|layer| &layer.down_proj),
        }
    }

    /// Waits for the GPU where much is on its way, so that the bytes do not gather in memory.
    async fn wrote(&mut self, bytes: usize) -> Result<()> {
        self.unfinished += bytes;
        if self.unfinished >= IN_FLIGHT {
            self.unfinished = 0;
            self.gpu.finish().await?;
        }
        Ok(())
    }
}

impl WeightSink for Weights {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()> {
        let of_layer = self.layers.get(layer);
        let place = match kind {
            VectorKind::Norm => Some((&self.norm, 0)),
            VectorKind::AttnNorm => of_layer.map(|layer| (&layer.attn_vectors, 0)),
            VectorKind::MlpNorm => of_layer.map(|layer| (&layer.mlp_vectors, 0)),
            VectorKind::QkvBias => of_layer.map(|layer| (&layer.attn_vectors, self.dim)),
        };
        let wrong = || misplaced(&format!("values of {} in layer {layer}", kind.name()));
        let (buffer, first) = place.ok_or_else(wrong)?;
        if 4 * (first + values.len()) as u64 > buffer.size() {
            return Err(wrong());
        }
        self.gpu.write(buffer, 4 * first as u64, bytemuck::cast_slice(&values));
        self.wrote(4 * values.len()).await
    }

    async fn rows(&mut self, info: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        let wrong = || misplaced(&format!("rows of {} in layer {}", info.kind.name(), info.layer));
        let matrix = self.matrix(info).ok_or_else(wrong)?;
        if rows.format != matrix.format || rows.n_cols != matrix.n_cols || first_row + rows.n_rows > matrix.n_rows {
            return Err(wrong());
        }
        let n_blocks = matrix.n_cols / crate::model::BLOCK;
        let code_words = n_blocks * matrix.format.code_words();
        for part in &matrix.parts {
            // The rows of the slab that fall into this part.
            let from = first_row.max(part.first_row);
            let to = (first_row + rows.n_rows).min(part.first_row + part.n_rows);
            if from >= to {
                continue;
            }
            let codes = &rows.codes[(from - first_row) * code_words..(to - first_row) * code_words];
            let at = |row: usize| matrix.format.scale_words(row * n_blocks);
            let scales = &rows.scales[at(from - first_row)..at(to - first_row)];
            let row = from - part.first_row;
            self.gpu.write(&part.codes, 4 * (row * code_words) as u64, bytemuck::cast_slice(codes));
            self.gpu.write(&part.scales, 4 * at(row) as u64, bytemuck::cast_slice(scales));
        }
        self.wrote(4 * (rows.codes.len() + rows.scales.len())).await
    }
}

impl Matrix {
    async fn new(gpu: &Gpu, info: &MatrixInfo, max_binding: u64) -> Result<Matrix> {
        let n_blocks = info.n_cols / crate::model::BLOCK;
        let row_bytes = 4 * n_blocks * info.format.code_words();
        let most = gpu.adapter().max_binding.min(gpu.adapter().max_buffer).min(max_binding) / row_bytes as u64;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // Parts of an even number of rows keep the packed scales of a part whole words.
        let part_rows = if info.n_rows <= most { info.n_rows } else { (most & !1).max(2) };
        let mut parts = Vec::new();
        for first_row in (0..info.n_rows).step_by(part_rows) {
            let n_rows = part_rows.min(info.n_rows - first_row);
            let label = format!("{} of layer {}", info.kind.name(), info.layer);
            let codes = gpu.buffer(&label, (n_rows * row_bytes) as u64).await?;
            let scales = gpu.buffer(&label, 4 * info.format.scale_words(n_rows * n_blocks) as u64).await?;
            parts.push(Part { first_row, n_rows, codes, scales });
        }
        Ok(Matrix { format: info.format, n_rows: info.n_rows, n_cols: info.n_cols, parts })
    }

    /// The matrix, if it is whole.
    fn single(self) -> Result<Matrix> {
        if self.parts.len() == 1 {
            return Ok(self);
        }
        Err(Error::Unsupported(format!(
            "a matrix of {} rows and {} columns is larger than a binding of this device: choose --limits adapter or \
             load a smaller model",
            self.n_rows, self.n_cols
        )))
    }
}

fn misplaced(what: &str) -> Error {
    Error::ModelFormat(format!("the model file holds {what} that its header does not announce"))
}
