//! Twin of the `rope_cache` kernel: the rotary embedding of q and k, and the write of k and v to the cache.

use super::kv_cache::KvCache;
use super::numbers::{f32_to_f16, fma};
use super::simd;
use super::tree::Tree;
use crate::model::Config;

/// Cosine and sine of every pair's angle at the positions `0..len`, `[len, head_dim / 2]`, worked out in f64.
pub fn rope_table(config: &Config, len: usize) -> Vec<[f32; 2]> {
    let mut table = Vec::with_capacity(len * config.rope_frequencies.len());
    for position in 0..len {
        table.extend(config.rope_frequencies.iter().map(|frequency| {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            [cos as f32, sin as f32]
        }));
    }
    table
}

/// Splits `qkv`, `[n_nodes, q_dim + 2 * kv_dim]`, turns q and k by their positions, scales q by `1 / sqrt(head_dim)`,
/// writes k and v to the nodes' slots of `cache`, and answers q, `[n_nodes, q_dim]`.
///
/// The pairs are adjacent elements, whatever the file had: the loader puts the rows in this order. `table` is
/// [`rope_table`]'s, at least as long as the last node's position. The nodes' slots must lie within the cache.
pub fn rope_cache(config: &Config, qkv: &[f32], table: &[[f32; 2]], tree: &Tree, cache: &mut KvCache) -> Vec<f32> {
    simd::dispatch(
        #[inline(always)]
        || plain(config, qkv, table, tree, cache),
    )
}

#[inline(always)]
fn plain(config: &Config, qkv: &[f32], table: &[[f32; 2]], tree: &Tree, cache: &mut KvCache) -> Vec<f32> {
    let (q_dim, kv_dim, head_dim) = (config.q_dim(), config.kv_dim(), config.head_dim);
    let scale = (1.0 / (head_dim as f64).sqrt()) as f32;
    let mut q_out = Vec::with_capacity(tree.n_nodes() * q_dim);
    for (node, qkv) in qkv.chunks_exact(q_dim + 2 * kv_dim).enumerate() {
        let turns = &table[tree.position(node) * head_dim / 2..][..head_dim / 2];
        let (q, kv) = qkv.split_at(q_dim);
        let (k, v) = kv.split_at(kv_dim);
        for head in q.chunks_exact(head_dim) {
            for (&[a, b], &[cos, sin]) in head.as_chunks::<2>().0.iter().zip(turns) {
                q_out.extend(rotate(a, b, cos, sin).map(|e| e * scale));
            }
        }
        for (kv_head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            let row = cache.row(kv_head, tree.slot(node));
            let pairs = k.as_chunks::<2>().0.iter().zip(turns);
            for (out, (&[a, b], &[cos, sin])) in cache.k[row.clone()].as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                let [a, b] = rotate(a, b, cos, sin);
                *out = [f32_to_f16(a), f32_to_f16(b)];
            }
            for (out, &v) in cache.v[row].iter_mut().zip(v) {
                *out = f32_to_f16(v);
            }
        }
    }
    q_out
}

/// Turns the pair (`a`, `b`).
#[inline(always)]
fn rotate(a: f32, b: f32, cos: f32, sin: f32) -> [f32; 2] {
    [fma(a, cos, -(b * sin)), fma(a, sin, b * cos)]
}
