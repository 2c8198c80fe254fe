// best = the largest logit of 4,096 and its token, the lowest token where logits are equal.

const VOCAB_SIZE: u32 = 512u;
const WG: u32 = 256u;            // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> logits: array<f32>;          // [n_nodes, VOCAB_SIZE]
@group(0) @binding(2) var<storage, read_write> best: array<Best>;     // [n_nodes, ceil(VOCAB_SIZE / 4096)]

var<workgroup> found: array<Best, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>,
        @builtin(num_workgroups) count: vec3<u32>) {
  let node = wid.y;
  if (node >= control.n_nodes) {
    return;
  }
  var mine = Best(-3.4e38, 0xFFFFFFFFu);
  for (var token = wid.x * 4096u + lid; token < min(wid.x * 4096u + 4096u, VOCAB_SIZE); token += WG) {
    mine = better(mine, Best(logits[node * VOCAB_SIZE + token], token));
  }
  found[lid] = mine;
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    workgroupBarrier();
    if (lid < stride) {
      found[lid] = better(found[lid], found[lid + stride]);
    }
  }
  if (lid == 0u) {
    best[node * count.x + wid.x] = found[0];
  }
}
