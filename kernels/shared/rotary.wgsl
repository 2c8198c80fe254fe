// The rotary embedding of one pair, and the two halves of a word of the cache.

fn rotate(pair: vec2<f32>, turn: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(fma(pair.x, turn.x, -(pair.y * turn.y)), fma(pair.x, turn.y, pair.y * turn.x));
}

fn pack_pair(pair: vec2<f32>) -> u32 {
  return half_bits(pair.x) | (half_bits(pair.y) << 16u);
}

// q, k or v of `node` at rows `row` and `row + 1` of the fused product: q is turned, scaled and kept, k is turned and
// written to the cache, v is written to the cache.
fn store_pair(node: u32, row: u32, pair: vec2<f32>) {
  let slot = control.slots[node];
  let position = control.n_committed + countOneBits(control.ancestors[node]) - 1u;
  let in_head = row % HEAD_DIM;
  if (row < Q_DIM) {
    let turn = rope[position * (HEAD_DIM / 2u) + in_head / 2u];
    q[(node * Q_DIM + row) / 2u] = rotate(pair, turn) * SCALE;
  } else if (row < Q_DIM + KV_DIM) {
    let turn = rope[position * (HEAD_DIM / 2u) + in_head / 2u];
    let head = (row - Q_DIM) / HEAD_DIM;
    cache[((head * MAX_SEQ_LEN + slot) * HEAD_DIM + in_head) / 2u] = pack_pair(rotate(pair, turn));
  } else {
    let head = N_KV_HEADS + (row - Q_DIM - KV_DIM) / HEAD_DIM;
    cache[((head * MAX_SEQ_LEN + slot) * HEAD_DIM + in_head) / 2u] = pack_pair(pair);
  }
}
