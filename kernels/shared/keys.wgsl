// Logits in an order of integers.

// A logit's bits, in the order of the logits: equal where these are, and 0 where this is no number.
fn key_of(logit: f32) -> u32 {
  let bits = bitcast<u32>(logit);
  let magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return 0u;
  }
  return select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
}

fn logit_of(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7FFFFFFFu, key >= 0x80000000u));
}
