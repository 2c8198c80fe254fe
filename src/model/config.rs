//! A model's shape, in one set of names, translated once from the file's own keys.

use super::blocks::BLOCK;
use super::metadata::{Metadata, Value};
use crate::{Error, Result};

/// The architectures that the engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2, 3, 3.1, 3.2, SmolLM2 and their kin.
    Llama,
    /// Qwen2 and Qwen2.5: Llama with biases on q, k and v.
    Qwen2,
}

impl Architecture {
    /// Its name, as GGUF files have it.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
        }
    }
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

/// What the tensors of a file say about a model's shape, beside the metadata.
#[derive(Debug, Clone, Default)]
pub struct TensorFacts {
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether there is no head of its own.
    pub tied_head: bool,
    /// Divisors of the rotary frequencies (`rope_freqs.weight`, which Llama 3.1 files have): `[head_dim / 2]`.
    pub rope_factors: Option<Vec<f32>>,
}

/// Sizes past these are taken for damage, so that no later product of two of them overflows.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 10;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 10;
const MAX_VOCAB: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 28;

impl Config {
    /// Reads the shape from a GGUF file's metadata, with what only its tensors tell.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an architecture or an option of it that does not run here,
    /// [`Error::ModelFormat`] for missing or impossible values; each names its key.
    pub fn from_metadata(metadata: &Metadata, facts: TensorFacts) -> Result<Self> {
        let name = metadata.string("general.architecture").ok_or_else(|| missing("general.architecture"))?;
        let (architecture, rope_pairs) = match name {
            "llama" => (Architecture::Llama, RopePairs::Adjacent),
            "qwen2" => (Architecture::Qwen2, RopePairs::Halves),
            _ => {
                return Err(Error::Unsupported(format!(
                    "the architecture `{name}` does not run here: choose a model of llama or qwen2"
                )));
            }
        };
        let keys = Keys { metadata, architecture: name };

        let dim = keys.size("embedding_length", MAX_WIDTH)?;
        let hidden_dim = keys.size("feed_forward_length", MAX_WIDTH)?;
        let n_layers = keys.size("block_count", MAX_LAYERS)?;
        let n_heads = keys.size("attention.head_count", MAX_HEADS)?;
        let n_kv_heads = keys.optional_size("attention.head_count_kv", MAX_HEADS)?.unwrap_or(n_heads);
        let head_dim = match keys.optional_size("attention.key_length", MAX_HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if dim.is_multiple_of(n_heads) && dim / n_heads <= MAX_HEAD_DIM => dim / n_heads,
            None => {
                return Err(impossible(
                    &keys.name("attention.head_count"),
                    format!("{n_heads} heads cannot share a width of {dim}"),
                ));
            }
        };
        let mut max_seq_len = keys.size("context_length", MAX_CONTEXT)?;
        let rms_norm_eps = keys.required_float("attention.layer_norm_rms_epsilon")? as f32;

        let multiple = |key: &str, value: usize, of: usize| {
            if value.is_multiple_of(of) {
                return Ok(());
            }
            Err(Error::Unsupported(format!(
                "metadata key `{}` gives {value}, and only multiples of {of} run here: choose another model",
                keys.name(key)
            )))
        };
        multiple("embedding_length", dim, BLOCK)?;
        multiple("feed_forward_length", hidden_dim, BLOCK)?;
        multiple("attention.head_count", n_heads * head_dim, BLOCK)?;
        multiple("attention.key_length", head_dim, 8)?;
        if n_heads * head_dim > MAX_WIDTH {
            return Err(impossible(&keys.name("attention.head_count"), format!("{n_heads} heads of {head_dim}")));
        }
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(impossible(
                &keys.name("attention.head_count_kv"),
                format!("{n_kv_heads} key-value heads cannot share {n_heads} query heads"),
            ));
        }
        if !(rms_norm_eps.is_finite() && (0.0..1.0).contains(&rms_norm_eps)) {
            return Err(impossible(
                &keys.name("attention.layer_norm_rms_epsilon"),
                format!("{rms_norm_eps} is no small positive number"),
            ));
        }
        if !(1..=MAX_VOCAB).contains(&facts.vocab_size) {
            return Err(impossible("token_embd.weight", format!("{} rows cannot be", facts.vocab_size)));
        }
        if let Some(tokens) = metadata.strings("tokenizer.ggml.tokens")
            && tokens.len() > facts.vocab_size
        {
            return Err(impossible(
                "tokenizer.ggml.tokens",
                format!("{} tokens do not fit an embedding of {} rows", tokens.len(), facts.vocab_size),
            ));
        }

        keys.only("attention.value_length", head_dim as u64)?;
        keys.only("rope.dimension_count", head_dim as u64)?;
        keys.only("expert_count", 0)?;
        if metadata.bool(&keys.name("attention.causal")) == Some(false) {
            return Err(keys.unsupported("attention.causal"));
        }
        for key in ["attention.scale", "logit_scale", "residual_scale", "embedding_scale", "attention.clamp_kqv"] {
            if metadata.float(&keys.name(key)).is_some_and(|value| value != 0.0) {
                return Err(keys.unsupported(key));
            }
        }
        // Inside the window, attention in a sliding window is plain attention: the context ends where they part.
        if let Some(window) = keys.optional_size("attention.sliding_window", MAX_CONTEXT)? {
            max_seq_len = max_seq_len.min(window);
        }

        Ok(Self {
            architecture,
            dim,
            hidden_dim,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: facts.vocab_size,
            max_seq_len,
            rms_norm_eps,
            rope_frequencies: rope_frequencies(&keys, head_dim, facts.rope_factors.as_deref())?,
            rope_pairs,
            // Every Qwen2 has biases; a llama has them where its file does.
            qkv_bias: facts.qkv_bias || architecture == Architecture::Qwen2,
            tied_head: facts.tied_head,
        })
    }
}

