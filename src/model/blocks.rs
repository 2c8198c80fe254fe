//! Weights in blocks of 32: 4-bit or 8-bit codes with a 16-bit scale and, in one format, a 16-bit minimum.

use half::f16;

use super::ggml::{self, GgmlType, MAX_BLOCK};
use super::quantize::{QuantizedBlock, quantize_q4, quantize_q4_min, quantize_q8};
use crate::parallel;

/// Elements in a block.
pub const BLOCK: usize = 32;

/// How the weights of a matrix are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// 4-bit codes and a scale: `scale * (code - 8)`. GGUF's Q4_0 is this exactly.
    Q4,
    /// 4-bit codes, a scale and a minimum: `scale * code + minimum`. GGUF's Q4_1 is this exactly.
    Q4Min,
    /// Signed 8-bit codes and a scale: `scale * code`. GGUF's Q8_0 is this exactly.
    Q8,
}

impl Format {
    /// Words of 32 bits that hold the codes of one block.
    pub fn code_words(self) -> usize {
        match self {
            Format::Q4 | Format::Q4Min => 4,
            Format::Q8 => 8,
        }
    }

    /// Words of 32 bits that hold the scales of `n_blocks` blocks.
    pub fn scale_words(self, n_blocks: usize) -> usize {
        match self {
            Format::Q4Min => n_blocks,
            Format::Q4 | Format::Q8 => n_blocks.div_ceil(2),
        }
    }
}

/// Some rows of a matrix in blocks, laid out as the GPU reads them.
///
/// A row holds `n_cols / 32` blocks and rows follow each other, so block `b` of row `r` is block
/// `i = r * n_cols / 32 + b` of the whole.
///
/// * `codes`: [`Format::code_words`] words a block. With 4 bits, byte `j` of word `w` holds element `4w + j` in its
///   low half and element `16 + 4w + j` in its high half (GGUF's order). With 8 bits, byte `j` of word `w` holds
///   element `4w + j`.
/// * `scales`: [`Format::Q4Min`] has one word a block, the scale as f16 in the low half and the minimum in the high
///   half. The others have two blocks a word: block `i` in half `i % 2` (0 is low) of word `i / 2`.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocks {
    /// The format of every block.
    pub format: Format,
    /// Number of rows held.
    pub n_rows: usize,
    /// Elements in a row, a multiple of 32.
    pub n_cols: usize,
    /// Codes, `[n_rows, n_cols / 32, code_words]`.
    pub codes: Vec<u32>,
    /// Scales, see above.
    pub scales: Vec<u32>,
}

/// A value that no block can hold: the source has a scale or a number that is NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite {
    /// The row it stands in, counted in the rows given.
    pub row: usize,
}

impl Format {
    /// Bytes of `n_blocks` blocks, codes and scales, in whole words.
    pub fn bytes(self, n_blocks: u64) -> u64 {
        let scales = match self {
            Format::Q4Min => n_blocks,
            Format::Q4 | Format::Q8 => n_blocks.div_ceil(2),
        };
        4 * (n_blocks * self.code_words() as u64 + scales)
    }

    /// A short name: `q4`, `q4_min` or `q8`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Q4 => "q4",
            Format::Q4Min => "q4_min",
            Format::Q8 => "q8",
        }
    }

    /// 16-bit numbers beside the codes of one block.
    fn halves(self) -> usize {
        match self {
            Format::Q4Min => 2,
            Format::Q4 | Format::Q8 => 1,
        }
    }

    /// Whether blocks of `ty` go into this format without any loss.
    ///
    /// Q4_0 in [`Format::Q4Min`] counts as exact: its minimum, `-8 * scale`, is an f16 unless the scale is past 8,188.
    pub fn holds_exactly(self, ty: GgmlType) -> bool {
        matches!(
            (ty, self),
            (GgmlType::Q4_0, _) | (GgmlType::Q4_1, Format::Q4Min) | (GgmlType::Q8_0 | GgmlType::Q5_0, Format::Q8)
        )
    }
}

