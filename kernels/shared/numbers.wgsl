// Functions that WGSL lets a device round as it likes, written out in operations that it does not: so their bits are
// the same on every device that fuses `fma`, and the CPU's (src/cpu/numbers.rs has the twins).

// 1 / x for 1e-30 <= x <= 1e37, by Newton's method.
fn reciprocal(x: f32) -> f32 {
  var y = bitcast<f32>(0x7EF311C7u - bitcast<u32>(x));
  y = y * fma(-x, y, 2.0);
  y = y * fma(-x, y, 2.0);
  y = y * fma(-x, y, 2.0);
  return y * fma(-x, y, 2.0);
}

// 1 / sqrt(x) for 1e-30 <= x <= 1e37, by Newton's method.
fn reciprocal_sqrt(x: f32) -> f32 {
  let half = 0.5 * x;
  var y = bitcast<f32>(0x5F3759DFu - (bitcast<u32>(x) >> 1u));
  y = y * fma(-(half * y), y, 1.5);
  y = y * fma(-(half * y), y, 1.5);
  return y * fma(-(half * y), y, 1.5);
}

// e^x, 0 below -87.3, for x <= 88.
fn exponential(x: f32) -> f32 {
  let clamped = max(x, -87.3);
  let n = round(clamped * 1.44269504);
  let r = fma(n, -0.69314718, clamped);
  // e^r for |r| <= ln 2 / 2, with the coefficients of Cephes' expf.
  var p = fma(1.9875691e-4, r, 1.3982e-3);
  p = fma(p, r, 8.333452e-3);
  p = fma(p, r, 4.1665796e-2);
  p = fma(p, r, 1.6666665e-1);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  let y = p * bitcast<f32>(u32(i32(n) + 127) << 23u);
  return select(y, 0.0, x < -87.3);
}

// ln x for normal x > 0.
fn logarithm(x: f32) -> f32 {
  // x = 2^n * (1 + f), with 1 + f between the square roots of 1/2 and of 2.
  let n = bitcast<i32>(bitcast<u32>(x) - 0x3F3504F3u) >> 23u;
  let above = bitcast<f32>(bitcast<u32>(x) - (bitcast<u32>(n) << 23u)) - 1.0;
  // The maximum is always f. It keeps compilers from drawing the 1 into the series, as Mesa's did.
  let f = max(above, -0.5);
  return fma(f32(n), 0.69314718, f * logarithm_series(f));
}

// ln(1 + f) / f for -0.3 <= f <= 0.42, with the coefficients of Cephes' logf.
fn logarithm_series(f: f32) -> f32 {
  var p = fma(7.0376836e-2, f, -1.151461e-1);
  p = fma(p, f, 1.1676999e-1);
  p = fma(p, f, -1.2420141e-1);
  p = fma(p, f, 1.4249323e-1);
  p = fma(p, f, -1.6668058e-1);
  p = fma(p, f, 2.0000715e-1);
  p = fma(p, f, -2.4999994e-1);
  p = fma(p, f, 3.3333331e-1);
  p = fma(p, f, -0.5);
  return fma(p, f, 1.0);
}

// Gumbel noise -ln(-ln(1 - v)) for the v between 0 and 1 that random bits stand for. A small v makes a large value,
// and keeps all its digits.
fn gumbel(random: u32) -> f32 {
  let bits = random | 1u;
  let zeros = countLeadingZeros(bits);
  let v = f32((bits << zeros) >> 8u) * bitcast<f32>((103u - zeros) << 23u);
  return -logarithm(select(-logarithm(1.0 - v), v * logarithm_series(-v), v < 0.25));
}

// The 16-bit float nearest to x (ties to even), with x clamped to its range.
fn half_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(clamp(x, -65504.0, 65504.0));
  let magnitude = bits & 0x7FFFFFFFu;
  var half = (magnitude + 0xFFFu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
  if (magnitude < 0x38800000u) {
    // Subnormal: the unit of 0.5 is the unit of these.
    half = bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3F000000u;
  }
  return half | ((bits >> 16u) & 0x8000u);
}
