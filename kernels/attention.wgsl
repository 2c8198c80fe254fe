// partial = softmax parts of q · k over chunks of 32 positions: the maximum, the sum and the weighted values.
// A workgroup holds eight pairs of a node and a query head of one key head; a node sees the committed positions and,
// behind them, its own ancestors at their depths.

const N_HEADS: u32 = 4u;
const N_KV_HEADS: u32 = 2u;
const HEAD_DIM: u32 = 16u;
const MAX_SEQ_LEN: u32 = 256u;   // rows of the cache
const MAX_CHUNKS: u32 = 8u;      // chunks of the longest context
const GROUPS: u32 = 8u;          // workgroups that share the chunks
const WG: u32 = 256u;            // threads per workgroup: 8 pairs of 32 positions

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;              // [n_nodes, N_HEADS, HEAD_DIM / 4]
@group(0) @binding(2) var<storage, read> cache: array<u32>;                // [k and v, N_KV_HEADS, MAX_SEQ_LEN, HEAD_DIM / 2]
@group(0) @binding(3) var<storage, read> slot_map: array<u32>;             // [MAX_SEQ_LEN] the cache row of each position
@group(0) @binding(4) var<storage, read_write> partial: array<vec2<f32>>;  // [n_nodes, N_HEADS, MAX_CHUNKS, HEAD_DIM / 2 + 1]

const GROUP: u32 = N_HEADS / N_KV_HEADS;    // query heads that share a key head
const PAIRS: u32 = WG / 32u;

var<workgroup> weight: array<f32, WG>;    // [PAIRS, 32] exp(score - max)
var<workgroup> slot_of: array<u32, WG>;   // [PAIRS, 32]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let first_pair = wid.z * PAIRS;
  let n_pairs = control.n_nodes * GROUP;
  if (first_pair >= n_pairs) {
    return;
  }
  for (var chunk = wid.x; chunk * 32u < control.n_committed + control.n_nodes; chunk += GROUPS) {
    attend(chunk, wid.y, first_pair, n_pairs, lid);
    workgroupBarrier();
  }
}

fn attend(chunk: u32, kv_head: u32, first_pair: u32, n_pairs: u32, lid: u32) {
  let pair = min(first_pair + lid / 32u, n_pairs - 1u);
  let node = pair / GROUP;
  let head = kv_head * GROUP + pair % GROUP;
  let slot = slot_at(node, chunk * 32u + lid % 32u);
  let row = (kv_head * MAX_SEQ_LEN + u32(max(slot, 0))) * (HEAD_DIM / 2u);
  var sums = vec4<f32>(0.0);
  for (var i = 0u; i < HEAD_DIM / 4u; i++) {
    let k = vec4<f32>(unpack2x16float(cache[row + 2u * i]), unpack2x16float(cache[row + 2u * i + 1u]));
    sums = fma(q[(node * N_HEADS + head) * (HEAD_DIM / 4u) + i], k, sums);
  }
  var score = ((sums.x + sums.y) + (sums.z + sums.w));
  if (slot < 0) {
    score = -3.0e38;
  }
  let most = group_max(score, lid, 32u);
  var p = 0.0;
  if (slot >= 0) {
    p = exponential(score - most);
  }
  let sum = group_sum(p, lid, 32u);
  weight[lid] = p;
  slot_of[lid] = u32(max(slot, 0));
  workgroupBarrier();

  if (lid % 32u == 0u && first_pair + lid / 32u < n_pairs) {
    partial[partial_at(node, head, chunk) + HEAD_DIM / 2u] = vec2<f32>(most, sum);
  }
  for (var i = lid; i < min(PAIRS, n_pairs - first_pair) * (HEAD_DIM / 2u); i += WG) {
    let local = i / (HEAD_DIM / 2u);
    let word = i % (HEAD_DIM / 2u);
    var acc = vec2<f32>(0.0);
    for (var c = local * 32u; c < local * 32u + 32u; c++) {
      let at = ((N_KV_HEADS + kv_head) * MAX_SEQ_LEN + slot_of[c]) * (HEAD_DIM / 2u) + word;
      acc = fma(vec2<f32>(weight[c]), unpack2x16float(cache[at]), acc);
    }
    let that = first_pair + local;
    partial[partial_at(that / GROUP, kv_head * GROUP + that % GROUP, chunk) + word] = acc;
  }
}

fn partial_at(node: u32, head: u32, chunk: u32) -> u32 {
  return ((node * N_HEADS + head) * MAX_CHUNKS + chunk) * (HEAD_DIM / 2u + 1u);
}

// The cache row of what `node` sees at `position`, or -1.
fn slot_at(node: u32, position: u32) -> i32 {
  let n_committed = control.n_committed;
  if (position < n_committed) {
    return i32(slot_map[position]);
  }
  var ancestors = control.ancestors[node];
  for (var depth = n_committed; depth < position && ancestors != 0u; depth++) {
    ancestors &= ancestors - 1u;
  }
  if (ancestors == 0u) {
    return -1;
  }
  return i32(control.slots[firstTrailingBit(ancestors)]);
}
