// What the two kernels of log-probabilities share. src/decoder/control.rs has the same numbers.

const TOP_MOST: u32 = 20u;     // the most tokens to tell besides the chosen one

// 4,096 logits of a node. The keys and tokens are those of the most probable ones, in order.
struct LogprobPart {
  largest: f32,
  sum: f32,                    // of e^(logit - largest)
  keys: array<u32, 20>,
  tokens: array<u32, 20>,
}

// The node that new token number i of a step stands behind.
fn node_before(path: u32, n_given: u32, i: u32) -> u32 {
  // The last given node, then the drafted ones that were accepted.
  var nodes = (path >> (n_given - 1u)) << (n_given - 1u);
  for (var passed = 0u; passed < i; passed++) {
    nodes &= nodes - 1u;
  }
  return firstTrailingBit(nodes);
}

// Whether a token stands in front of another: the larger logit, then the lower token.
fn precedes(key: u32, token: u32, other_key: u32, other_token: u32) -> bool {
  return key > other_key || (key == other_key && token < other_token);
}
