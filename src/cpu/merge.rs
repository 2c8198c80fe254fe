//! Twin of the `merge` kernel: attention's chunks become one output per node and head.

use super::attention::Partials;
use super::numbers::{exp, fma, tree_sum};
use super::quantize::{Quantized, quantize};
use super::simd;

/// `attn`, `[n_nodes, n_heads * head_dim]`, from the chunks' partial results.
pub fn merge(partials: &Partials) -> Vec<f32> {
    simd::dispatch(
        #[inline(always)]
        || plain(partials),
    )
}

/// [`merge`], in 8 bits for the output projection.
pub fn merge_quantize(partials: &Partials) -> Quantized {
    quantize(&merge(partials), partials.n_kv_heads * partials.group * partials.head_dim)
}

#[inline(always)]
fn plain(partials: &Partials) -> Vec<f32> {
    let n_heads = partials.n_kv_heads * partials.group;
    let mut attn = Vec::with_capacity(partials.n_nodes * n_heads * partials.head_dim);
    let mut acc = vec![[0.0f32; 4]; partials.head_dim];
    for node in 0..partials.n_nodes {
        for head in 0..n_heads {
            let max = (0..partials.n_chunks).fold(f32::NEG_INFINITY, |max, c| max.max(partials.at(node, head, c).0));
            let mut l = [0.0f32; 4];
            acc.fill([0.0; 4]);
            for c in 0..partials.n_chunks {
                let (chunk_m, chunk_l, chunk_acc) = partials.at(node, head, c);
                if chunk_m == f32::NEG_INFINITY {
                    continue;
                }
                let w = exp(chunk_m - max);
                l[c % 4] = fma(w, chunk_l, l[c % 4]);
                for (acc, &v) in acc.iter_mut().zip(chunk_acc) {
                    acc[c % 4] = fma(w, v, acc[c % 4]);
                }
            }
            let l = tree_sum(l);
            attn.extend(acc.iter().map(|acc| tree_sum(*acc) / l));
        }
    }
    attn
}
