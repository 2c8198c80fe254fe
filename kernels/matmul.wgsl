// product[node, row] = W[row] · input[node], for the rows FIRST_ROW .. FIRST_ROW + N_ROWS of a larger matrix.

const N_BLOCKS: u32 = 2u;        // blocks a row
const N_ROWS: u32 = 64u;         // rows of this part
const FIRST_ROW: u32 = 0u;       // where the part begins in a row of the product
const OUT_DIM: u32 = 64u;        // rows of the whole matrix
const INV_DIM: f32 = 0.015625;   // 1 / width, for a norm in front
const EPS: f32 = 1e-6;
const TOKENS: u32 = 1u;          // nodes of a step
const TILE: u32 = 1u;            // nodes in registers at once, divides TOKENS
const ROWS: u32 = 1u;            // rows in registers at once
const LANES: u32 = 8u;           // threads that share a row
const WG: u32 = 64u;             // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(5) var<storage, read_write> product: array<f32>;    // [n_nodes, OUT_DIM]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let n_nodes = control.n_nodes;
  if (n_nodes == 0u) {
    return;
  }
  prepare_input(lid, n_nodes);
  multiply_rows(wid.x, lid, n_nodes);
  for (var i = lid; i < n_nodes * WG_ROWS; i += WG) {
    let row = row_of(wid.x, i % WG_ROWS);
    if (row < N_ROWS) {
      product[(i / WG_ROWS) * OUT_DIM + FIRST_ROW + row] = y[i];
    }
  }
}
