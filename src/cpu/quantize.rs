//! Twin of the shared helper `quant`: activations in 8 bits, one scale and one sum per block of 32.

use super::numbers::reciprocal;
use super::simd;
use crate::model::BLOCK;

/// Activations in blocks of 32: `scale * code`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Quantized {
    /// Elements in a row, a multiple of 32.
    pub n_cols: usize,
    /// Signed 8-bit codes, four a word, element `4w + j` in byte `j` of word `w`: `[n_rows, n_cols / 4]`.
    pub codes: Vec<u32>,
    /// Scale of a block and the sum of its codes: `[n_rows, n_cols / 32]`.
    pub scales: Vec<[f32; 2]>,
}

impl Quantized {
    /// Room for `n_rows` rows of `n_cols`.
    #[inline(always)]
    pub(super) fn with_capacity(n_rows: usize, n_cols: usize) -> Quantized {
        Quantized {
            n_cols,
            codes: Vec::with_capacity(n_rows * n_cols / 4),
            scales: Vec::with_capacity(n_rows * n_cols / BLOCK),
        }
    }

    /// Number of rows, one a token.
    pub fn n_rows(&self) -> usize {
        self.scales.len() * BLOCK / self.n_cols.max(1)
    }

    /// The rows `rows` alone.
    pub fn slice(&self, rows: std::ops::Range<usize>) -> Quantized {
        let (words, blocks) = (self.n_cols / 4, self.n_cols / BLOCK);
        Quantized {
            n_cols: self.n_cols,
            codes: self.codes[rows.start * words..rows.end * words].to_vec(),
            scales: self.scales[rows.start * blocks..rows.end * blocks].to_vec(),
        }
    }

    /// Quantises one block and appends it.
    #[inline(always)]
    pub(super) fn push_block(&mut self, h: &[f32; BLOCK]) {
        let mut amax = 0.0f32;
        for e in h {
            amax = amax.max(e.abs());
        }
        let inverse = if amax > 1e-30 { 127.0 * reciprocal(amax) } else { 0.0 };
        let mut codes = [0i8; BLOCK];
        let mut sum = 0;
        for (code, e) in codes.iter_mut().zip(h) {
            let rounded = (e * inverse).round_ties_even().clamp(-127.0, 127.0) as i32;
            *code = rounded as i8;
            sum += rounded;
        }
        for [a, b, c, d] in codes.as_chunks::<4>().0 {
            self.codes.push(u32::from_le_bytes([*a as u8, *b as u8, *c as u8, *d as u8]));
        }
        self.scales.push([amax * (1.0 / 127.0), sum as f32]);
    }
}

/// Quantises `x`, `[n_rows, n_cols]`, block by block.
pub fn quantize(x: &[f32], n_cols: usize) -> Quantized {
    simd::dispatch(
        #[inline(always)]
        || {
            let mut out = Quantized::with_capacity(x.len() / n_cols.max(1), n_cols);
            for block in x.as_chunks::<BLOCK>().0 {
                out.push_block(block);
            }
            out
        },
    )
}
