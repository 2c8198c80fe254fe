// How a request chooses its tokens. The same struct stands in src/decoder/sampler.rs.

struct Sampling {
  seed: u32,
  inverse_temperature: f32,
  noise: f32,                       // 1, or 0 where the largest logit is chosen
  top_k: u32,                       // 0 for all
  top_p: u32,                       // in 65,536ths, 65,536 for all
  min_p_below: f32,                 // how far a logit may be from the largest one: 0 or less
  repetition_penalty: f32,
  inverse_repetition_penalty: f32,
  presence_penalty: f32,
  frequency_penalty: f32,
  n_bias: u32,                      // how many of bias_tokens are in use
  bias_tokens: array<u32, 64>,      // no token twice
  bias_values: array<f32, 64>,
}

// A logit's bits, in the order of the logits: equal where these are, and 0 where this is no number.
fn key_of(logit: f32) -> u32 {
  let bits = bitcast<u32>(logit);
  let magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return 0u;
  }
  return select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
}
