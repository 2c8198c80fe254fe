// q, k, v = rotary(qkv + bias); k and v go to the cache. The products come from a kernel of their own.

const N_ROWS: u32 = 128u;        // Q_DIM + 2 * KV_DIM
const Q_DIM: u32 = 64u;          // query heads * HEAD_DIM
const KV_DIM: u32 = 32u;         // key heads * HEAD_DIM
const N_KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 16u;
const SCALE: f32 = 0.25;         // 1 / sqrt(HEAD_DIM), of the scores
const MAX_SEQ_LEN: u32 = 256u;   // rows of the cache
const DIM: u32 = 64u;            // model width: the bias stands behind the norm's weight
const HAS_BIAS: bool = false;
const WG: u32 = 64u;             // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> qkv: array<vec2<f32>>;          // [n_nodes, N_ROWS / 2]
@group(0) @binding(2) var<storage, read> vectors: array<vec4<f32>>;      // the norm's weight [DIM / 4], the bias [N_ROWS / 4]
@group(0) @binding(3) var<storage, read> rope: array<vec2<f32>>;         // [MAX_SEQ_LEN, HEAD_DIM / 2] cos and sin
@group(0) @binding(4) var<storage, read_write> q: array<vec2<f32>>;      // [n_nodes, Q_DIM / 2]
@group(0) @binding(5) var<storage, read_write> cache: array<u32>;        // [k and v, N_KV_HEADS, MAX_SEQ_LEN, HEAD_DIM / 2]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let node = wid.y;
  let row = 2u * (wid.x * WG + lid);
  if (node >= control.n_nodes || row >= N_ROWS) {
    return;
  }
  var pair = qkv[(node * N_ROWS + row) / 2u];
  if (HAS_BIAS) {
    let bias = vectors[DIM / 4u + row / 4u];
    pair += select(bias.xy, bias.zw, row % 4u == 2u);
  }
  store_pair(node, row, pair);
}
