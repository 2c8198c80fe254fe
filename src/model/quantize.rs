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
/// The largest f16.
const HALF_MAX: f32 = 65_504.0;

/// A block in 4 bits: `scale * (code - offset) + minimum`, offset 8 without a minimum and 0 with one; or in 8 bits,
/// with signed codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantized {
    /// The codes as small numbers: 0 to 15 in 4 bits, -127 to 127 in 8 bits.
    pub codes: [i8; BLOCK],
    /// The scale.
    pub scale: f16,
    /// The minimum; 0 where the format has none.
    pub minimum: f16,
}

/// `scale * (code - 8)`: the best of a few grids for `x`, whose values must be finite.
pub fn quantize_q4(x: &[f32; BLOCK]) -> Quantized {
    // Where the value of largest magnitude lands: -8 reaches farthest, and a little past it lets the others sit better.
    const TARGETS: [f32; 7] = [-8.0, -8.7, -8.35, -7.65, -7.2, 7.0, 7.5];
    let x = saturated(x, 8.0 * HALF_MAX);
    let (codes, scale) = symmetric(&x, &TARGETS, -8.0, 7.0);
    Quantized { codes: codes.map(|code| code as i8 + 8), scale: f16::from_f32(scale), minimum: f16::ZERO }
}

/// `scale * code` with codes from -127 to 127: the best of a few grids for `x`, whose values must be finite.
pub fn quantize_q8(x: &[f32; BLOCK]) -> Quantized {
    const TARGETS: [f32; 4] = [127.0, 126.4, 125.6, 124.5];
    let x = saturated(x, 127.0 * HALF_MAX);
    let (codes, scale) = symmetric(&x, &TARGETS, -127.0, 127.0);
    Quantized { codes: codes.map(|code| code as i8), scale: f16::from_f32(scale), minimum: f16::ZERO }
}

/// `scale * code + minimum`: the best of a few grids for `x`, whose values must be finite.
pub fn quantize_q4_min(x: &[f32; BLOCK]) -> Quantized {
    // How much of the range each end gives up, in fifteenths: clipping the extremes lets the others sit better.
    const CUTS: [(f32, f32); 9] = [
        (0.0, 0.0),
        (0.5, 0.5),
        (0.5, 0.0),
        (0.0, 0.5),
        (1.0, 1.0),
        (-0.4, -0.4),
        (1.0, 0.0),
        (0.0, 1.0),
        (0.25, 0.25),
    ];
    let x = saturated(x, 15.0 * HALF_MAX);
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(low, high), &v| (low.min(v), high.max(v)));
    // Sums are taken from the lowest value up, so that a block far from zero loses no digits.
    let sum_x: f32 = x.iter().map(|x| x - low).sum();
    let step = (high - low) / 15.0;
    // The plain grid is measured first, as it stands.
    let mut best = affine_error(&x, half(step), half(low));
    for (cut_low, cut_high) in CUTS {
        let start = low + cut_low * step;
        let codes = affine_codes(&x, (high - cut_high * step - start) / 15.0, start);
        let (mut n1, mut n2, mut xc) = (0.0, 0.0, 0.0);
        for (&code, &x) in codes.iter().zip(&x) {
            n1 += code;
            n2 += code * code;
            xc += code * (x - low);
        }
        let n = BLOCK as f32;
        let determinant = n * n2 - n1 * n1;
        if determinant <= 0.0 {
            continue;
        }
        let scale = half((n * xc - n1 * sum_x) / determinant);
        // The minimum that fits the scale as it was rounded.
        let minimum = half(low + (sum_x - scale * n1) / n);
        let found = affine_error(&x, scale, minimum);
        if found.error < best.error {
            best = found;
        }
    }
    Quantized {
        codes: best.codes.map(|code| code as i8),
        scale: f16::from_f32(best.scale),
        minimum: f16::from_f32(best.minimum),
    }
}

/// A grid with a minimum, the codes on it, and the squared error.
struct Affine {
    codes: [f32; BLOCK],
    scale: f32,
    minimum: f32,
    error: f32,
}

fn affine_error(x: &[f32; BLOCK], scale: f32, minimum: f32) -> Affine {
    let codes = affine_codes(x, scale, minimum);
    let mut error = 0.0;
    for (&code, &x) in codes.iter().zip(x) {
        let off = scale * code + minimum - x;
        error += off * off;
    }
    Affine { codes, scale, minimum, error }
}

fn affine_codes(x: &[f32; BLOCK], scale: f32, minimum: f32) -> [f32; BLOCK] {
    let inverse = inverse(scale);
    x.map(|x| round(((x - minimum) * inverse).clamp(0.0, 15.0)))
}

/// The best symmetric grid: codes and a scale that is an f16. `targets` are the codes that the value of largest
/// magnitude is put at to begin with; the first is also measured without refinement.
fn symmetric(x: &[f32; BLOCK], targets: &[f32], lowest: f32, highest: f32) -> ([f32; BLOCK], f32) {
    let extreme = x.iter().fold(0.0f32, |extreme, &v| if v.abs() > extreme.abs() { v } else { extreme });
    let plain = half(extreme / targets[0]);
    let mut best = (symmetric_codes(x, plain, lowest, highest), plain);
    let mut least = symmetric_error(x, &best.0, plain);
    for &target in targets {
        let codes = symmetric_codes(x, extreme / target, lowest, highest);
        let (mut cc, mut xc) = (0.0, 0.0);
        for (&code, &x) in codes.iter().zip(x) {
            cc += code * code;
            xc += code * x;
        }
        if cc == 0.0 {
            continue;
        }
        let scale = half(xc / cc);
        let codes = symmetric_codes(x, scale, lowest, highest);
        let error = symmetric_error(x, &codes, scale);
        if error < least {
            (best, least) = ((codes, scale), error);
        }
    }
    best
}

fn symmetric_codes(x: &[f32; BLOCK], scale: f32, lowest: f32, highest: f32) -> [f32; BLOCK] {
    let inverse = inverse(scale);
    x.map(|x| round((x * inverse).clamp(lowest, highest)))
}

fn symmetric_error(x: &[f32; BLOCK], codes: &[f32; BLOCK], scale: f32) -> f32 {
    codes.iter().zip(x).map(|(&code, &x)| (scale * code - x) * (scale * code - x)).sum()
}

/// `x` with magnitudes past `most` brought back to it: nothing larger can be written with 16-bit scales.
fn saturated(x: &[f32; BLOCK], most: f32) -> [f32; BLOCK] {
    x.map(|x| x.clamp(-most, most))
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

fn round(x: f32) -> f32 {
    (x + ROUNDER) - ROUNDER
}
