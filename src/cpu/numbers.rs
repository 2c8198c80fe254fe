//! The arithmetic that all twins share: fused multiply-add, the adjacent-first tree, `exp`, and 16-bit floats.

use half::f16;

pub use super::simd::fma;
use crate::model::{Blocks, Format};

/// The adjacent-first binary tree over a power of two of values: for strides 1, 2, 4, …, `a[i] += a[i + stride]`.
#[inline(always)]
pub fn tree_sum<const N: usize>(mut a: [f32; N]) -> f32 {
    let mut stride = 1;
    while stride < N {
        let mut i = 0;
        while i + stride < N {
            a[i] += a[i + stride];
            i += 2 * stride;
        }
        stride *= 2;
    }
    a[0]
}

/// `1 / x` for `1e-30 <= x <= 1e37`, to about one unit in the last place, by Newton's method.
///
/// A GPU may round a division as it likes. This is written out in operations that it may not, in the kernels too, so
/// that all have the same bits; so are the functions below.
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    let mut y = f32::from_bits(0x7ef3_11c7_u32.wrapping_sub(x.to_bits()));
    for _ in 0..4 {
        y *= fma(-x, y, 2.0);
    }
    y
}

/// `1 / sqrt(x)` for `1e-30 <= x <= 1e37`, to about one unit in the last place, by Newton's method.
#[inline(always)]
pub fn reciprocal_sqrt(x: f32) -> f32 {
    let half = 0.5 * x;
    let mut y = f32::from_bits(0x5f37_59df_u32.wrapping_sub(x.to_bits() >> 1));
    for _ in 0..3 {
        y *= fma(-(half * y), y, 1.5);
    }
    y
}

/// `e^x` for `x <= 88`, 0 below -87.3; to about one unit in the last place near 0, to four near the ends.
#[inline(always)]
#[allow(clippy::excessive_precision)]
pub fn exp(x: f32) -> f32 {
    let clamped = x.max(-87.3);
    let n = (clamped * std::f32::consts::LOG2_E).round_ties_even();
    let r = fma(n, -std::f32::consts::LN_2, clamped);
    // e^r for |r| <= ln 2 / 2, with the coefficients of Cephes' expf.
    let mut p = fma(1.987_569_1e-4, r, 1.398_2e-3);
    p = fma(p, r, 8.333_452e-3);
    p = fma(p, r, 4.166_579_6e-2);
    p = fma(p, r, 1.666_666_5e-1);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    let y = p * f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23);
    if x < -87.3 { 0.0 } else { y }
}

/// `ln x` for normal `x > 0`, to about one unit in the last place.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // x = 2^n * (1 + f), with 1 + f between the square roots of 1/2 and of 2.
    let n = (x.to_bits().wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let f = f32::from_bits(x.to_bits().wrapping_sub((n as u32) << 23)) - 1.0;
    fma(n as f32, std::f32::consts::LN_2, f * ln_series(f))
}

/// `ln(1 + f) / f` for `-0.3 <= f <= 0.42`, with the coefficients of Cephes' logf.
#[inline(always)]
#[allow(clippy::excessive_precision)]
fn ln_series(f: f32) -> f32 {
    let mut p = fma(7.037_683_6e-2, f, -1.151_461e-1);
    p = fma(p, f, 1.167_699_9e-1);
    p = fma(p, f, -1.242_014_1e-1);
    p = fma(p, f, 1.424_932_3e-1);
    p = fma(p, f, -1.666_805_8e-1);
    p = fma(p, f, 2.000_071_5e-1);
    p = fma(p, f, -2.499_999_4e-1);
    p = fma(p, f, 3.333_333_1e-1);
    p = fma(p, f, -0.5);
    fma(p, f, 1.0)
}

/// Gumbel noise `-ln(-ln(1 - v))` for the `v` between 0 and 1 that random `bits` stand for; from -2.9 to 22.2.
///
/// A small `v` makes a large value, and keeps all its digits.
#[inline(always)]
pub fn gumbel(bits: u32) -> f32 {
    let bits = bits | 1;
    let zeros = bits.leading_zeros();
    let v = ((bits << zeros) >> 8) as f32 * f32::from_bits((103 - zeros) << 23);
    -ln(if v < 0.25 { v * ln_series(-v) } else { -ln(1.0 - v) })
}

/// Mixes all bits of `h` with each other (the finaliser of MurmurHash3).
#[inline(always)]
pub fn mix(mut h: u32) -> u32 {
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// A 16-bit float, exactly; written without branches so that loops over it become vector code.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = (u32::from(bits) & 0x7fff) << 13;
    // The exponent's bias is moved from 15 to 127 by a multiplication, which serves subnormal values too.
    let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | special | (u32::from(bits) & 0x8000) << 16)
}

/// The nearest 16-bit float (ties to even) of `x` clamped to ±65,504, so that no infinity enters the cache.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    f16::from_f32(x.clamp(-65504.0, 65504.0)).to_bits()
}

