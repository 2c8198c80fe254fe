// The state of the loop, which the CPU only reads between windows. The same struct stands in src/decoder/control.rs.

struct Control {
  n_committed: u32,              // positions whose keys and values are in the cache for good
  n_nodes: u32,                  // live nodes of this step, 0 when there is nothing to do
  n_context: u32,                // tokens in the context: prompt and generated
  n_generated: u32,              // tokens generated for this request
  max_context: u32,              // the request ends when the context holds this many tokens
  finished: u32,                 // 0 running, 1 an end token was generated, 2 max_context was reached
  n_steps: u32,                  // decode steps that processed at least one node
  n_end_tokens: u32,             // how many of end_tokens are in use
  n_given: u32,                  // the first nodes of the step, which the context holds already; the others are drafted
  n_memory: u32,                 // tokens in the memory
  match_length: u32,             // the context's last tokens that the draft's best candidate follows, 0 without a draft
  n_candidates: u32,             // candidates of the draft
  n_new: u32,                    // tokens that this step generated
  n_top: u32,                    // the most probable tokens to tell for each, where log-probabilities are asked for
  end_tokens: array<u32, 24>,
  tokens: array<u32, 32>,        // the token of each node
  ancestors: array<u32, 32>,     // bit j of node i: node j is an ancestor of i, or i itself
  slots: array<u32, 32>,         // the cache row of each node
  hits: array<u32, 8>,           // of each match length from 1 on: steps whose candidates were right, in sixteenths
  tries: array<u32, 8>,          // of each match length: steps that had candidates, in sixteenths
  candidate_tokens: array<u32, 64>,    // what the draft's candidates have for the next token
  candidate_orders: array<u32, 64>,    // their match lengths
  recent: array<u32, 256>,       // generated token number g stands at g % 256
  step_stats: array<u32, 64>,    // of decode step s at s % 64: nodes, n_accepted, match_length, a byte each
  step_paths: array<u32, 64>,    // bit i: node i is on the accepted path
}
