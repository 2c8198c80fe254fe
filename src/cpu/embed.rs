//! Twin of the `embed` kernel: `x = embed_tokens[token]`.

use super::numbers::{codes, fma, scale_and_minimum};
use super::simd;
use crate::model::{BLOCK, Blocks, Format};

/// The rows of `embed_tokens` (`[vocab_size, dim]`) that `tokens` name, as floats `[n_tokens, dim]`.
///
/// Every token must be below `embed_tokens.n_rows`.
pub fn embed(embed_tokens: &Blocks, tokens: &[u32]) -> Vec<f32> {
    simd::dispatch(
        #[inline(always)]
        || plain(embed_tokens, tokens),
    )
}

#[inline(always)]
fn plain(embed_tokens: &Blocks, tokens: &[u32]) -> Vec<f32> {
    let n_blocks = embed_tokens.n_cols / BLOCK;
    let mut x = Vec::with_capacity(tokens.len() * embed_tokens.n_cols);
    for &token in tokens {
        for b in 0..n_blocks {
            let i = token as usize * n_blocks + b;
            let (d, m) = scale_and_minimum(embed_tokens, i);
            for code in codes(embed_tokens, i) {
                x.push(match embed_tokens.format {
                    Format::Q8 => d * f32::from(code),
                    Format::Q4 => d * f32::from(code - 8),
                    Format::Q4Min => fma(d, f32::from(code), m),
                });
            }
        }
    }
    x
}
