// Activations in blocks of 32: 8-bit codes with a scale and the sum of the codes.

struct QuantBlock {
  lo: vec4<u32>,    // elements 0..16, four a word
  hi: vec4<u32>,    // elements 16..32
  scale: f32,
  sum: f32,
}

struct Quantized {
  word: u32,        // the codes of four elements
  scale: f32,       // of the whole block
  sum: f32,         // of the whole block
}

// Eight adjacent threads hold a block of 32, four elements each.
fn quantize4(value: vec4<f32>, lid: u32) -> Quantized {
  let a = abs(value);
  let amax = group_max(max(max(a.x, a.y), max(a.z, a.w)), lid, 8u);
  var inverse = 0.0;
  if (amax > 1e-30) {
    inverse = 127.0 * reciprocal(amax);
  }
  let code = vec4<i32>(clamp(round(value * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
  let sum = group_sum(f32(code.x + code.y + code.z + code.w), lid, 8u);
  let bits = vec4<u32>(code) & vec4<u32>(0xFFu);
  let word = bits.x | (bits.y << 8u) | (bits.z << 16u) | (bits.w << 24u);
  return Quantized(word, amax * 0.00787401574803, sum);
}
