// q, k, v = rotary(W · input + bias); k and v go to the cache.

const N_BLOCKS: u32 = 2u;        // blocks a row
const N_ROWS: u32 = 128u;        // Q_DIM + 2 * KV_DIM
const Q_DIM: u32 = 64u;          // query heads * HEAD_DIM
const KV_DIM: u32 = 32u;         // key heads * HEAD_DIM
const N_KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 16u;
const SCALE: f32 = 0.25;         // 1 / sqrt(HEAD_DIM), of the scores
const MAX_SEQ_LEN: u32 = 256u;   // rows of the cache
const HAS_BIAS: bool = false;
const INV_DIM: f32 = 0.015625;   // 1 / width, for a norm in front
const EPS: f32 = 1e-6;
const TOKENS: u32 = 1u;          // nodes of a step
const TILE: u32 = 1u;            // nodes in registers at once, divides TOKENS
const ROWS: u32 = 1u;            // rows in registers at once
const LANES: u32 = 8u;           // threads that share a row
const WG: u32 = 64u;             // threads per workgroup; WG / LANES * ROWS is even

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(5) var<storage, read> rope: array<vec2<f32>>;         // [MAX_SEQ_LEN, HEAD_DIM / 2] cos and sin
@group(0) @binding(6) var<storage, read_write> q: array<vec2<f32>>;      // [n_nodes, Q_DIM / 2]
@group(0) @binding(7) var<storage, read_write> cache: array<u32>;        // [k and v, N_KV_HEADS, MAX_SEQ_LEN, HEAD_DIM / 2]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let n_nodes = control.n_nodes;
  if (n_nodes == 0u) {
    return;
  }
  prepare_input(lid, n_nodes);
  multiply_rows(wid.x, lid, n_nodes);
  for (var i = lid; i < n_nodes * WG_ROWS / 2u; i += WG) {
    let row = row_of(wid.x, 2u * i % WG_ROWS);
    if (row < N_ROWS) {
      var pair = vec2<f32>(y[2u * i], y[2u * i + 1u]);
      if (HAS_BIAS) {
        let bias = vectors[N_BLOCKS * 8u + row / 4u];
        pair += select(bias.xy, bias.zw, row % 4u == 2u);
      }
      store_pair(2u * i / WG_ROWS, row, pair);
    }
  }
}
