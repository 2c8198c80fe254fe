// The better of two candidates: the larger logit, then the lower token.

struct Best {
  logit: f32,
  token: u32,
}

fn better(a: Best, b: Best) -> Best {
  if (b.logit > a.logit || (b.logit == a.logit && b.token < a.token)) {
    return b;
  }
  return a;
}
