// logits = logits * (penalty for tokens seen) - (penalties for tokens generated) + bias, in place. A node has seen the
// context and the drafted nodes above it.

const VOCAB_SIZE: u32 = 512u;
const KEEPS: bool = false;       // copies the logits to `kept` before, for log-probabilities
const WG: u32 = 256u;            // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> sampling: Sampling;
@group(0) @binding(2) var<storage, read> context: array<u32>;                   // [max_seq_len]
@group(0) @binding(3) var<storage, read_write> logits: array<f32>;              // [n_nodes, VOCAB_SIZE]
@group(0) @binding(4) var<storage, read_write> counts: array<atomic<u32>>;      // [n_nodes, VOCAB_SIZE], zero between steps
@group(0) @binding(5) var<storage, read_write> kept: array<f32>;                // [n_nodes, VOCAB_SIZE]

const WINDOW: u32 = 1024u;       // the last tokens that the repetition penalty looks at
const BATCH: u32 = 8u;           // logits that a thread copies at once
const SEEN: u32 = 1u << 20u;     // in a count: units of this for the window, below it those of the answer

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let node = wid.x;
  if (node >= control.n_nodes) {
    return;
  }
  if (KEEPS) {
    keep(node, lid);
    storageBarrier();
  }
  let n_context = control.n_context;
  let ancestors = control.ancestors[node];
  let drafted = select(0u, (ancestors >> control.n_given) << control.n_given, control.n_given < 32u);
  let length = n_context + countOneBits(drafted);
  // Where the window and the answer begin: the tokens in front of both change nothing.
  let answer = n_context - control.n_generated;
  let window = select(length, length - min(length, WINDOW), sampling.repetition_penalty != 1.0);
  let counted = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
  let first = min(window, select(length, answer, counted));
  for (var i = first + lid; i < n_context; i += WG) {
    count(node, context[i], select(0u, SEEN, i >= window) + u32(i >= answer));
  }
  let is_drafted = lid < 32u && ((drafted >> (lid & 31u)) & 1u) == 1u;
  if (is_drafted) {
    count(node, control.tokens[lid], SEEN + 1u);
  }
  storageBarrier();
  // Whoever comes first to a token takes its count and applies it.
  for (var i = first + lid; i < n_context; i += WG) {
    apply(node, context[i]);
  }
  if (is_drafted) {
    apply(node, control.tokens[lid]);
  }
  storageBarrier();
  if (lid < sampling.n_bias) {
    logits[node * VOCAB_SIZE + sampling.bias_tokens[lid]] += sampling.bias_values[lid];
  }
}

// Several logits at once, so that a thread waits less often.
fn keep(node: u32, lid: u32) {
  for (var first = lid; first < VOCAB_SIZE; first += BATCH * WG) {
    var values: array<f32, BATCH>;
    for (var i = 0u; i < BATCH; i++) {
      values[i] = logits[node * VOCAB_SIZE + min(first + i * WG, VOCAB_SIZE - 1u)];
    }
    for (var i = 0u; i < BATCH; i++) {
      if (first + i * WG < VOCAB_SIZE) {
        kept[node * VOCAB_SIZE + first + i * WG] = values[i];
      }
    }
  }
}

fn count(node: u32, token: u32, n: u32) {
  if (token < VOCAB_SIZE) {
    atomicAdd(&counts[node * VOCAB_SIZE + token], n);
  }
}

fn apply(node: u32, token: u32) {
  if (token >= VOCAB_SIZE) {
    return;
  }
  let at = node * VOCAB_SIZE + token;
  let n = atomicExchange(&counts[at], 0u);
  if (n == 0u) {
    return;
  }
  let logit = logits[at];
  var factor = 1.0;
  if (n >= SEEN) {
    factor = select(sampling.repetition_penalty, sampling.inverse_repetition_penalty, logit > 0.0);
  }
  let n_generated = n % SEEN;
  var penalty = 0.0;
  if (n_generated > 0u) {
    penalty = fma(f32(n_generated), sampling.frequency_penalty, sampling.presence_penalty);
  }
  logits[at] = fma(logit, factor, -penalty);
}
