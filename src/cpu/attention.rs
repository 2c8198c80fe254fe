//! Twin of the `attention` kernel: scores, `exp` and the weighted sum of the values, per chunk of 32 positions.

use super::kv_cache::KvCache;
use super::numbers::{exp, f16_to_f32, fma, tree_sum};
use super::simd;
use super::tree::Tree;
use crate::model::Config;

/// Positions in a chunk. Chunks stand at fixed absolute positions.
pub const CHUNK: usize = 32;

/// What attention leaves per node, head and chunk: the largest score `m`, the sum `l` of `exp(score - m)`, and the
/// values weighted with them, `acc`. A chunk that a node does not see has `m` = -infinity and zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct Partials {
    /// Nodes of the pass.
    pub n_nodes: usize,
    /// Chunks up to the last position that any node sees.
    pub n_chunks: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Query heads that share a key and value head.
    pub group: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// One entry of `head_dim + 2` floats (`m`, `l`, `acc`) per
    /// `[n_kv_heads, n_chunks, n_nodes, group]`, so that a piece of work is one slice.
    pub data: Vec<f32>,
}

impl Partials {
    /// (`m`, `l`, `acc`) of a node, query head and chunk; `acc` is `[head_dim]`.
    #[inline(always)]
    pub fn at(&self, node: usize, head: usize, chunk: usize) -> (f32, f32, &[f32]) {
        let (kv_head, in_group) = (head / self.group, head % self.group);
        let entry = ((kv_head * self.n_chunks + chunk) * self.n_nodes + node) * self.group + in_group;
        let entry = &self.data[entry * (self.head_dim + 2)..][..self.head_dim + 2];
        (entry[0], entry[1], &entry[2..])
    }
}

/// The attention of every node's `q`, `[n_nodes, q_dim]`, to the keys and values that it sees in `cache`.
pub fn attention(config: &Config, q: &[f32], cache: &KvCache, tree: &Tree) -> Partials {
    let longest = (0..tree.n_nodes()).map(|node| tree.position(node) + 1).max().unwrap_or(0);
    let mut partials = Partials {
        n_nodes: tree.n_nodes(),
        n_chunks: longest.div_ceil(CHUNK),
        n_kv_heads: config.n_kv_heads,
        group: config.n_heads / config.n_kv_heads,
        head_dim: config.head_dim,
        data: Vec::new(),
    };
    let piece = partials.n_nodes * partials.group * (config.head_dim + 2);
    partials.data = vec![0.0; piece * partials.n_chunks * config.n_kv_heads];
    for (i, out) in partials.data.chunks_exact_mut(piece.max(1)).enumerate() {
        let (kv_head, chunk) = (i / partials.n_chunks, i % partials.n_chunks);
        simd::dispatch(
            #[inline(always)]
            || attend(config, q, cache, tree, kv_head, chunk, out),
        );
    }
    partials
}

/// One piece of work: every node and query head of one key and value head, in one chunk.
#[inline(always)]
fn attend(config: &Config, q: &[f32], cache: &KvCache, tree: &Tree, kv_head: usize, chunk: usize, out: &mut [f32]) {
    let head_dim = config.head_dim;
    let group = config.n_heads / config.n_kv_heads;
    let scale = 1.0 / (head_dim as f32).sqrt();
    for (node, out) in out.chunks_exact_mut(group * (head_dim + 2)).enumerate() {
        let mut slots = [0; CHUNK];
        let n = tree.slots_at(node, chunk * CHUNK, &mut slots);
        for (in_group, out) in out.chunks_exact_mut(head_dim + 2).enumerate() {
            let q = &q[node * config.q_dim() + (kv_head * group + in_group) * head_dim..][..head_dim];
            let mut m = f32::NEG_INFINITY;
            let mut scores = [f32::NEG_INFINITY; CHUNK];
            for (score, &slot) in scores.iter_mut().zip(&slots[..n]) {
                let mut acc = [0.0; 4];
                for (j, (&q, &k)) in q.iter().zip(&cache.k[cache.row(kv_head, slot)]).enumerate() {
                    acc[j % 4] = fma(q, f16_to_f32(k), acc[j % 4]);
                }
                *score = tree_sum(acc) * scale;
                m = m.max(*score);
            }
            let mut p = [0.0; CHUNK];
            for (p, &score) in p.iter_mut().zip(&scores[..n]) {
                *p = exp(score - m);
            }
            (out[0], out[1]) = (m, tree_sum(p));
            for (p, &slot) in p.iter().zip(&slots[..n]) {
                for (acc, &v) in out[2..].iter_mut().zip(&cache.v[cache.row(kv_head, slot)]) {
                    *acc = fma(*p, f16_to_f32(v), *acc);
                }
            }
        }
    }
}
