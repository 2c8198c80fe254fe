// Weights: 4-bit codes, a scale and a minimum, scale * code + minimum.

struct Weights {
  lo: vec4<u32>,
  hi: vec4<u32>,
  scale: f32,
  minimum: f32,
}

fn load_weights(block: u32) -> Weights {
  let word = codes[block];
  let mask = vec4<u32>(0x0F0F0F0Fu);
  let pair = unpack2x16float(scales[block]);
  return Weights(word & mask, (word >> vec4<u32>(4u)) & mask, pair.x, pair.y);
}

fn add_block(acc: f32, w: Weights, h: QuantBlock) -> f32 {
  let dot = dot16(w.lo, h.lo) + dot16(w.hi, h.hi);
  return fma(h.scale, fma(f32(dot), w.scale, w.minimum * h.sum), acc);
}

// Elements 4 * word .. 4 * word + 4 of a block.
fn decode4(block: u32, word: u32) -> vec4<f32> {
  let w = load_weights(block);
  let code = vec4<f32>(unpack4xU8(select(w.hi[word % 4u], w.lo[word % 4u], word < 4u)));
  return fma(code, vec4<f32>(w.scale), vec4<f32>(w.minimum));
}
