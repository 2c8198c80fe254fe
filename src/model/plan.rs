//! What a model takes in memory, known before its weights are read.

use super::blocks::Format;
use super::config::Config;
use super::package::Model;

/// Bytes that a model takes at some context length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Positions the cache holds.
    pub context: usize,
    /// Matrices held as [`Format::Q4`], in bytes.
    pub weights_q4: u64,
    /// Matrices held as [`Format::Q4Min`], in bytes.
    pub weights_q4_min: u64,
    /// Matrices held as [`Format::Q8`], in bytes.
    pub weights_q8: u64,
    /// Norms and biases, in bytes.
    pub vectors: u64,
    /// Keys and values in 16 bits, in bytes.
    pub cache: u64,
    /// What the engine needs beside them while it runs, in bytes.
    pub scratch: u64,
    /// The largest matrix, in bytes: what a binding must hold, or be split for.
    pub largest_matrix: u64,
    /// The file, in bytes: what a download takes.
    pub file: u64,
}

impl MemoryPlan {
    /// The plan of `model` for `context` positions; `scratch(config, context)` gives the bytes of the run buffers.
    pub fn new(model: &Model, context: usize, scratch: impl FnOnce(&Config, usize) -> u64) -> Self {
        let config = &model.config;
        let weights = |format: Format| -> u64 {
            model.matrices().iter().filter(|matrix| matrix.format == format).map(|matrix| matrix.bytes()).sum()
        };
        let bias = if config.qkv_bias { config.qkv_dim() as u64 } else { 0 };
        let dim = config.dim as u64;
        let floats = config.n_layers as u64 * (2 * dim + bias) + dim;
        Self {
            context,
            weights_q4: weights(Format::Q4),
            weights_q4_min: weights(Format::Q4Min),
            weights_q8: weights(Format::Q8),
            vectors: 4 * floats,
            cache: layer_cache_bytes(config, context).saturating_mul(config.n_layers as u64),
            scratch: scratch(config, context),
            largest_matrix: model.matrices().iter().map(|matrix| matrix.bytes()).max().unwrap_or(0),
            file: model.file_bytes,
        }
    }

    /// Everything that is held while the model runs, in bytes (the file is not).
    pub fn total(&self) -> u64 {
        [self.weights_q4, self.weights_q4_min, self.weights_q8, self.vectors, self.cache, self.scratch]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Bytes of one layer's cache: keys and values of `context` positions, 16 bits each.
pub fn layer_cache_bytes(config: &Config, context: usize) -> u64 {
    [2, context as u64, config.kv_dim() as u64, 2].into_iter().fold(1, u64::saturating_mul)
}
