// Commits the nodes that the context holds and the path of drafted ones that the model agrees with, and appends that
// path's tokens and the one that follows to the context.

const PREDICTS: bool = true;     // false in prefill, which has no logits
const N_PARTS: u32 = 1u;         // parts of the vocabulary that argmax left
const VOCAB_SIZE: u32 = 512u;

@group(0) @binding(0) var<storage, read_write> control: Control;
@group(0) @binding(1) var<storage, read_write> context: array<u32>;     // [max_seq_len]
@group(0) @binding(2) var<storage, read_write> slot_map: array<u32>;    // [max_seq_len] the cache row of each position
@group(0) @binding(3) var<storage, read> best: array<Best>;             // [n_nodes, N_PARTS]

const MAX_TRIES: u32 = 4096u;    // above this many the counters are halved, so that the past counts for less

var<workgroup> predicted: array<u32, 32>;          // what follows each node
var<workgroup> rejected: atomic<u32>;              // bit i: node i is not what follows its parent
var<workgroup> tried: array<atomic<u32>, 8>;       // candidates of each match length
var<workgroup> right: array<atomic<u32>, 8>;       // those whose first token was right

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lid: u32) {
  let n_nodes = control.n_nodes;
  let n_given = control.n_given;
  if (PREDICTS && lid < n_nodes) {
    var most = best[lid * N_PARTS];
    for (var part = 1u; part < N_PARTS; part++) {
      most = better(most, best[lid * N_PARTS + part]);
    }
    // Where no logit is a number, token 0.
    predicted[lid] = select(most.token, 0u, most.token >= VOCAB_SIZE);
  }
  if (lid < 8u) {
    atomicStore(&tried[lid], 0u);
    atomicStore(&right[lid], 0u);
  }
  if (lid == 0u) {
    atomicStore(&rejected, 0u);
  }
  workgroupBarrier();
  if (lid >= n_given && lid < n_nodes) {
    let parent = firstLeadingBit(control.ancestors[lid] ^ (1u << lid));
    if (predicted[parent] != control.tokens[lid]) {
      atomicOr(&rejected, 1u << lid);
    }
  }
  if (PREDICTS && n_nodes > 0u && lid < control.n_candidates) {
    let order = control.candidate_orders[lid] - 1u;
    atomicAdd(&tried[order], 1u);
    if (control.candidate_tokens[lid] == predicted[0]) {
      atomicAdd(&right[order], 1u);
    }
  }
  workgroupBarrier();
  if (lid < 8u) {
    count_candidates(lid, atomicLoad(&tried[lid]), atomicLoad(&right[lid]));
  }
  if (lid == 0u) {
    control.n_new = 0u;
    if (n_nodes > 0u) {
      commit(n_nodes, n_given, atomicLoad(&rejected));
    }
  }
}

// In sixteenths of a step, so that a step in which some candidates were right counts as a part of one.
fn count_candidates(order: u32, n_tried: u32, n_right: u32) {
  if (n_tried == 0u) {
    return;
  }
  var tries = control.tries[order] + 16u;
  var hits = control.hits[order] + 16u * n_right / n_tried;
  if (tries > MAX_TRIES) {
    tries /= 2u;
    hits /= 2u;
  }
  control.tries[order] = tries;
  control.hits[order] = hits;
}

fn commit(n_nodes: u32, n_given: u32, rejected_nodes: u32) {
  let first = control.n_committed;
  var n_committed = first + n_given;
  if (!PREDICTS || n_committed != control.n_context) {
    control.n_committed = n_committed;
    control.n_steps += u32(PREDICTS);
    return;
  }
  var last = n_given - 1u;
  var path = control.ancestors[last];
  for (var node = n_given; node < n_nodes && control.finished == 0u; node++) {
    let ancestors = control.ancestors[node];
    if ((ancestors & rejected_nodes) == 0u) {
      // The rows change places, so that the positions behind keep free rows, and nothing moves in the cache.
      let row = slot_map[n_committed];
      slot_map[n_committed] = slot_map[first + node];
      slot_map[first + node] = row;
      n_committed += 1u;
      append(control.tokens[node]);
      last = node;
      path = ancestors;
    }
  }
  let n_accepted = n_committed - first - n_given;
  if (control.finished == 0u) {
    append(predicted[last]);
  }
  control.n_committed = n_committed;
  control.step_stats[control.n_steps % 64u] = n_nodes | (n_accepted << 8u) | (control.match_length << 16u);
  control.step_paths[control.n_steps % 64u] = path;
  control.n_steps += 1u;
}

fn append(token: u32) {
  context[control.n_context] = token;
  control.recent[control.n_generated % 256u] = token;
  control.n_context += 1u;
  control.n_generated += 1u;
  control.n_new += 1u;
  if (control.n_context >= control.max_context) {
    control.finished = 2u;
  }
  for (var i = 0u; i < control.n_end_tokens; i++) {
    if (control.end_tokens[i] == token) {
      control.finished = 1u;
    }
  }
}
