// threshold = the key of the lowest logit that min-p, top-k and top-p leave. Equal logits share their fate. All sums
// are of integers, so that they have no order.

const VOCAB_SIZE: u32 = 512u;

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> sampling: Sampling;
@group(0) @binding(2) var<storage, read> logits: array<f32>;                // [n_nodes, VOCAB_SIZE]
@group(0) @binding(3) var<storage, read_write> thresholds: array<u32>;      // [n_nodes]

const WG: u32 = 256u;                // threads per workgroup, one for each value of a byte
const BATCH: u32 = 8u;               // logits that a thread reads at once, so that it waits less often
const MASS: f32 = 268435456.0;       // 2^28; the mass of the largest logit is one less

var<workgroup> bins: array<atomic<u32>, WG>;     // mass of the logits whose key has this byte
var<workgroup> sums: array<u32, WG + 1u>;        // mass of this bin and of those above
var<workgroup> chosen: u32;
var<workgroup> most: atomic<u32>;
var<workgroup> total: array<atomic<u32>, 2>;     // mass of all that are left: lower 14 bits, upper ones

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let node = wid.x;
  if (node >= control.n_nodes) {
    return;
  }
  if (lid < 2u) {
    atomicStore(&total[lid], 0u);
  }
  if (lid == 0u) {
    atomicStore(&most, 0u);
    sums[WG] = 0u;
  }
  workgroupBarrier();
  var mine = 0u;
  for (var first = lid; first < VOCAB_SIZE; first += BATCH * WG) {
    let keys = read_keys(node, first);
    for (var i = 0u; i < BATCH; i++) {
      mine = max(mine, keys[i]);
    }
  }
  atomicMax(&most, mine);
  workgroupBarrier();
  let largest = logit_of(atomicLoad(&most));
  var threshold = max(key_of(largest + sampling.min_p_below), 1u);
  if (sampling.top_k > 0u) {
    threshold = max(threshold, select_key(node, lid, 1u, false, 0.0, 0u));
  }
  if (sampling.top_p < 65536u) {
    // The mass of all logits that are left, which tells the unit in which it fits 31 bits.
    var low = 0u;
    var high = 0u;
    for (var first = lid; first < VOCAB_SIZE; first += BATCH * WG) {
      let keys = read_keys(node, first);
      for (var i = 0u; i < BATCH; i++) {
        if (keys[i] >= threshold) {
          let mass = mass_of(keys[i], largest);
          low += mass & 0x3FFFu;
          high += mass >> 14u;
        }
      }
    }
    atomicAdd(&total[0], low);
    atomicAdd(&total[1], high);
    workgroupBarrier();
    let bits = 32u - countLeadingZeros(atomicLoad(&total[1]) + (atomicLoad(&total[0]) >> 14u));
    let shift = max(bits, 17u) - 17u;
    threshold = max(threshold, select_key(node, lid, threshold, true, largest, shift));
  }
  if (lid == 0u) {
    thresholds[node] = threshold;
  }
}

// The largest key such that the logits from `lowest` on whose keys are not below it have the mass that is asked for:
// top_k, of 1 each, or top_p of all. A byte at a time, from the highest.
fn select_key(node: u32, lid: u32, lowest: u32, by_mass: bool, largest: f32, shift: u32) -> u32 {
  var key = 0u;
  var left = sampling.top_k;
  for (var byte = 0u; byte < 4u; byte++) {
    let down = 24u - 8u * byte;
    atomicStore(&bins[lid], 0u);
    if (lid == 0u) {
      chosen = 0u;
    }
    workgroupBarrier();
    // Neighbours often share a bin: they are added up before.
    var bin = 0u;
    var sum = 0u;
    for (var first = lid; first < VOCAB_SIZE; first += BATCH * WG) {
      let keys = read_keys(node, first);
      for (var i = 0u; i < BATCH; i++) {
        let k = keys[i];
        if (k < lowest || ((k >> down) >> 8u) != key) {
          continue;
        }
        if (bin != ((k >> down) & 255u)) {
          atomicAdd(&bins[bin], sum);
          bin = (k >> down) & 255u;
          sum = 0u;
        }
        if (by_mass) {
          sum += mass_of(k, largest) >> shift;
        } else {
          sum += 1u;
        }
      }
    }
    atomicAdd(&bins[bin], sum);
    workgroupBarrier();
    sum_from_above(lid);
    if (by_mass && byte == 0u) {
      left = max(portion(sums[0]), 1u);
    }
    if (sums[lid] >= left && sums[lid + 1u] < left) {
      chosen = lid;
    }
    workgroupBarrier();
    key = (key << 8u) | chosen;
    left -= min(sums[chosen + 1u], left);
    workgroupBarrier();
  }
  return key;
}

fn sum_from_above(lid: u32) {
  var sum = atomicLoad(&bins[lid]);
  for (var stride = 1u; stride < WG; stride *= 2u) {
    sums[lid] = sum;
    workgroupBarrier();
    if (lid + stride < WG) {
      sum += sums[lid + stride];
    }
    workgroupBarrier();
  }
  sums[lid] = sum;
  workgroupBarrier();
}

// top_p of a mass.
fn portion(mass: u32) -> u32 {
  return (mass >> 16u) * sampling.top_p + (((mass & 0xFFFFu) * sampling.top_p) >> 16u);
}

// The keys of every WG-th logit of a node from `first` on, 0 behind the last.
fn read_keys(node: u32, first: u32) -> array<u32, BATCH> {
  var values: array<f32, BATCH>;
  for (var i = 0u; i < BATCH; i++) {
    values[i] = logits[node * VOCAB_SIZE + min(first + i * WG, VOCAB_SIZE - 1u)];
  }
  var keys: array<u32, BATCH>;
  for (var i = 0u; i < BATCH; i++) {
    keys[i] = select(0u, key_of(values[i]), first + i * WG < VOCAB_SIZE);
  }
  return keys;
}

fn mass_of(key: u32, largest: f32) -> u32 {
  return min(u32(exponential((logit_of(key) - largest) * sampling.inverse_temperature) * MASS), u32(MASS) - 1u);
}
