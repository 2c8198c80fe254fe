//! GGML's tensor types: their names, their sizes, and the way back to f32.
//!
//! The layouts follow `ggml-common.h` and the `gguf` Python package, against which they are tested.

use half::{bf16, f16};

/// The widest block of any type, in elements.
pub const MAX_BLOCK: usize = 256;

macro_rules! types {
    ($($name:ident = $id:literal, $elements:literal, $bytes:literal;)*) => {
        /// The type of a tensor's elements in a GGUF file.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum GgmlType { $($name),* }

        impl GgmlType {
            /// The type with this number in a file.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// The number that stands for it in a file.
            pub fn id(self) -> u32 {
                match self { $(Self::$name => $id),* }
            }

            /// Its usual name, such as `Q4_0`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Elements in a block (1 for plain numbers).
            pub fn block_elements(self) -> usize {
                match self { $(Self::$name => $elements),* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$name => $bytes),* }
            }
        }
    };
}

// Types that the engine does not run are here too: their sizes are needed to check a file's layout.
types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q8_1 = 9, 32, 36;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    Q8_K = 15, 256, 292;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    I8 = 24, 1, 1;
    I16 = 25, 1, 2;
    I32 = 26, 1, 4;
    I64 = 27, 1, 8;
    F64 = 28, 1, 8;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
    TQ1_0 = 34, 256, 54;
    TQ2_0 = 35, 256, 66;
    MXFP4 = 39, 32, 17;
    NVFP4 = 40, 64, 36;
    Q1_0 = 41, 128, 18;
}

impl GgmlType {
    /// The types whose values the engine can read, as a list for messages.
    pub const READABLE: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K";

    /// Whether the engine can read the values of this type.
    pub fn is_readable(self) -> bool {
        use GgmlType::*;
        matches!(self, F32 | F16 | BF16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K)
    }

    /// Bytes of `n` elements; `None` if `n` is not a whole number of blocks or the product overflows.
    pub fn bytes_of(self, n: u64) -> Option<u64> {
        let elements = self.block_elements() as u64;
        if !n.is_multiple_of(elements) {
            return None;
        }
        (n / elements).checked_mul(self.block_bytes() as u64)
    }

    /// Writes the values of `bytes` into `into`; false when the type is not a readable one or the lengths do not fit.
    ///
    /// A scale that is not a finite number shows as values that are not finite: the caller checks.
    #[must_use]
    pub fn dequantize(self, bytes: &[u8], into: &mut [f32]) -> bool {
        let (elements, size) = (self.block_elements(), self.block_bytes());
        if !self.is_readable()
            || !into.len().is_multiple_of(elements)
            || Some(bytes.len()) != (into.len() / elements).checked_mul(size)
        {
            return false;
        }
        let blocks = bytes.chunks_exact(size).zip(into.chunks_exact_mut(elements));
        match self {
            GgmlType::F32 => {
                for (block, y) in blocks {
                    y[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
                }
            }
            GgmlType::F16 => blocks.for_each(|(block, y)| y[0] = half_at(block, 0)),
            GgmlType::BF16 => {
                blocks.for_each(|(block, y)| y[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32());
            }
            GgmlType::Q4_0 => blocks.for_each(|(block, y)| {
                let d = half_at(block, 0);
                for (j, &byte) in block[2..].iter().enumerate() {
                    y[j] = d * ((byte & 15) as i32 - 8) as f32;
                    y[j + 16] = d * ((byte >> 4) as i32 - 8) as f32;
                }
            }),
            GgmlType::Q4_1 => blocks.for_each(|(block, y)| {
                let (d, m) = (half_at(block, 0), half_at(block, 2));
                for (j, &byte) in block[4..].iter().enumerate() {
                    y[j] = d * (byte & 15) as f32 + m;
                    y[j + 16] = d * (byte >> 4) as f32 + m;
                }
            }),
            GgmlType::Q5_0 => blocks.for_each(|(block, y)| {
                let d = half_at(block, 0);
                for (y, code) in y.iter_mut().zip(codes_q5(&block[2..22])) {
                    *y = d * (code as i32 - 16) as f32;
                }
            }),
            GgmlType::Q5_1 => blocks.for_each(|(block, y)| {
                let (d, m) = (half_at(block, 0), half_at(block, 2));
                for (y, code) in y.iter_mut().zip(codes_q5(&block[4..24])) {
                    *y = d * code as f32 + m;
                }
            }),
            GgmlType::Q8_0 => blocks.for_each(|(block, y)| {
                let d = half_at(block, 0);
                for (y, &code) in y.iter_mut().zip(&block[2..]) {
                    *y = d * (code as i8) as f32;
                }
            }),
            GgmlType::Q4_K => blocks.for_each(|(block, y)| {
                for (i, y) in y.chunks_exact_mut(32).enumerate() {
                    let (d, m) = scale_min_k(block, i);
                    let shift = 4 * (i % 2);
                    for (y, &byte) in y.iter_mut().zip(&block[16 + 32 * (i / 2)..]) {
                        *y = d * ((byte >> shift) & 15) as f32 - m;
                    }
                }
            }),
            GgmlType::Q5_K => blocks.for_each(|(block, y)| {
                for (i, y) in y.chunks_exact_mut(32).enumerate() {
                    let (d, m) = scale_min_k(block, i);
                    let shift = 4 * (i % 2);
                    let low = &block[48 + 32 * (i / 2)..];
                    for (j, y) in y.iter_mut().enumerate() {
                        let high = (block[16 + j] >> i) & 1;
                        *y = d * (((low[j] >> shift) & 15) | (high << 4)) as f32 - m;
                    }
                }
            }),
            GgmlType::Q6_K => blocks.for_each(|(block, y)| {
                // 128 bytes of low halves, 64 of high quarters, 16 signed scales, one f16.
                let d = half_at(block, 208);
                for (i, y) in y.chunks_exact_mut(32).enumerate() {
                    let (part, quarter) = (i / 4, i % 4);
                    let low = &block[64 * part + 32 * (quarter % 2)..];
                    let high = &block[128 + 32 * part..];
                    for (j, y) in y.iter_mut().enumerate() {
                        let code = ((low[j] >> (4 * (quarter / 2))) & 15) | (((high[j] >> (2 * quarter)) & 3) << 4);
                        let scale = block[192 + 2 * i + j / 16] as i8;
                        *y = d * scale as f32 * (code as i32 - 32) as f32;
                    }
                }
            }),
            _ => return false,
        }
        true
    }
}

/// The f16 at byte `at` of `block`, as f32.
pub(crate) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The 32 codes of a Q5_0 or Q5_1 block, from its four bytes of fifth bits and sixteen bytes of halves.
pub(crate) fn codes_q5(bytes: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut codes = [0; 32];
    for (j, &byte) in bytes[4..20].iter().enumerate() {
        codes[j] = (byte & 15) | (((high >> j) & 1) << 4) as u8;
        codes[j + 16] = (byte >> 4) | (((high >> (j + 16)) & 1) << 4) as u8;
    }
    codes
}

/// Scale and minimum (to be subtracted) of part `i` of eight in a Q4_K or Q5_K block.
pub(crate) fn scale_min_k(block: &[u8], i: usize) -> (f32, f32) {
    let packed = &block[4..16];
    let (scale, min) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        ((packed[i + 4] & 15) | ((packed[i - 4] >> 6) << 4), (packed[i + 4] >> 4) | ((packed[i] >> 6) << 4))
    };
    (half_at(block, 0) * scale as f32, half_at(block, 2) * min as f32)
}
