//! Twin of the matrix products: `y = weights · x`, with 4-bit or 8-bit weights and 8-bit activations.
//!
//! The same product serves q, k and v (with [`add_bias`]), the output and down projections (with
//! [`add_residual`]), gate and up, and the head.

use super::numbers::{codes, fma, scale_and_minimum, tree_sum};
use super::quantize::Quantized;
use super::simd;
use crate::model::{BLOCK, Blocks, Format};

/// Number of partial sums of a row with `n_blocks` blocks; partial `l` adds the blocks `l, l + lanes, …`.
pub fn lanes(n_blocks: usize) -> usize {
    match n_blocks {
        0..=64 => 8,
        65..=256 => 16,
        _ => 32,
    }
}

/// Adds up the partials of a row, of which the first [`lanes`] are in use.
#[inline(always)]
pub(super) fn sum_lanes(acc: &[f32; 32], lanes: usize) -> f32 {
    let mut head = [0.0; 8];
    head.copy_from_slice(&acc[..8]);
    // The tree over 16 is the tree over its halves, and so on: what is not in use must not add a zero.
    let mut sums = [tree_sum(head), 0.0, 0.0, 0.0];
    for (i, sum) in sums.iter_mut().enumerate().take(lanes / 8).skip(1) {
        head.copy_from_slice(&acc[8 * i..8 * i + 8]);
        *sum = tree_sum(head);
    }
    match lanes {
        8 => sums[0],
        16 => sums[0] + sums[1],
        _ => (sums[0] + sums[1]) + (sums[2] + sums[3]),
    }
}

/// `y[t, r] = weights[r] · x[t]`: `[n_tokens, n_rows]` from `weights`, `[n_rows, n_cols]`, and `x`,
/// `[n_tokens, n_cols]`.
///
/// This is the plain form; [`super::packed`] has the fast one with the same bits.
pub fn matmul(weights: &Blocks, x: &Quantized) -> Vec<f32> {
    simd::dispatch(
        #[inline(always)]
        || plain(weights, x),
    )
}

#[inline(always)]
fn plain(weights: &Blocks, x: &Quantized) -> Vec<f32> {
    let n_blocks = weights.n_cols / BLOCK;
    let lanes = lanes(n_blocks);
    let n_tokens = x.n_rows();
    let mut y = vec![0.0; n_tokens * weights.n_rows];
    for r in 0..weights.n_rows {
        for t in 0..n_tokens {
            let mut acc = [0.0f32; 32];
            for b in 0..n_blocks {
                let w = codes(weights, r * n_blocks + b);
                let (d, m) = scale_and_minimum(weights, r * n_blocks + b);
                let [s, sum] = x.scales[t * n_blocks + b];
                let words = &x.codes[(t * n_blocks + b) * 8..][..8];
                let mut dot = 0i32;
                for (word, w) in words.iter().zip(w.as_chunks::<4>().0) {
                    for (code, w) in word.to_le_bytes().into_iter().zip(w) {
                        dot += i32::from(code as i8) * i32::from(*w);
                    }
                }
                let acc = &mut acc[b % lanes];
                *acc = match weights.format {
                    Format::Q8 => fma(dot as f32, d * s, *acc),
                    Format::Q4 => fma((dot - 8 * sum as i32) as f32, d * s, *acc),
                    Format::Q4Min => fma(s, fma(dot as f32, d, m * sum), *acc),
                };
            }
            y[t * weights.n_rows + r] = sum_lanes(&acc, lanes);
        }
    }
    y
}

/// `y[t] += bias` for every token: `y` is `[n_tokens, n_rows]`, `bias` is `[n_rows]`.
pub fn add_bias(y: &mut [f32], bias: &[f32]) {
    for y in y.chunks_exact_mut(bias.len().max(1)) {
        for (y, bias) in y.iter_mut().zip(bias) {
            *y += bias;
        }
    }
}

/// `x += y`: the residual stream takes up a product. Both are `[n_tokens, dim]`.
pub fn add_residual(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
