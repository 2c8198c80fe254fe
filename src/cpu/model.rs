//! A whole model on the CPU: the forward pass, and the tokens in its cache.

use super::weights::CpuWeights;
use super::{
    KvCache, MAX_NODES, Tree, add_bias, add_residual, attention, embed, merge_quantize, norm_quantize, rope_cache,
    rope_table, silu_quantize,
};
use crate::decoder::request::common_prefix;
use crate::gpu::breathe;
use crate::model::Config;
use crate::parallel;
use crate::{Error, Result};
use std::ops::ControlFlow;

/// The tokens of one pass: at most [`MAX_NODES`], and who sees whom (see [`Tree`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Token of each node.
    pub tokens: Vec<u32>,
    /// Per node, bit `j` set where node `j` is an ancestor or the node itself.
    pub ancestors: Vec<u32>,
}

impl Pass {
    /// Tokens that follow each other.
    pub fn chain(tokens: &[u32]) -> Pass {
        Pass { tokens: tokens.to_vec(), ancestors: Tree::chain(0, tokens.len()).ancestors }
    }
}

/// The nodes of a pass whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsOf {
    /// No node: only the cache is filled.
    None,
    /// The last node.
    Last,
    /// Every node.
    All,
}

/// A model that runs on the CPU, and the conversation in its cache.
#[derive(Debug)]
pub struct CpuModel {
    weights: CpuWeights,
    /// Per layer.
    cache: Vec<KvCache>,
    /// Cosine and sine, `[max_seq_len, head_dim / 2]`.
    rope: Vec<[f32; 2]>,
    /// The tokens whose keys and values are in the cache for good.
    committed: Vec<u32>,
    max_seq_len: usize,
}

