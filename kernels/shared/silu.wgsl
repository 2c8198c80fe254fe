// silu(gate) * up.

fn silu_product(gate: f32, up: f32) -> f32 {
  return gate / (1.0 + exp(-gate)) * up;
}