/// The angle per position of each pair: `theta^(-2i / head_dim)`, scaled as the file says.
fn rope_frequencies(keys: &Keys, head_dim: usize, factors: Option<&[f32]>) -> Result<Vec<f64>> {
    let theta = keys.float("rope.freq_base")?.unwrap_or(10_000.0);
    if !(theta.is_finite() && theta >= 1.0) {
        return Err(impossible(&keys.name("rope.freq_base"), format!("{theta} is no base of at least 1")));
    }
    let mut frequencies: Vec<f64> = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect();

    // Old files name a linear scaling by its factor alone.
    let legacy = keys.positive("rope.scale_linear")?.unwrap_or(1.0);
    let factor = keys.positive("rope.scaling.factor")?;
    match keys.metadata.string(&keys.name("rope.scaling.type")) {
        None => frequencies.iter_mut().for_each(|frequency| *frequency /= factor.unwrap_or(legacy)),
        Some("none") => {}
        Some("linear") => frequencies.iter_mut().for_each(|frequency| *frequency /= factor.unwrap_or(legacy)),
        Some("llama3") => {
            let low = keys.positive("rope.scaling.low_freq_factor")?.unwrap_or(1.0);
            let high = keys.positive("rope.scaling.high_freq_factor")?.unwrap_or(4.0);
            let original = keys.positive("rope.scaling.original_context_length")?.unwrap_or(8192.0);
            if high <= low {
                return Err(impossible(
                    &keys.name("rope.scaling.high_freq_factor"),
                    format!("{high} is not past {low}"),
                ));
            }
            for frequency in &mut frequencies {
                *frequency = llama3_frequency(*frequency, factor.unwrap_or(8.0), low, high, original);
            }
        }
        Some(other) => {
            return Err(Error::Unsupported(format!(
                "the rotary scaling `{other}` of metadata key `{}` does not run here: choose a model without it",
                keys.name("rope.scaling.type")
            )));
        }
    }
    if let Some(factors) = factors {
        if factors.len() != head_dim / 2 {
            return Err(impossible(
                "rope_freqs.weight",
                format!("{} factors for {} pairs", factors.len(), head_dim / 2),
            ));
        }
        for (frequency, &factor) in frequencies.iter_mut().zip(factors) {
            if !(factor.is_finite() && factor > 0.0) {
                return Err(impossible("rope_freqs.weight", format!("{factor} is no positive number")));
            }
            *frequency /= f64::from(factor);
        }
    }
    Ok(frequencies)
}

/// Llama 3.1's scaling of one frequency: long waves are stretched by `factor`, short ones kept, those between blended
/// (`_compute_llama3_parameters` in transformers' `modeling_rope_utils.py`).
fn llama3_frequency(frequency: f64, factor: f64, low: f64, high: f64, original_context: f64) -> f64 {
    let wavelength = std::f64::consts::TAU / frequency;
    let turns = original_context / wavelength;
    if turns < low {
        frequency / factor
    } else if turns > high {
        frequency
    } else {
        let smooth = (turns - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

fn missing(key: &str) -> Error {
    Error::ModelFormat(format!("the model file has no usable metadata key `{key}`: download or convert it again"))
}

fn impossible(key: &str, why: String) -> Error {
    Error::ModelFormat(format!("the model file is damaged at `{key}`: {why}; download or convert it again"))
}

/// Metadata keys under an architecture's name.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn unsupported(&self, key: &str) -> Error {
        let name = self.name(key);
        Error::Unsupported(format!("metadata key `{name}` asks for what does not run here: choose another model"))
    }

    /// A size from 1 to `max`, if the key is there.
    fn optional_size(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let name = self.name(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(None) };
        if matches!(value, Value::Ints(_)) {
            return Err(Error::Unsupported(format!(
                "metadata key `{name}` differs from layer to layer, which does not run here: choose another model"
            )));
        }
        let size = self.metadata.uint(&name).ok_or_else(|| impossible(&name, format!("{value} is no size")))?;
        match usize::try_from(size) {
            Ok(size) if (1..=max).contains(&size) => Ok(Some(size)),
            _ => Err(impossible(&name, format!("{size} is not from 1 to {max}"))),
        }
    }

    fn size(&self, key: &str, max: usize) -> Result<usize> {
        self.optional_size(key, max)?.ok_or_else(|| missing(&self.name(key)))
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        let name = self.name(key);
        let Some(value) = self.metadata.get(&name) else { return Ok(None) };
        match self.metadata.float(&name) {
            Some(float) => Ok(Some(float)),
            None => Err(impossible(&name, format!("{value} is no number"))),
        }
    }

    fn required_float(&self, key: &str) -> Result<f64> {
        self.float(key)?.ok_or_else(|| missing(&self.name(key)))
    }

    /// A positive finite number; 0 stands for an absent one, as in old files.
    fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.float(key)? {
            None | Some(0.0) => Ok(None),
            Some(value) if value.is_finite() && value > 0.0 => Ok(Some(value)),
            Some(value) => Err(impossible(&self.name(key), format!("{value} is no positive number"))),
        }
    }

    /// Fails unless the key is absent or has the one value that runs.
    fn only(&self, key: &str, value: u64) -> Result<()> {
        let name = self.name(key);
        if self.metadata.get(&name).is_none() || self.metadata.uint(&name) == Some(value) {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "metadata key `{name}` is not {value}, the only value that runs with this model's shape: choose another \
             model"
        )))
    }
}
