// x[node, row] += W[row] · input[node].

const N_BLOCKS: u32 = 2u;    // blocks a row
const N_ROWS: u32 = 64u;     // rows: the model's width
const TOKENS: u32 = 1u;      // nodes of a step
const TILE: u32 = 1u;        // nodes in registers at once, divides TOKENS
const ROWS: u32 = 1u;        // rows in registers at once
const LANES: u32 = 8u;       // threads that share a row
const WG: u32 = 64u;         // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(5) var<storage, read_write> x: array<f32>;    // [n_nodes, N_ROWS]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let n_nodes = control.n_nodes;
  if (n_nodes == 0u) {
    return;
  }
  multiply_rows(wid.x, lid, n_nodes);
  for (var i = lid; i < n_nodes * WG_ROWS; i += WG) {
    let row = row_of(wid.x, i % WG_ROWS);
    if (row < N_ROWS) {
      x[(i / WG_ROWS) * N_ROWS + row] += y[i];
    }
  }
}
