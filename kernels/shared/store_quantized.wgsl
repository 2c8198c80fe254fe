// Word `word` of block `block` of h; its first word carries the scale and the sum.

fn store_quantized(block: u32, word: u32, q: Quantized) {
  if (word < 4u) {
    h[block].lo[word] = q.word;
  } else {
    h[block].hi[word - 4u] = q.word;
  }
  if (word == 0u) {
    h[block].scale = q.scale;
    h[block].sum = q.sum;
  }
}
