// nodes = the context's last token and the most probable prefix-closed tree of what followed the candidates.
// A node of the tree stands for the candidates that agree down to its depth; the lowest of them represents it.

const TOKENS: u32 = 8u;        // nodes of a step
const MAX_SEQ_LEN: u32 = 256u;
const MEMORY: u32 = 32768u;    // tokens that the memory has room for; the context stands behind it
const N_CHUNKS: u32 = 33u;     // chunks that hold 8 candidates each
const KEYS: u32 = 512u;        // a power of two, at least PER_CHUNK * N_CHUNKS and N * DEPTH
const WG: u32 = 256u;          // threads per workgroup

@group(0) @binding(0) var<storage, read_write> control: Control;
@group(0) @binding(1) var<storage, read> text: array<u32>;          // [MEMORY + MAX_SEQ_LEN]
@group(0) @binding(2) var<storage, read> slot_map: array<u32>;      // [MAX_SEQ_LEN] the cache row of each position
@group(0) @binding(3) var<storage, read> candidates: array<u32>;    // [N_CHUNKS, PER_CHUNK] length << 24 | position

const N: u32 = 64u;            // candidates that are blended
const DEPTH: u32 = 8u;         // drafted tokens on a path
const PER_CHUNK: u32 = 8u;     // candidates that a chunk sends
const MAX_ORDER: u32 = 8u;     // the longest match, in tokens
const NO_TOKEN: u32 = 0xFFFFFFFFu;

var<workgroup> order: array<u32, N>;                     // match length, 0 for no candidate
var<workgroup> next: array<u32, N * DEPTH>;              // [DEPTH, N] the tokens that follow, NO_TOKEN behind the end
var<workgroup> leader: array<u32, N * DEPTH>;            // [DEPTH, N] the lowest candidate that agrees so far
var<workgroup> weight: array<atomic<u32>, N * DEPTH>;    // [DEPTH, N] of a leader's node, below 2^22
var<workgroup> node_of: array<u32, N * DEPTH>;           // [DEPTH, N] the node that a leader stands for
var<workgroup> n_of_order: array<atomic<u32>, MAX_ORDER + 1u>;
var<workgroup> share: array<u32, MAX_ORDER + 1u>;                     // the weight of each match length
var<workgroup> parts: array<u32, MAX_ORDER + 1u>;                     // into which its candidates divide it
var<workgroup> first: array<u32, MAX_ORDER + 1u>;                     // its first candidate
var<workgroup> reliability: array<u32, MAX_ORDER + 1u>;               // of each match length, in 65,536ths
var<workgroup> n_drafted: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32) {
  for (var i = lid; i < KEYS; i += WG) {
    keys[i] = select(0u, candidates[min(i, N_CHUNKS * PER_CHUNK - 1u)], i < N_CHUNKS * PER_CHUNK);
  }
  for (var i = lid; i < N * DEPTH; i += WG) {
    atomicStore(&weight[i], 0u);
  }
  if (lid <= MAX_ORDER) {
    atomicStore(&n_of_order[lid], 0u);
    reliability[lid] = reliability_of(lid);
  }
  if (lid == 0u) {
    atomicStore(&n_drafted, 0u);
  }
  sort_keys(lid);
  if (lid < N) {
    read_candidate(lid, keys[lid]);
  }
  workgroupBarrier();
  if (lid == 0u) {
    share_out();
  }
  for (var depth = 0u; depth < DEPTH; depth++) {
    workgroupBarrier();
    if (lid < N) {
      follow(depth, lid);
    }
  }
  workgroupBarrier();
  for (var i = lid; i < KEYS; i += WG) {
    keys[i] = 0u;
    if (i < N * DEPTH && leader[i] == i % N) {
      // Where weights are equal, the shallower node comes first, so that no child stands before its parent.
      let w = atomicLoad(&weight[i]);
      keys[i] = select(0u, (w << 9u) | (511u - i), w > 0u);
    }
  }
  sort_keys(lid);

  // A draft follows the one token that has no cache row yet, and its nodes need free rows.
  let n_committed = control.n_committed;
  var most = 0u;
  if (control.finished == 0u && control.n_context == n_committed + 1u) {
    most = min(TOKENS, MAX_SEQ_LEN - n_committed);
  }
  let key = keys[max(lid, 1u) - 1u];
  let place = 511u - (key & 511u);
  let is_drafted = lid > 0u && lid < most && key > 0u;
  if (is_drafted) {
    node_of[place] = lid;
    atomicAdd(&n_drafted, 1u);
  }
  workgroupBarrier();
  if (is_drafted) {
    var ancestors = 1u;
    for (var i = place % N; i <= place; i += N) {
      ancestors |= 1u << node_of[i - place % N + leader[i]];
    }
    control.tokens[lid] = next[place];
    control.ancestors[lid] = ancestors;
    control.slots[lid] = slot_map[n_committed + lid];
  }
  if (lid < N) {
    control.candidate_tokens[lid] = next[lid];
    control.candidate_orders[lid] = order[lid];
  }
  if (lid == 0u) {
    let is_live = most > 0u;
    control.tokens[0] = text[MEMORY + n_committed];
    control.ancestors[0] = 1u;
    control.slots[0] = slot_map[min(n_committed, MAX_SEQ_LEN - 1u)];
    control.n_given = u32(is_live);
    control.n_nodes = select(0u, 1u + atomicLoad(&n_drafted), is_live);
    control.n_candidates = select(0u, N - atomicLoad(&n_of_order[0]), is_live);
    control.match_length = select(0u, order[0], is_live);
  }
}

