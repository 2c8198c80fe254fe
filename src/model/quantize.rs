//! The quantiser: a block of 32 numbers to codes, scale and minimum with the least squared error.
//!
//! For each block a few starting grids are tried. For each, the numbers are rounded to codes, the scale (and minimum)
//! that fit those codes best are found by least squares and rounded to f16, the numbers are rounded to codes again on
//! that grid, and the squared error that a reader of the block will see is measured. The plain grid (the one that a
//! quantiser by largest magnitude uses) is always among those measured, so the result is never worse than it.

use half::f16;

use super::blocks::BLOCK;

/// Adding and subtracting it rounds an f32 of magnitude below 2^22 to the nearest integer, ties to even, in two
/// instructions that every machine vectorises.
const ROUNDER: f32 = 12_582_912.0;
/// Sums are taken in this many lanes, which a compiler turns into vectors as it may not do with a sum in one order.
const LANES: usize = 8;
/// The largest f16.
const HALF_MAX: f32 = 65_504.0;

/// A block in 4 bits: `scale * (code - offset) + minimum`, offset 8 without a minimum and 0 with one; or in 8 bits,
/// with signed codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedBlock {
    /// The codes as small numbers: 0 to 15 in 4 bits, -127 to 127 in 8 bits.
    pub codes: [i8; BLOCK],
    /// The scale.
    pub scale: f16,
    /// The minimum; 0 where the format has none.
    pub minimum: f16,
}

/// `scale * (code - 8)`: the best of a few grids for `x`, whose values must be finite.
pub fn quantize_q4(x: &[f32; BLOCK]) -> QuantizedBlock {
    // Where the value of largest magnitude lands: -8 reaches farthest, and a little past it lets the others sit better.
    const TARGETS: [f32; 5] = [-8.0, -8.5, -7.6, 7.4, -9.0];
    let x = saturated(x, 8.0 * HALF_MAX);
    symmetric(&x, &TARGETS, Codes { lowest: -8.0, highest: 7.0, offset: 8 })
}

/// `scale * code` with codes from -127 to 127: the best of a few grids for `x`, whose values must be finite.
pub fn quantize_q8(x: &[f32; BLOCK]) -> QuantizedBlock {
    const TARGETS: [f32; 4] = [127.0, 126.4, 125.6, 124.5];
    let x = saturated(x, 127.0 * HALF_MAX);
    symmetric(&x, &TARGETS, Codes { lowest: -127.0, highest: 127.0, offset: 0 })
}

/// `scale * code + minimum`: the best of a few grids for `x`, whose values must be finite.
pub fn quantize_q4_min(x: &[f32; BLOCK]) -> QuantizedBlock {
    // How much of the range each end gives up, in fifteenths: clipping the extremes lets the others sit better.
    // Twenty such cuts lower the error of real weights by two more percent, for four times the work.
    const CUTS: [(f32, f32); 4] = [(0.0, 0.0), (0.5, 0.5), (0.6, 0.0), (0.0, 0.6)];
    let x = saturated(x, 15.0 * HALF_MAX);
    let (mut lows, mut highs) = ([x[0]; LANES], [x[0]; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            lows[i] = if x[i] < lows[i] { x[i] } else { lows[i] };
            highs[i] = if x[i] > highs[i] { x[i] } else { highs[i] };
        }
    }
    let (low, high) = (lows.into_iter().fold(x[0], f32::min), highs.into_iter().fold(x[0], f32::max));
    // Sums are taken from the lowest value up, so that a block far from zero loses no digits.
    let mut sums = [0.0; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum += x - low;
        }
    }
    let sum_x: f32 = sums.iter().sum();
    let step = (high - low) / 15.0;
    // The plain grid is measured first, as it stands.
    let mut best = (half(step), half(low));
    let mut least = affine_error(&x, best.0, best.1);
    for (cut_low, cut_high) in CUTS {
        let start = low + cut_low * step;
        let (n1, n2, xc) = affine_sums(&x, (high - cut_high * step - start) / 15.0, start, low);
        let n = BLOCK as f32;
        let determinant = n * n2 - n1 * n1;
        if determinant <= 0.0 {
            continue;
        }
        let scale = half((n * xc - n1 * sum_x) / determinant);
        // The minimum that fits the scale as it was rounded.
        let minimum = half(low + (sum_x - scale * n1) / n);
        let error = affine_error(&x, scale, minimum);
        if error < least {
            (best, least) = ((scale, minimum), error);
        }
    }
    let (scale, minimum) = best;
    let inverse = inverse(scale);
    QuantizedBlock {
        codes: x.map(|x| affine_code(x, inverse, minimum) as i8),
        scale: f16::from_f32(scale),
        minimum: f16::from_f32(minimum),
    }
}

