// Commits the step's nodes and, where the step reached the end of the context, appends the token that follows.

const PREDICTS: bool = true;     // false in prefill, which has no logits
const N_PARTS: u32 = 1u;         // parts of the vocabulary that argmax left
const VOCAB_SIZE: u32 = 512u;

@group(0) @binding(0) var<storage, read_write> control: Control;
@group(0) @binding(1) var<storage, read_write> context: array<u32>;    // [max_seq_len]
@group(0) @binding(2) var<storage, read> best: array<Best>;            // [n_nodes, N_PARTS]

@compute @workgroup_size(1)
fn main() {
  let n_nodes = control.n_nodes;
  if (n_nodes == 0u) {
    return;
  }
  control.n_committed += n_nodes;
  if (!PREDICTS) {
    return;
  }
  control.n_steps += 1u;
  if (control.n_committed != control.n_context) {
    return;
  }
  var most = best[(n_nodes - 1u) * N_PARTS];
  for (var part = 1u; part < N_PARTS; part++) {
    most = better(most, best[(n_nodes - 1u) * N_PARTS + part]);
  }
  // Where no logit is a number, token 0.
  let token = select(most.token, 0u, most.token >= VOCAB_SIZE);
  context[control.n_context] = token;
  control.recent[control.n_generated % 256u] = token;
  control.n_context += 1u;
  control.n_generated += 1u;
  if (control.n_context >= control.max_context) {
    control.finished = 2u;
  }
  for (var i = 0u; i < control.n_end_tokens; i++) {
    if (control.end_tokens[i] == token) {
      control.finished = 1u;
    }
  }
}
