// A product's input comes quantised from a kernel of its own.

@group(0) @binding(1) var<storage, read> input: array<QuantBlock>;   // [n_nodes, N_BLOCKS]
@group(0) @binding(2) var<storage, read> vectors: array<vec4<f32>>;  // the layer's vectors, for the bias

fn prepare_input(lid: u32, n_nodes: u32) {
}

fn load_input(node: u32, block: u32) -> QuantBlock {
  return input[node * N_BLOCKS + block];
}
