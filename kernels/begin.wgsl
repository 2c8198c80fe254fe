// nodes = context[n_committed ..], a chain of at most TOKENS tokens that have no cache row yet.

const TOKENS: u32 = 1u;    // nodes of a step
const KEPT: u32 = 0u;      // last tokens of the context to leave for a later step (1 in prefill)

@group(0) @binding(0) var<storage, read_write> control: Control;
@group(0) @binding(1) var<storage, read> context: array<u32>;     // [max_seq_len]
@group(0) @binding(2) var<storage, read> slot_map: array<u32>;    // [max_seq_len] the cache row of each position

@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) node: u32) {
  let first = control.n_committed;
  var n_nodes = 0u;
  if (control.finished == 0u && control.n_context > first + KEPT) {
    n_nodes = min(TOKENS, control.n_context - KEPT - first);
  }
  if (node < n_nodes) {
    control.tokens[node] = context[first + node];
    control.ancestors[node] = (2u << node) - 1u;
    control.slots[node] = slot_map[first + node];
  }
  if (node == 0u) {
    control.n_nodes = n_nodes;
    control.n_given = n_nodes;
    control.n_candidates = 0u;
    control.match_length = 0u;
  }
}
