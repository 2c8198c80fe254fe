//! Twin of the `norm_quantize` kernel: `h = x / rms(x) * weight`, in 8 bits.

use super::numbers::{fma, reciprocal_sqrt, tree_sum};
use super::quantize::Quantized;
use super::simd;
use crate::model::BLOCK;

/// Partials of the sum of squares.
const PARTIALS: usize = 64;

/// Norms every row of `x`, `[n_tokens, dim]`, multiplies it by `weight`, `[dim]`, and quantises it.
pub fn norm_quantize(x: &[f32], weight: &[f32], eps: f32) -> Quantized {
    simd::dispatch(
        #[inline(always)]
        || plain(x, weight, eps),
    )
}

#[inline(always)]
fn plain(x: &[f32], weight: &[f32], eps: f32) -> Quantized {
    let dim = weight.len();
    let mut out = Quantized::with_capacity(x.len() / dim.max(1), dim);
    for x in x.chunks_exact(dim) {
        let mut partials = [0.0f32; PARTIALS];
        for four_vectors in x.as_chunks::<4>().0.chunks(PARTIALS) {
            for (partial, four) in partials.iter_mut().zip(four_vectors) {
                for &e in four {
                    *partial = fma(e, e, *partial);
                }
            }
        }
        let mean_square_and_eps = fma(tree_sum(partials), 1.0 / dim as f32, eps);
        let r = reciprocal_sqrt(mean_square_and_eps);
        for (x, weight) in x.as_chunks::<BLOCK>().0.iter().zip(weight.as_chunks::<BLOCK>().0) {
            let mut h = [0.0; BLOCK];
            for ((h, x), weight) in h.iter_mut().zip(x).zip(weight) {
                *h = x * r * weight;
            }
            out.push_block(&h);
        }
    }
    out
}
