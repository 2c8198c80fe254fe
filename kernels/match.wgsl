// candidates = the positions of memory and context that follow the context's last tokens, the best of each chunk.
// A candidate is its match length, the number of tokens before it that are the context's last, and its position.

const MAX_SEQ_LEN: u32 = 256u;
const MEMORY: u32 = 32768u;    // tokens that the memory has room for; the context stands behind it
const CHUNK: u32 = 1024u;      // positions of a workgroup
const WG: u32 = 256u;          // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> text: array<u32>;                // [MEMORY + MAX_SEQ_LEN]
@group(0) @binding(2) var<storage, read_write> candidates: array<u32>;    // [chunks, PER_CHUNK] length << 24 | position

const KEYS: u32 = CHUNK;       // a power of two
const MAX_ORDER: u32 = 8u;     // the longest match that is told from a shorter one
const PER_CHUNK: u32 = 8u;     // candidates that a chunk keeps
const NO_TOKEN: u32 = 0xFFFFFFFFu;

var<workgroup> suffix: array<u32, MAX_ORDER>;      // the context's last tokens, the last one first
var<workgroup> n_found: atomic<u32>;
var<workgroup> n_keys: u32;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let end = MEMORY + control.n_context;
  if (lid < MAX_ORDER) {
    suffix[lid] = select(NO_TOKEN, text[max(end, lid + 1u) - lid - 1u], lid < control.n_context);
  }
  if (lid == 0u) {
    atomicStore(&n_found, 0u);
  }
  workgroupBarrier();
  for (var i = lid; i < CHUNK; i += WG) {
    let position = wid.x * CHUNK + i;
    let length = match_length(position, end);
    if (length > 0u) {
      keys[atomicAdd(&n_found, 1u)] = (length << 24u) | position;
    }
  }
  workgroupBarrier();
  if (lid == 0u) {
    n_keys = atomicLoad(&n_found);
  }
  let n = workgroupUniformLoad(&n_keys);
  for (var i = n + lid; i < CHUNK; i += WG) {
    keys[i] = 0u;
  }
  // Which thread found which key is chance; their order is not.
  if (n > 0u) {
    sort_keys(lid);
  }
  if (lid < PER_CHUNK) {
    candidates[wid.x * PER_CHUNK + lid] = select(0u, keys[lid], lid < n);
  }
}

// How many of the context's last tokens, at most MAX_ORDER, stand in front of `position`; 0 where nothing follows.
fn match_length(position: u32, end: u32) -> u32 {
  let in_memory = position < MEMORY;
  let first = select(MEMORY, 0u, in_memory);
  if (position >= select(end, control.n_memory, in_memory) || text[position] == NO_TOKEN) {
    return 0u;
  }
  var length = 0u;
  while (length < MAX_ORDER && position > first + length) {
    let token = text[position - length - 1u];
    if (token == NO_TOKEN || token != suffix[length]) {
      break;
    }
    length++;
  }
  return length;
}
