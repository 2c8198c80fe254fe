// A product's input is normed and quantised in front of the product, by every workgroup, into workgroup memory.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;        // [n_nodes, DIM / 4]
@group(0) @binding(2) var<storage, read> vectors: array<vec4<f32>>;  // the norm's weight [DIM / 4] first

const DIM: u32 = N_BLOCKS * 32u;

var<workgroup> input_words: array<u32, TOKENS * DIM / 4u>;
var<workgroup> input_scales: array<vec2<f32>, TOKENS * N_BLOCKS>;

fn prepare_input(lid: u32, n_nodes: u32) {
  for (var node = 0u; node < n_nodes; node++) {
    norm_quantize(node, lid);
  }
  workgroupBarrier();
}

fn store_normed(node: u32, i: u32, q: Quantized) {
  input_words[node * (DIM / 4u) + i] = q.word;
  if (i % 8u == 0u) {
    input_scales[node * N_BLOCKS + i / 8u] = vec2<f32>(q.scale, q.sum);
  }
}

fn load_input(node: u32, block: u32) -> QuantBlock {
  let i = node * (DIM / 4u) + block * 8u;
  let scale = input_scales[node * N_BLOCKS + block];
  let lo = vec4<u32>(input_words[i], input_words[i + 1u], input_words[i + 2u], input_words[i + 3u]);
  let hi = vec4<u32>(input_words[i + 4u], input_words[i + 5u], input_words[i + 6u], input_words[i + 7u]);
  return QuantBlock(lo, hi, scale.x, scale.y);
}
