// largest = max(logits), sum = the sum of e^(logit - largest), of each 4,096 logits that a new token was chosen from,
// and the most probable tokens among them.

const VOCAB_SIZE: u32 = 512u;

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> logits: array<f32>;                  // [n_nodes, VOCAB_SIZE], the model's own
@group(0) @binding(2) var<storage, read_write> parts: array<LogprobPart>;     // [new tokens, ceil(VOCAB_SIZE / 4096)]

const WG: u32 = 256u;      // threads per workgroup
const EACH: u32 = 16u;     // logits of a thread

var<workgroup> firsts: array<vec2<u32>, WG>;                    // the best of each thread: key and token
var<workgroup> bar: vec2<u32>;                                  // the last of the best firsts
var<workgroup> candidates: array<vec2<u32>, TOP_MOST * EACH>;
var<workgroup> n_candidates: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>,
        @builtin(num_workgroups) count: vec3<u32>) {
  let i = wid.y;
  if (i >= control.n_new) {
    return;
  }
  let node = node_before(control.step_paths[(control.n_steps - 1u) % 64u], control.n_given, i);
  let first = wid.x * 4096u + lid;
  // All are read before the first is used, so that a thread waits once.
  var values: array<f32, EACH>;
  for (var j = 0u; j < EACH; j++) {
    values[j] = logits[node * VOCAB_SIZE + min(first + j * WG, VOCAB_SIZE - 1u)];
  }
  var keys: array<u32, EACH>;
  var mine = vec2<u32>(0u, first);
  for (var j = 0u; j < EACH; j++) {
    let token = first + j * WG;
    // Behind the vocabulary's end stand tokens that come last.
    keys[j] = select(0u, key_of(values[j]), token < VOCAB_SIZE);
    if (keys[j] > mine.x) {
      mine = vec2<u32>(keys[j], token);
    }
  }
  let largest = group_max(select(-3.4e38, max(logit_of(mine.x), -3.4e38), mine.x > 0u), lid, WG);
  var partial = 0.0;
  for (var j = 0u; j < EACH; j++) {
    if (keys[j] > 0u) {
      partial += exponential(logit_of(keys[j]) - largest);
    }
  }
  let sum = group_sum(partial, lid, WG);
  let at = i * count.x + wid.x;
  if (lid == 0u) {
    parts[at].largest = largest;
    parts[at].sum = sum;
    atomicStore(&n_candidates, 0u);
  }
  firsts[lid] = mine;
  workgroupBarrier();
  // The best n tokens belong to the threads with the best n firsts, and the n-th of these is not better than any.
  let n = control.n_top;
  var rank = 0u;
  for (var other = 0u; other < WG && rank < n; other++) {
    rank += u32(precedes(firsts[other].x, firsts[other].y, mine.x, mine.y));
  }
  if (rank + 1u == n) {
    bar = mine;
  }
  workgroupBarrier();
  if (rank < n) {
    for (var j = 0u; j < EACH; j++) {
      let token = first + j * WG;
      if (!precedes(bar.x, bar.y, keys[j], token)) {
        candidates[atomicAdd(&n_candidates, 1u)] = vec2<u32>(keys[j], token);
      }
    }
  }
  workgroupBarrier();
  // They came in any order, but each knows its place.
  let most = atomicLoad(&n_candidates);
  for (var c = lid; c < most; c += WG) {
    let candidate = candidates[c];
    var place = 0u;
    for (var other = 0u; other < most && place < n; other++) {
      place += u32(precedes(candidates[other].x, candidates[other].y, candidate.x, candidate.y));
    }
    if (place < n) {
      parts[at].keys[place] = candidate.x;
      parts[at].tokens[place] = candidate.y;
    }
  }
}
