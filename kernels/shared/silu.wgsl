// silu(gate) * up.

fn silu_product(gate: f32, up: f32) -> f32 {
  return gate * reciprocal(1.0 + exponential(min(-gate, 80.0))) * up;
}