impl Blocks {
    /// Puts rows of a GGUF tensor into blocks: exactly where the format can hold them, else by the quantiser.
    ///
    /// `bytes` holds rows of `n_cols` elements of type `ty`, one after the other; row `i` of the result is row
    /// `order(i)` of them, of `n_rows` in all. `n_cols` is a multiple of 32 and of the type's block.
    ///
    /// # Errors
    /// [`NotFinite`] if a scale or a number is NaN or infinite.
    ///
    /// # Panics
    /// If `bytes` does not hold `n_rows` rows, or the type is not a readable one: the caller has checked the file.
    pub fn from_ggml(
        format: Format,
        ty: GgmlType,
        bytes: &[u8],
        n_rows: usize,
        n_cols: usize,
        order: impl Fn(usize) -> usize + Sync,
    ) -> Result<Self, NotFinite> {
        assert!(ty.is_readable() && n_cols.is_multiple_of(BLOCK) && n_cols.is_multiple_of(ty.block_elements()));
        let row_bytes = n_cols / ty.block_elements() * ty.block_bytes();
        assert_eq!(bytes.len(), n_rows * row_bytes);
        Self::build(format, n_rows, n_cols, |row, codes, halves| {
            let from = order(row) * row_bytes;
            convert_row(ty, &bytes[from..from + row_bytes], format, codes, halves)
        })
    }

    /// Quantises rows of f32, `[n_rows, n_cols]`, with the least squared error a block.
    ///
    /// # Errors
    /// [`NotFinite`] if a number is NaN or infinite.
    ///
    /// # Panics
    /// If `values` is not `n_rows * n_cols` long or `n_cols` is not a multiple of 32.
    pub fn quantize(format: Format, values: &[f32], n_rows: usize, n_cols: usize) -> Result<Self, NotFinite> {
        assert!(n_cols.is_multiple_of(BLOCK));
        assert_eq!(values.len(), n_rows * n_cols);
        Self::build(format, n_rows, n_cols, |row, codes, halves| {
            let blocks = values[row * n_cols..(row + 1) * n_cols].as_chunks::<BLOCK>().0;
            let outputs = codes.chunks_exact_mut(format.code_words()).zip(halves.chunks_exact_mut(format.halves()));
            blocks.iter().zip(outputs).all(|(x, (codes, halves))| quantize_block(format, x, codes, halves))
        })
    }

    /// Builds blocks row by row; `fill(row, codes, halves)` answers false for a value that is not finite.
    fn build(
        format: Format,
        n_rows: usize,
        n_cols: usize,
        fill: impl Fn(usize, &mut [u32], &mut [u16]) -> bool + Sync,
    ) -> Result<Self, NotFinite> {
        let row_blocks = n_cols / BLOCK;
        let mut codes = vec![0u32; n_rows * row_blocks * format.code_words()];
        // Rows of an odd number of blocks share a word of scales, so scales are made as halves and packed at the end.
        let mut halves = vec![0u16; n_rows * row_blocks * format.halves()];
        let bad = parallel::find_row(
            (&mut codes, row_blocks * format.code_words()),
            (&mut halves, row_blocks * format.halves()),
            |row, codes, halves| !fill(row, codes, halves),
        );
        if let Some(row) = bad {
            return Err(NotFinite { row });
        }
        let scales = halves
            .chunks(2)
            .map(|pair| u32::from(pair[0]) | (u32::from(pair.get(1).copied().unwrap_or(0)) << 16))
            .collect();
        Ok(Self { format, n_rows, n_cols, codes, scales })
    }

    /// Blocks of nothing but zero codes and scales, to be filled by [`Blocks::put_rows`].
    pub fn zeroed(format: Format, n_rows: usize, n_cols: usize) -> Self {
        let n_blocks = n_rows * (n_cols / BLOCK);
        let codes = vec![0; n_blocks * format.code_words()];
        Self { format, n_rows, n_cols, codes, scales: vec![0; format.scale_words(n_blocks)] }
    }

