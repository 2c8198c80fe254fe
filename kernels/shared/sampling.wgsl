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