impl CpuModel {
    /// A model with an empty cache for `max_seq_len` tokens.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] where weights are missing, [`Error::OutOfMemory`] where the cache cannot be had.
    pub fn new(weights: CpuWeights, max_seq_len: usize) -> Result<CpuModel> {
        weights.check()?;
        let config = &weights.config;
        let floats = config.kv_dim().checked_mul(max_seq_len).and_then(|n| n.checked_mul(config.n_layers));
        let room = floats.is_some_and(|n| Vec::<[u16; 2]>::new().try_reserve_exact(n).is_ok())
            && Vec::<[f32; 2]>::new().try_reserve_exact(max_seq_len.saturating_mul(config.head_dim / 2)).is_ok();
        if !room {
            return Err(Error::OutOfMemory(format!(
                "there is not enough memory for a context of {max_seq_len} tokens: ask for a shorter context"
            )));
        }
        let cache = || KvCache::new(config.n_kv_heads, max_seq_len, config.head_dim);
        Ok(CpuModel {
            cache: (0..config.n_layers).map(|_| cache()).collect(),
            rope: rope_table(config, max_seq_len),
            committed: Vec::new(),
            max_seq_len,
            weights,
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.weights.config
    }

    /// Tokens that the context holds.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The tokens in the cache.
    pub fn committed(&self) -> &[u32] {
        &self.committed
    }

    /// Runs one pass behind the committed tokens and answers the logits asked for, `[n, vocab_size]`.
    ///
    /// The nodes' keys and values are in the cache then, but they count only after [`CpuModel::commit`]; the next
    /// pass overwrites what was not committed.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a token or a tree that cannot be, [`Error::ContextOverflow`] where the context ends.
    pub fn forward(&mut self, pass: &Pass, logits_of: LogitsOf) -> Result<Vec<f32>> {
        let tree = self.check(pass)?;
        Ok(parallel::inside(|| self.run(pass, &tree, logits_of)))
    }

    /// The forward pass itself.
    fn run(&mut self, pass: &Pass, tree: &Tree, logits_of: LogitsOf) -> Vec<f32> {
        let CpuModel { weights, cache, rope, .. } = self;
        let config = &weights.config;
        let (dim, eps) = (config.dim, config.rms_norm_eps);

        let rows: Vec<u32> = (0..pass.tokens.len() as u32).collect();
        let mut x = embed(&weights.embed_tokens.blocks.rows(&pass.tokens), &rows);
        for (layer, cache) in weights.layers.iter().zip(cache) {
            // Attention: x += o_proj · attend(rope(qkv_proj · norm(x) + bias)).
            let h = norm_quantize(&x, &layer.attn_norm, eps);
            let mut qkv = layer.qkv_proj.blocks.matmul(&h);
            add_bias(&mut qkv, &layer.qkv_bias);
            let q = rope_cache(config, &qkv, rope, tree, cache);
            let attn = merge_quantize(&attention(config, &q, cache, tree));
            add_residual(&mut x, &layer.o_proj.blocks.matmul(&attn));

            // Feed-forward: x += down_proj · (silu(gate) * up).
            let h = norm_quantize(&x, &layer.mlp_norm, eps);
            let act = silu_quantize(&layer.gate_up_proj.blocks.matmul(&h), config.hidden_dim);
            add_residual(&mut x, &layer.down_proj.blocks.matmul(&act));
        }

        let wanted = match logits_of {
            LogitsOf::None => return Vec::new(),
            LogitsOf::Last => &x[x.len().saturating_sub(dim)..],
            LogitsOf::All => &x[..],
        };
        weights.head().matmul(&norm_quantize(wanted, &weights.norm, eps))
    }

    /// Checks what the forward pass takes for granted.
    fn check(&self, pass: &Pass) -> Result<Tree> {
        let tree = Tree { n_committed: self.committed.len(), ancestors: pass.ancestors.clone() };
        if pass.tokens.len() != tree.n_nodes() || !tree.is_sound() {
            return Err(Error::BadInput(format!(
                "a pass holds at most {MAX_NODES} tokens, each behind its ancestors: split it or correct its tree"
            )));
        }
        if let Some(token) = pass.tokens.iter().find(|token| **token as usize >= self.config().vocab_size) {
            return Err(Error::BadInput(format!(
                "token {token} is not in this model's vocabulary of {}: use this model's tokenizer",
                self.config().vocab_size
            )));
        }
        let needed = tree.n_committed + tree.n_nodes();
        if needed > self.max_seq_len {
            return Err(Error::ContextOverflow { needed, context: self.max_seq_len });
        }
        Ok(tree)
    }

    /// Keeps `node` of the last pass and its ancestors: they become the next committed tokens.
    pub fn commit(&mut self, pass: &Pass, node: usize) {
        let first = self.committed.len();
        let mut path = pass.ancestors.get(node).copied().unwrap_or(0);
        while path != 0 {
            let node = path.trailing_zeros() as usize;
            // An ancestor's slot is never behind its place in the text, so nothing is overwritten that is needed.
            let slot = self.committed.len();
            if first + node != slot {
                self.cache.iter_mut().for_each(|cache| cache.copy_slot(first + node, slot));
            }
            self.committed.push(pass.tokens[node]);
            path &= path - 1;
        }
    }

    /// Forgets all but the first `n` committed tokens.
    pub fn truncate(&mut self, n: usize) {
        self.committed.truncate(n);
    }

    /// Fills the cache with `prompt` and answers the logits behind it, `[vocab_size]`.
    ///
    /// What the prompt has in common with the committed tokens is not computed again. `go_on` hears how many of the
    /// prompt's tokens are done, and can end the work.
    ///
    /// # Errors
    /// [`Error::BadInput`] for an empty prompt, [`Error::ContextOverflow`] for one that is too long,
    /// [`Error::Aborted`] where `go_on` said so.
    pub async fn prefill(
        &mut self,
        prompt: &[u32],
        mut go_on: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>> {
        if prompt.is_empty() {
            return Err(Error::BadInput("the prompt is empty: give at least one token".into()));
        }
        if prompt.len() > self.max_seq_len {
            return Err(Error::ContextOverflow { needed: prompt.len(), context: self.max_seq_len });
        }
        let common = common_prefix(&self.committed, prompt);
        // The last token runs in any case: its logits are asked for.
        self.truncate(common.min(prompt.len() - 1));
        loop {
            let rest = &prompt[self.committed.len()..];
            let pass = Pass::chain(&rest[..rest.len().min(MAX_NODES)]);
            let is_last = pass.tokens.len() == rest.len();
            let logits = self.forward(&pass, if is_last { LogitsOf::Last } else { LogitsOf::None })?;
            self.commit(&pass, pass.tokens.len() - 1);
            breathe().await;
            if go_on(self.committed.len()).is_break() {
                return Err(Error::Aborted);
            }
            if is_last {
                return Ok(logits);
            }
        }
    }
}
