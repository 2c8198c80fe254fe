//! Weights in blocks of 32: 4-bit or 8-bit codes with a 16-bit scale and, in one format, a 16-bit minimum.

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
