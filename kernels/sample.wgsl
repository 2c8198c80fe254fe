// best = the largest perturbed logit of 4,096, logit / temperature + noise, and its token, the lowest token where they
// are equal. The noise is Gumbel's, so that a token wins as often as softmax says; it is a hash of seed, position and
// token, so that it is the same in any step.

const VOCAB_SIZE: u32 = 512u;
const WG: u32 = 256u;            // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> sampling: Sampling;
@group(0) @binding(2) var<storage, read> logits: array<f32>;          // [n_nodes, VOCAB_SIZE]
@group(0) @binding(3) var<storage, read> thresholds: array<u32>;      // [n_nodes]
@group(0) @binding(4) var<storage, read_write> best: array<Best>;     // [n_nodes, ceil(VOCAB_SIZE / 4096)]

var<workgroup> found: array<Best, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>,
        @builtin(num_workgroups) count: vec3<u32>) {
  let node = wid.y;
  if (node >= control.n_nodes) {
    return;
  }
  // The position of the token to come.
  let position = control.n_committed + countOneBits(control.ancestors[node]);
  let state = mix(mix(sampling.seed ^ 0x9E3779B9u) + position);
  let threshold = thresholds[node];
  var mine = Best(-3.4e38, 0xFFFFFFFFu);
  for (var token = wid.x * 4096u + lid; token < min(wid.x * 4096u + 4096u, VOCAB_SIZE); token += WG) {
    let logit = logits[node * VOCAB_SIZE + token];
    if (key_of(logit) >= threshold) {
      let noise = gumbel(mix(mix(state + token * 0x9E3779B1u) ^ state));
      mine = better(mine, Best(fma(logit, sampling.inverse_temperature, noise * sampling.noise), token));
    }
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

// Mixes all bits of h with each other (the finaliser of MurmurHash3).
fn mix(h: u32) -> u32 {
  let a = (h ^ (h >> 16u)) * 0x85EBCA6Bu;
  let b = (a ^ (a >> 13u)) * 0xC2B2AE35u;
  return b ^ (b >> 16u);
}
