// x[node] = embed_tokens[token of node], from the part of the table with rows FIRST_ROW .. FIRST_ROW + N_ROWS.

const N_BLOCKS: u32 = 2u;     // blocks a row
const FIRST_ROW: u32 = 0u;
const N_ROWS: u32 = 64u;
const WG: u32 = 64u;

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;    // [N_ROWS, N_BLOCKS] blocks
@group(0) @binding(2) var<storage, read> scales: array<u32>;         // [N_ROWS, N_BLOCKS] scales, packed
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;  // [n_nodes, dim / 4]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let node = wid.x;
  if (node >= control.n_nodes) {
    return;
  }
  let token = control.tokens[node];
  if (token < FIRST_ROW || token - FIRST_ROW >= N_ROWS) {
    return;
  }
  for (var i = lid; i < N_BLOCKS * 8u; i += WG) {
    x[node * N_BLOCKS * 8u + i] = decode4((token - FIRST_ROW) * N_BLOCKS + i / 8u, i % 8u);
  }
}
