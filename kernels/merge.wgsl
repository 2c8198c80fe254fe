// attn = quantised(sum of the chunks' parts / sum of their weights), one workgroup per node and block of 32 elements.
// Four adjacent threads share an element: thread `j` adds the chunks j, j + 4, …

const N_HEADS: u32 = 4u;
const HEAD_DIM: u32 = 16u;
const MAX_CHUNKS: u32 = 8u;      // chunks of the longest context
const WG: u32 = 128u;            // threads per workgroup: 32 elements of 4 threads

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> partial: array<vec2<f32>>;      // [n_nodes, N_HEADS, MAX_CHUNKS, HEAD_DIM / 2 + 1]
@group(0) @binding(2) var<storage, read_write> h: array<QuantBlock>;     // [n_nodes, N_HEADS * HEAD_DIM / 32]

var<workgroup> attn: array<f32, 32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let node = wid.y;
  if (node >= control.n_nodes) {
    return;
  }
  let element = wid.x * 32u + lid / 4u;
  let head = element / HEAD_DIM;
  let d = element % HEAD_DIM;
  let first = (node * N_HEADS + head) * MAX_CHUNKS;
  let n_chunks = (control.n_committed + countOneBits(control.ancestors[node]) + 31u) / 32u;

  var most = -3.0e38;
  for (var chunk = lid % 4u; chunk < n_chunks; chunk += 4u) {
    most = max(most, partial[(first + chunk) * (HEAD_DIM / 2u + 1u) + HEAD_DIM / 2u].x);
  }
  most = group_max(most, lid, 4u);
  var sum = 0.0;
  var acc = 0.0;
  for (var chunk = lid % 4u; chunk < n_chunks; chunk += 4u) {
    let at = (first + chunk) * (HEAD_DIM / 2u + 1u);
    let part = partial[at + HEAD_DIM / 2u];
    let weight = exponential(part.x - most);
    sum = fma(weight, part.y, sum);
    acc = fma(weight, partial[at + d / 2u][d % 2u], acc);
  }
  sum = group_sum(sum, lid, 4u);
  acc = group_sum(acc, lid, 4u);
  if (lid % 4u == 0u) {
    attn[lid / 4u] = acc * reciprocal(sum);
  }
  workgroupBarrier();
  let word = lid % 8u;
  let q = quantize4(vec4<f32>(attn[4u * word], attn[4u * word + 1u], attn[4u * word + 2u], attn[4u * word + 3u]), lid);
  if (lid < 8u) {
    store_quantized(node * (N_HEADS * HEAD_DIM / 32u) + wid.x, word, q);
  }
}
