// The state of the loop, which the CPU only reads between windows. The same struct stands in src/decoder/control.rs.

struct Control {
  n_committed: u32,              // cache rows that hold committed tokens
  n_nodes: u32,                  // live nodes of this step, 0 when there is nothing to do
  n_context: u32,                // tokens in the context: prompt and generated
  n_generated: u32,              // tokens generated for this request
  max_context: u32,              // the request ends when the context holds this many tokens
  finished: u32,                 // 0 running, 1 an end token was generated, 2 max_context was reached
  n_steps: u32,                  // decode steps that processed at least one node
  n_end_tokens: u32,             // how many of end_tokens are in use
  end_tokens: array<u32, 24>,
  tokens: array<u32, 32>,        // the token of each node
  ancestors: array<u32, 32>,     // bit j of node i: node j is an ancestor of i, or i itself
  recent: array<u32, 256>,       // generated token number g stands at g % 256
}