    /// Writes `rows` over the rows from `first_row` on. The first block of that row has an even number.
    ///
    /// # Panics
    /// If formats or widths differ, the rows do not fit, or the first block's number is odd.
    pub fn put_rows(&mut self, first_row: usize, rows: &Blocks) {
        assert!(self.format == rows.format && self.n_cols == rows.n_cols && first_row + rows.n_rows <= self.n_rows);
        let first_block = first_row * (self.n_cols / BLOCK);
        assert!(first_block.is_multiple_of(2));
        let code = first_block * self.format.code_words();
        self.codes[code..code + rows.codes.len()].copy_from_slice(&rows.codes);
        let scale = self.format.scale_words(first_block);
        self.scales[scale..scale + rows.scales.len()].copy_from_slice(&rows.scales);
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        4 * (self.codes.len() + self.scales.len())
    }

    /// The values of row `row`, `[n_cols]`.
    ///
    /// # Panics
    /// If there is no such row or `into` is not `n_cols` long.
    pub fn dequantize_row(&self, row: usize, into: &mut [f32]) {
        assert_eq!(into.len(), self.n_cols);
        let row_blocks = self.n_cols / BLOCK;
        for (b, y) in into.chunks_exact_mut(BLOCK).enumerate() {
            let i = row * row_blocks + b;
            let words = self.format.code_words();
            let codes: &[u8] = bytemuck::cast_slice(&self.codes[i * words..(i + 1) * words]);
            match self.format {
                Format::Q4 => {
                    let scale = self.half(i);
                    for (j, &byte) in codes.iter().enumerate() {
                        y[j] = scale * ((byte & 15) as i32 - 8) as f32;
                        y[j + 16] = scale * ((byte >> 4) as i32 - 8) as f32;
                    }
                }
                Format::Q4Min => {
                    let (scale, minimum) = (self.half(2 * i), self.half(2 * i + 1));
                    for (j, &byte) in codes.iter().enumerate() {
                        y[j] = scale * (byte & 15) as f32 + minimum;
                        y[j + 16] = scale * (byte >> 4) as f32 + minimum;
                    }
                }
                Format::Q8 => {
                    let scale = self.half(i);
                    for (y, &byte) in y.iter_mut().zip(codes) {
                        *y = scale * (byte as i8) as f32;
                    }
                }
            }
        }
    }

    /// The `i`th 16-bit number of the scales.
    fn half(&self, i: usize) -> f32 {
        f16::from_bits((self.scales[i / 2] >> (16 * (i % 2))) as u16).to_f32()
    }
}

/// Converts one row of a tensor; false if a scale or a number is not finite.
fn convert_row(ty: GgmlType, bytes: &[u8], format: Format, codes: &mut [u32], halves: &mut [u16]) -> bool {
    let per_block = ty.block_elements().max(BLOCK) / BLOCK;
    let size = ty.block_bytes() * (BLOCK / ty.block_elements().min(BLOCK));
    let outputs = codes
        .chunks_exact_mut(per_block * format.code_words())
        .zip(halves.chunks_exact_mut(per_block * format.halves()));
    bytes.chunks_exact(size).zip(outputs).all(|(block, (codes, halves))| {
        repack_block(ty, block, format, codes, halves).unwrap_or_else(|| {
            let mut values = [0.0; MAX_BLOCK];
            let values = &mut values[..per_block * BLOCK];
            ty.dequantize(block, values)
                && values
                    .as_chunks::<BLOCK>()
                    .0
                    .iter()
                    .zip(codes.chunks_exact_mut(format.code_words()).zip(halves.chunks_exact_mut(format.halves())))
                    .all(|(x, (codes, halves))| quantize_block(format, x, codes, halves))
        })
    })
}

