// act = quantised(silu(W_gate · input) * (W_up · input)), one block of 32 per workgroup.

const N_BLOCKS: u32 = 2u;        // blocks a row
const N_ROWS: u32 = 256u;        // 2 * HIDDEN_DIM: the rows of gate, then those of up
const HIDDEN_DIM: u32 = 128u;
const INV_DIM: f32 = 0.015625;   // 1 / width, for a norm in front
const EPS: f32 = 1e-6;
const TOKENS: u32 = 1u;          // nodes of a step
const TILE: u32 = 1u;            // nodes in registers at once, divides TOKENS
const ROWS: u32 = 2u;            // rows in registers at once; WG / LANES * ROWS is 64
const LANES: u32 = 8u;           // threads that share a row
const WG: u32 = 256u;            // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(5) var<storage, read_write> h: array<QuantBlock>;    // [n_nodes, HIDDEN_DIM / 32]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let n_nodes = control.n_nodes;
  if (n_nodes == 0u) {
    return;
  }
  prepare_input(lid, n_nodes);
  multiply_rows(wid.x, lid, n_nodes);
  for (var first = 0u; first < n_nodes * 8u; first += WG) {
    let i = first + lid;
    let node = min(i / 8u, n_nodes - 1u);
    let word = i % 8u;
    var act: vec4<f32>;
    for (var e = 0u; e < 4u; e++) {
      let at = node * WG_ROWS + word * 4u + e;
      act[e] = silu_product(y[at], y[at + 32u]);
    }
    let quantized = quantize4(act, lid);
    if (i < n_nodes * 8u) {
      store_quantized(node * (HIDDEN_DIM / 32u) + wid.x, word, quantized);
    }
  }
}

fn row_of(group: u32, local: u32) -> u32 {
  return select(HIDDEN_DIM + group * 32u + local - 32u, group * 32u + local, local < 32u);
}