/// The squared error of `x` on the grid `scale * code + minimum`.
fn affine_error(x: &[f32; BLOCK], scale: f32, minimum: f32) -> f32 {
    let inverse = inverse(scale);
    let mut errors = [0.0; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for (error, &x) in errors.iter_mut().zip(x) {
            let off = scale * affine_code(x, inverse, minimum) + (minimum - x);
            *error += off * off;
        }
    }
    errors.iter().sum()
}

/// Sums of the codes of `x` on a grid, of their squares, and of their products with `x - low`.
fn affine_sums(x: &[f32; BLOCK], scale: f32, minimum: f32, low: f32) -> (f32, f32, f32) {
    let inverse = inverse(scale);
    let (mut n1, mut n2, mut xc) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            let code = affine_code(x[i], inverse, minimum);
            n1[i] += code;
            n2[i] += code * code;
            xc[i] += code * (x[i] - low);
        }
    }
    (n1.iter().sum(), n2.iter().sum(), xc.iter().sum())
}

#[inline(always)]
fn affine_code(x: f32, inverse: f32, minimum: f32) -> f32 {
    round(clamp((x - minimum) * inverse, 0.0, 15.0))
}

/// The best symmetric grid for `x`, a scale that is an f16. `targets` are the codes that the value of largest
/// magnitude is put at to begin with; the first is also measured without refinement.
fn symmetric(x: &[f32; BLOCK], targets: &[f32], codes: Codes) -> QuantizedBlock {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let extreme = if x.contains(&most) { most } else { -most };
    let mut best = half(extreme / targets[0]);
    let mut least = symmetric_error(x, best, codes);
    for &target in targets {
        let (cc, xc) = symmetric_sums(x, extreme / target, codes);
        if cc == 0.0 {
            continue;
        }
        let scale = half(xc / cc);
        let error = symmetric_error(x, scale, codes);
        if error < least {
            (best, least) = (scale, error);
        }
    }
    let inverse = inverse(best);
    QuantizedBlock {
        codes: x.map(|x| (symmetric_code(x, inverse, codes) as i32 + codes.offset) as i8),
        scale: f16::from_f32(best),
        minimum: f16::ZERO,
    }
}

/// The codes of a symmetric format: the lowest and highest, and what is added to store them.
#[derive(Clone, Copy)]
struct Codes {
    lowest: f32,
    highest: f32,
    offset: i32,
}

/// The squared error of `x` on the grid `scale * code`.
fn symmetric_error(x: &[f32; BLOCK], scale: f32, codes: Codes) -> f32 {
    let inverse = inverse(scale);
    let mut errors = [0.0; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for (error, &x) in errors.iter_mut().zip(x) {
            let off = scale * symmetric_code(x, inverse, codes) - x;
            *error += off * off;
        }
    }
    errors.iter().sum()
}

/// Sums of the squared codes of `x` on a grid, and of their products with `x`.
fn symmetric_sums(x: &[f32; BLOCK], scale: f32, codes: Codes) -> (f32, f32) {
    let inverse = inverse(scale);
    let (mut cc, mut xc) = ([0.0; LANES], [0.0; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            let code = symmetric_code(x[i], inverse, codes);
            cc[i] += code * code;
            xc[i] += code * x[i];
        }
    }
    (cc.iter().sum(), xc.iter().sum())
}

#[inline(always)]
fn symmetric_code(x: f32, inverse: f32, codes: Codes) -> f32 {
    round(clamp(x * inverse, codes.lowest, codes.highest))
}

/// `x` with magnitudes past `most` brought back to it: nothing larger can be written with 16-bit scales.
fn saturated(x: &[f32; BLOCK], most: f32) -> [f32; BLOCK] {
    x.map(|x| clamp(x, -most, most))
}

/// Like `f32::clamp`, whose care for NaN costs instructions that finite numbers do not need.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// The nearest f16, never an infinity.
fn half(x: f32) -> f32 {
    f16::from_f32(x.clamp(-HALF_MAX, HALF_MAX)).to_f32()
}

/// `1 / scale`, and 0 where that would not be a finite number, so that every code of such a grid is 0.
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[inline(always)]
fn round(x: f32) -> f32 {
    (x + ROUNDER) - ROUNDER
}
