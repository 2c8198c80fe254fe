//! Twin of the `attention` kernel: scores, `exp` and the weighted sum of the values, per chunk of 32 positions.

use super::kv_cache::KvCache;
use super::numbers::{exp, f16_to_f32, tree_sum};
use super::simd;
use super::tree::Tree;
use crate::model::Config;
use crate::parallel;

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
    // One piece of work is one key and value head in one chunk.
    let piece = partials.n_nodes * partials.group * (config.head_dim + 2);
    let n_chunks = partials.n_chunks;
    partials.data = vec![0.0; piece * n_chunks * config.n_kv_heads];
    parallel::for_each_chunk(&mut partials.data, piece, |i, out| {
        let (kv_head, chunk) = (i / n_chunks, i % n_chunks);
        simd::dispatch(
            #[inline(always)]
            || attend(config, q, cache, tree, kv_head, chunk, out),
        );
    });
    partials
}

/// Every node and query head of one key and value head, in one chunk.
#[inline(always)]
fn attend(config: &Config, q: &[f32], cache: &KvCache, tree: &Tree, kv_head: usize, chunk: usize, out: &mut [f32]) {
    let head_dim = config.head_dim;
    let group = config.n_heads / config.n_kv_heads;
    let mut rows = Rows::new(head_dim);
    // The deepest nodes come last as a rule, and what they read often begins with what the others read.
    for (node, out) in out.chunks_exact_mut(group * (head_dim + 2)).enumerate().rev() {
        let mut slots = [0; CHUNK];
        let n = tree.slots_at(node, chunk * CHUNK, &mut slots);
        rows.load(cache, kv_head, &slots[..n]);
        for (in_group, out) in out.chunks_exact_mut(head_dim + 2).enumerate() {
            let q = &q[node * config.q_dim() + (kv_head * group + in_group) * head_dim..][..head_dim];
            let (ml, acc) = out.split_at_mut(2);
            let scores = rows.scores(q);
            let mut m = f32::NEG_INFINITY;
            for score in &scores[..n] {
                m = m.max(*score);
            }
            let mut p = [0.0; CHUNK];
            for (p, score) in p.iter_mut().zip(&scores) {
                *p = exp(score - m);
            }
            p[n..].fill(0.0);
            (ml[0], ml[1]) = (m, tree_sum(p));
            simd::add_values(&p[..n], &rows.v, acc);
        }
    }
}

/// Keys and values of a chunk as f32, read once for all the query heads and nodes that see the same.
struct Rows {
    head_dim: usize,
    /// The slots that are loaded.
    slots: Vec<usize>,
    /// Keys, `[head_dim / 4, CHUNK, 4]`, so that a vector holds the same elements of several keys.
    k: Vec<[f32; 4 * CHUNK]>,
    /// Values, `[CHUNK, head_dim]`.
    v: Vec<f32>,
}

impl Rows {
    #[inline(always)]
    fn new(head_dim: usize) -> Rows {
        Rows {
            head_dim,
            slots: Vec::with_capacity(CHUNK),
            k: vec![[0.0; 4 * CHUNK]; head_dim / 4],
            v: vec![0.0; CHUNK * head_dim],
        }
    }

    /// Makes `slots` the first rows, unless they are so already.
    #[inline(always)]
    fn load(&mut self, cache: &KvCache, kv_head: usize, slots: &[usize]) {
        if self.slots.starts_with(slots) {
            return;
        }
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        for (i, &slot) in slots.iter().enumerate() {
            let row = cache.row(kv_head, slot);
            for (k, four) in self.k.iter_mut().zip(cache.k[row.clone()].as_chunks::<4>().0) {
                for (k, &bits) in k[4 * i..4 * i + 4].iter_mut().zip(four) {
                    *k = f16_to_f32(bits);
                }
            }
            for (v, &bits) in self.v[i * self.head_dim..][..self.head_dim].iter_mut().zip(&cache.v[row]) {
                *v = f16_to_f32(bits);
            }
        }
    }

    /// `q` times each key: 4 partials over the elements (`j` mod 4), then the tree. Rows that are not
    /// loaded give numbers without meaning.
    #[inline(always)]
    fn scores(&self, q: &[f32]) -> [f32; CHUNK] {
        let partials = simd::dot_keys(q, &self.k);
        let mut scores = [0.0; CHUNK];
        for (score, four) in scores.iter_mut().zip(partials.as_chunks::<4>().0) {
            *score = tree_sum(*four);
        }
        scores
    }
}
