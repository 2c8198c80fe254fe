// logprob = logit - largest - ln(the sum of e^(logit - largest)), of each new token and of the most probable ones that
// could have stood in its place: softmax at temperature 1 of the model's own logits.

const VOCAB_SIZE: u32 = 512u;
const N_PARTS: u32 = 1u;         // parts of the vocabulary

@group(0) @binding(0) var<storage, read_write> state: State;
@group(0) @binding(1) var<storage, read> logits: array<f32>;            // [n_nodes, VOCAB_SIZE], the model's own
@group(0) @binding(2) var<storage, read> parts: array<LogprobPart>;     // [new tokens, N_PARTS]

const WG: u32 = 64u;             // threads per workgroup

// The same struct stands in src/decoder/control.rs.
struct Logprobs {
  chosen: f32,
  tokens: array<u32, 20>,        // the most probable ones, in order
  logprobs: array<f32, 20>,
}

// The control buffer, so that one readback brings both.
struct State {
  control: Control,
  logprobs: array<Logprobs, 64>, // generated token number g stands at g % 64
}

// No thread waits for another: each adds up the parts on its own.
@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let i = wid.x;
  if (i >= state.control.n_new) {
    return;
  }
  let first = i * N_PARTS;
  var largest = -3.4e38;
  for (var part = 0u; part < N_PARTS; part++) {
    largest = max(largest, parts[first + part].largest);
  }
  var sum = 0.0;
  for (var part = 0u; part < N_PARTS; part++) {
    sum = fma(exponential(parts[first + part].largest - largest), parts[first + part].sum, sum);
  }
  let log_sum = logarithm(sum);
  let number = state.control.n_generated - state.control.n_new + i;
  let slot = number % 64u;
  if (lid == 0u) {
    let path = state.control.step_paths[(state.control.n_steps - 1u) % 64u];
    let node = node_before(path, state.control.n_given, i);
    let token = min(state.control.recent[number % 256u], VOCAB_SIZE - 1u);
    state.logprobs[slot].chosen = logit_of(key_of(logits[node * VOCAB_SIZE + token])) - largest - log_sum;
  }
  let n = state.control.n_top;
  for (var c = lid; c < N_PARTS * n; c += WG) {
    // The parts' first tokens first: most others find n better ones soon.
    let key = parts[first + c % N_PARTS].keys[c / N_PARTS];
    let token = parts[first + c % N_PARTS].tokens[c / N_PARTS];
    var place = 0u;
    for (var part = 0u; part < N_PARTS && place < n; part++) {
      for (var j = 0u; j < n; j++) {
        if (!precedes(parts[first + part].keys[j], parts[first + part].tokens[j], key, token)) {
          break;
        }
        place += 1u;
      }
    }
    if (place < n) {
      state.logprobs[slot].tokens[place] = token;
      state.logprobs[slot].logprobs[place] = logit_of(key) - largest - log_sum;
    }
  }
}
