//! Twin of the `merge` kernel: attention's chunks become one output per node and head.

use super::attention::Partials;
use super::numbers::{exp, fma, reciprocal, tree_sum};
use super::quantize::{Quantized, quantize};
use super::simd;
use crate::parallel;

/// `attn`, `[n_nodes, n_heads * head_dim]`, from the chunks' partial results.
pub fn merge(partials: &Partials) -> Vec<f32> {
    let q_dim = partials.n_kv_heads * partials.group * partials.head_dim;
    let mut attn = vec![0.0; partials.n_nodes * q_dim];
    parallel::for_each_chunk(&mut attn, q_dim, |node, attn| {
        simd::dispatch(
            #[inline(always)]
            || merge_node(partials, node, attn),
        );
    });
    attn
}

/// [`merge`], in 8 bits for the output projection.
pub fn merge_quantize(partials: &Partials) -> Quantized {
    quantize(&merge(partials), partials.n_kv_heads * partials.group * partials.head_dim)
}

#[inline(always)]
fn merge_node(partials: &Partials, node: usize, attn: &mut [f32]) {
    let n_chunks = partials.n_chunks;
    let mut acc = vec![0.0f32; 4 * partials.head_dim];
    for (head, attn) in attn.chunks_exact_mut(partials.head_dim).enumerate() {
        let mut max = f32::NEG_INFINITY;
        for c in 0..n_chunks {
            max = max.max(partials.at(node, head, c).0);
        }
        let mut l = [0.0f32; 4];
        acc.fill(0.0);
        for c in 0..n_chunks {
            let (chunk_m, chunk_l, chunk_acc) = partials.at(node, head, c);
            if chunk_m == f32::NEG_INFINITY {
                continue;
            }
            let w = exp(chunk_m - max);
            l[c % 4] = fma(w, chunk_l, l[c % 4]);
            for (acc, &v) in acc[c % 4 * partials.head_dim..][..partials.head_dim].iter_mut().zip(chunk_acc) {
                *acc = fma(w, v, *acc);
            }
        }
        let scale = reciprocal(tree_sum(l));
        for (d, attn) in attn.iter_mut().enumerate() {
            let acc = |i: usize| acc[i * partials.head_dim + d];
            *attn = tree_sum([acc(0), acc(1), acc(2), acc(3)]) * scale;
        }
    }
}