/// Moves one block of the file into `format` as it is, where that is possible without loss (or, for Q4_K, with none
/// but the rounding of scale and minimum to f16); `None` where it is not, false where a scale is not finite.
fn repack_block(ty: GgmlType, block: &[u8], format: Format, codes: &mut [u32], halves: &mut [u16]) -> Option<bool> {
    let scale = u16::from_le_bytes([block[0], block[1]]);
    let finite = |bits: u16| f16::from_bits(bits).is_finite();
    let out: &mut [u8] = bytemuck::cast_slice_mut(codes);
    match (ty, format) {
        (GgmlType::Q4_0, Format::Q4) => out.copy_from_slice(&block[2..18]),
        (GgmlType::Q4_0, Format::Q4Min) => {
            let minimum = f16::from_f32(-8.0 * f16::from_bits(scale).to_f32());
            if finite(scale) && !minimum.is_finite() {
                return None;
            }
            halves[1] = minimum.to_bits();
            out.copy_from_slice(&block[2..18]);
        }
        (GgmlType::Q4_0, Format::Q8) => {
            for (j, &byte) in block[2..18].iter().enumerate() {
                out[j] = (byte & 15).wrapping_sub(8);
                out[j + 16] = (byte >> 4).wrapping_sub(8);
            }
        }
        (GgmlType::Q4_1, Format::Q4Min) => {
            let minimum = u16::from_le_bytes([block[2], block[3]]);
            if !finite(minimum) {
                return Some(false);
            }
            halves[1] = minimum;
            out.copy_from_slice(&block[4..20]);
        }
        (GgmlType::Q5_0, Format::Q8) => {
            for (out, code) in out.iter_mut().zip(ggml::codes_q5(&block[2..22])) {
                *out = code.wrapping_sub(16);
            }
        }
        (GgmlType::Q8_0, Format::Q8) => out.copy_from_slice(&block[2..34]),
        (GgmlType::Q4_K, Format::Q4Min) => {
            for (i, (out, halves)) in out.chunks_exact_mut(16).zip(halves.chunks_exact_mut(2)).enumerate() {
                let (scale, minimum) = ggml::scale_min_k(block, i);
                if !(scale.is_finite() && minimum.is_finite()) {
                    return Some(false);
                }
                let (scale, minimum) = (f16::from_f32(scale), f16::from_f32(-minimum));
                if !(scale.is_finite() && minimum.is_finite()) {
                    return None;
                }
                (halves[0], halves[1]) = (scale.to_bits(), minimum.to_bits());
                let shift = 4 * (i % 2);
                let packed = &block[16 + 32 * (i / 2)..48 + 32 * (i / 2)];
                for (j, out) in out.iter_mut().enumerate() {
                    *out = ((packed[j] >> shift) & 15) | (((packed[j + 16] >> shift) & 15) << 4);
                }
            }
            return Some(true);
        }
        _ => return None,
    }
    halves[0] = scale;
    Some(finite(scale))
}

/// Quantises one block; false if a number is not finite.
fn quantize_block(format: Format, x: &[f32; BLOCK], codes: &mut [u32], halves: &mut [u16]) -> bool {
    // A sum of magnitudes could overflow, but times zero it is NaN exactly if a number is not finite.
    if x.iter().map(|x| x * 0.0).sum::<f32>() != 0.0 {
        return false;
    }
    let quantized = match format {
        Format::Q4 => quantize_q4(x),
        Format::Q4Min => quantize_q4_min(x),
        Format::Q8 => quantize_q8(x),
    };
    put(format, &quantized, codes, halves);
    true
}

/// Writes a quantised block where it belongs.
fn put(format: Format, quantized: &QuantizedBlock, codes: &mut [u32], halves: &mut [u16]) {
    let out: &mut [u8] = bytemuck::cast_slice_mut(codes);
    halves[0] = quantized.scale.to_bits();
    if format == Format::Q4Min {
        halves[1] = quantized.minimum.to_bits();
    }
    match format {
        Format::Q4 | Format::Q4Min => {
            for (j, out) in out.iter_mut().enumerate() {
                *out = quantized.codes[j] as u8 | ((quantized.codes[j + 16] as u8) << 4);
            }
        }
        Format::Q8 => {
            for (out, &code) in out.iter_mut().zip(&quantized.codes) {
                *out = code as u8;
            }
        }
    }
}
