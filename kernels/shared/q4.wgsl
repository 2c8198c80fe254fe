// Weights: 4-bit codes and a scale, scale * (code - 8).

struct Weights {
  lo: vec4<u32>,
  hi: vec4<u32>,
  scale: f32,
}

fn load_weights(block: u32) -> Weights {
  let word = codes[block];
  let mask = vec4<u32>(0x0F0F0F0Fu);
  return Weights(word & mask, (word >> vec4<u32>(4u)) & mask, unpack2x16float(scales[block / 2u])[block % 2u]);
}

fn add_block(acc: f32, w: Weights, h: QuantBlock) -> f32 {
  let dot = dot16(w.lo, h.lo) + dot16(w.hi, h.hi) - 8 * i32(h.sum);
  return fma(f32(dot), w.scale * h.scale, acc);
}

// Elements 4 * word .. 4 * word + 4 of a block.
fn decode4(block: u32, word: u32) -> vec4<f32> {
  let w = load_weights(block);
  return (vec4<f32>(unpack4xU8(select(w.hi[word % 4u], w.lo[word % 4u], word < 4u))) - 8.0) * w.scale;
}
