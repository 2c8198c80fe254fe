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
