//! A model's shape, in one set of names, translated once from the file's own keys.

/// The architectures that the engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2, 3, 3.1, 3.2, SmolLM2 and their kin.
    Llama,
    /// Qwen2 and Qwen2.5: Llama with biases on q, k and v.
    Qwen2,
}

/// Which elements of a head the rotary embedding turns together, as the file stores its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// Elements `2i` and `2i + 1` (GGUF files of llama).
    Adjacent,
    /// Elements `i` and `i + head_dim / 2` (GGUF files of qwen2, Hugging Face folders).
    Halves,
}

/// A decoder-only transformer's shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The architecture.
    pub architecture: Architecture,
    /// Model width, a multiple of 32.
    pub dim: usize,
    /// Width of the feed-forward layer, a multiple of 32.
    pub hidden_dim: usize,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head, a multiple of 8; `n_heads * head_dim` is a multiple of 32.
    pub head_dim: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The longest context the model was trained for, in tokens.
    pub max_seq_len: usize,
    /// Added to the mean square in the norms.
    pub rms_norm_eps: f32,
    /// Rotary angle per position of each pair, scaling included: `[head_dim / 2]`.
    pub rope_frequencies: Vec<f64>,
    /// Which elements the rotary embedding turns together.
    pub rope_pairs: RopePairs,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the head is the embedding table itself.
    pub tied_head: bool,
}

impl Config {
    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads (or all value heads) together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Rows of q, k and v together.
    pub fn qkv_dim(&self) -> usize {
        self.q_dim() + 2 * self.kv_dim()
    }
}