// The part of the candidates of this match length that were right, in 65,536ths.
fn reliability_of(length: u32) -> u32 {
  var prior = array<u32, 9>(0u, 8u, 16u, 24u, 32u, 40u, 44u, 48u, 56u);
  if (length == 0u) {
    return 0u;
  }
  return ((control.hits[length - 1u] + prior[length]) << 16u) / (control.tries[length - 1u] + 64u);
}

fn read_candidate(c: u32, key: u32) {
  let position = key & 0xFFFFFFu;
  let end = select(MEMORY + control.n_context, control.n_memory, position < MEMORY);
  var goes_on = key > 0u;
  for (var depth = 0u; depth < DEPTH; depth++) {
    var token = NO_TOKEN;
    if (goes_on && position + depth < end) {
      token = text[position + depth];
    }
    goes_on = token != NO_TOKEN;
    next[depth * N + c] = token;
  }
  order[c] = key >> 24u;
  atomicAdd(&n_of_order[key >> 24u], 1u);
}

// Of equal matches the later one, which stands in front, gets more.
fn recency(in_front: u32) -> u32 {
  return 1024u / (in_front + 1u);
}

// The longest matches get their reliability's part of the weight; what they leave goes to the shorter ones.
fn share_out() {
  var rest = 65536u;
  var c = 0u;
  for (var length = MAX_ORDER; length > 0u; length--) {
    let n = atomicLoad(&n_of_order[length]);
    if (n > 0u) {
      share[length] = ((rest * reliability[length]) >> 16u) << 6u;
      parts[length] = 0u;
      for (var i = 0u; i < n; i++) {
        parts[length] += recency(i);
      }
      first[length] = c;
      c += n;
      rest = (rest * (65536u - reliability[length])) >> 16u;
    }
  }
}

// Puts candidate `c` with those that agree with it down to `depth`. Its own weight falls by the reliability of the
// matches that grow with it.
fn follow(depth: u32, c: u32) {
  let at = depth * N + c;
  var lowest = c;
  if (next[at] != NO_TOKEN) {
    var parent = 0u;
    if (depth > 0u) {
      parent = leader[at - N];
    }
    for (lowest = parent; lowest < c; lowest++) {
      if (next[depth * N + lowest] == next[at] && (depth == 0u || leader[(depth - 1u) * N + lowest] == parent)) {
        break;
      }
    }
    var w = share[order[c]] * recency(c - first[order[c]]) / parts[order[c]];
    for (var d = 1u; d <= depth; d++) {
      w = (w * (reliability[min(order[c] + d, MAX_ORDER)] >> 6u)) >> 10u;
    }
    atomicAdd(&weight[depth * N + lowest], w);
  }
  leader[at] = lowest;
}