/// The scale of block `i` and its minimum (0 for the formats that have none).
#[inline(always)]
pub fn scale_and_minimum(blocks: &Blocks, i: usize) -> (f32, f32) {
    match blocks.format {
        Format::Q4Min => {
            let word = blocks.scales[i];
            (f16_to_f32(word as u16), f16_to_f32((word >> 16) as u16))
        }
        Format::Q4 | Format::Q8 => (f16_to_f32((blocks.scales[i / 2] >> (16 * (i % 2))) as u16), 0.0),
    }
}

/// The 32 codes of block `i`: 0 to 15 in the 4-bit formats, -128 to 127 in the 8-bit one.
#[inline(always)]
pub fn codes(blocks: &Blocks, i: usize) -> [i8; 32] {
    let mut codes = [0; 32];
    match blocks.format {
        Format::Q4 | Format::Q4Min => {
            for (w, word) in blocks.codes[4 * i..4 * i + 4].iter().enumerate() {
                for (j, byte) in word.to_le_bytes().into_iter().enumerate() {
                    codes[4 * w + j] = (byte & 15) as i8;
                    codes[16 + 4 * w + j] = (byte >> 4) as i8;
                }
            }
        }
        Format::Q8 => {
            for (w, word) in blocks.codes[8 * i..8 * i + 8].iter().enumerate() {
                for (j, byte) in word.to_le_bytes().into_iter().enumerate() {
                    codes[4 * w + j] = byte as i8;
                }
            }
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::fma_halfway;

    #[test]
    fn exp_is_close_to_the_true_value() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        let mut x = -87.29f32;
        while x < 88.0 {
            let expected = f64::from(x).exp();
            assert!(((f64::from(exp(x)) - expected) / expected).abs() < 4e-7, "exp({x}) is {}", exp(x));
            x += 0.003_1;
        }
    }

    #[test]
    fn reciprocals_are_close_to_the_true_values() {
        let mut x = 1e-30f32;
        while x < 1e37 {
            let (y, root) = (f64::from(reciprocal(x)), f64::from(reciprocal_sqrt(x)));
            let x64 = f64::from(x);
            assert!((y * x64 - 1.0).abs() < 1.5e-7, "1 / {x} is {y}");
            assert!((root * x64.sqrt() - 1.0).abs() < 2e-7, "1 / sqrt({x}) is {root}");
            x *= 1.000_37;
        }
    }

    #[test]
    fn logarithms_and_noise_are_close_to_the_true_values() {
        assert_eq!(ln(1.0), 0.0);
        let mut x = 1e-37f32;
        while x < 1e38 {
            let expected = f64::from(x).ln();
            let error = (f64::from(ln(x)) - expected).abs();
            assert!(error <= 2e-7 * expected.abs().max(1e-3), "ln({x}) is {}", ln(x));
            x *= 1.000_37;
        }
        for i in 0..100_000u32 {
            // Many bits, and few.
            let bits = (mix(i) >> (i % 32)) | 1;
            let v = f64::from(bits) / 2f64.powi(32);
            let expected = -(-(-v).ln_1p()).ln();
            // Beside 1 the 24 bits of a float leave some of the 32 out.
            let tolerance = if v < 0.25 { 2e-6 } else { 1e-6 + 6e-8 / (1.0 - v) };
            assert!((f64::from(gumbel(bits)) - expected).abs() < tolerance, "noise of {bits:#x}: {}", gumbel(bits));
        }
        assert!(gumbel(0) > 22.1 && gumbel(u32::MAX) > -2.9);
    }

    #[test]
    fn every_f16_is_converted_exactly() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let got = f16_to_f32(bits);
            assert!(got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn the_tree_adds_neighbours_first() {
        let a = [1e8f32, 1.0, -1e8, 1.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(tree_sum(a), ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])));
    }

    #[test]
    fn the_portable_fma_rounds_once() {
        // Sums at or within 2^-70 of half a unit in the last place are the hard case: the product's tail decides.
        let mut halfway = 0;
        for k in 0..4096u32 {
            for (a, b) in [(1.0 + 2f32.powi(-23), 1.0 - 2f32.powi(-23)), (1.0, 1.0), (1.2, 0.7), (-1.0, 1.0)] {
                for sign in [1.0, -1.0] {
                    let (a, c) = (a * 2f32.powi(-24), sign * (1.0 + k as f32 * f32::EPSILON));
                    let product = f64::from(a) * f64::from(b);
                    let sum = product + f64::from(c);
                    let got = if sum.to_bits() & 0x1fff_ffff == 0x1000_0000 {
                        halfway += 1;
                        fma_halfway(product, f64::from(c), sum)
                    } else {
                        sum as f32
                    };
                    assert_eq!(got, a.mul_add(b, c), "{a} {b} {c}");
                }
            }
        }
        assert!(halfway > 0);
    }
}
