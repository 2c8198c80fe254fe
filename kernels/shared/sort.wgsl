// Sorts `keys` from the largest to the smallest, in a bitonic network over KEYS elements, a power of two. All threads
// of the workgroup must call it; what they wrote to `keys` before is seen.

var<workgroup> keys: array<u32, KEYS>;

fn sort_keys(lid: u32) {
  for (var size = 2u; size <= KEYS; size *= 2u) {
    for (var stride = size / 2u; stride > 0u; stride /= 2u) {
      workgroupBarrier();
      for (var i = lid; i < KEYS / 2u; i += WG) {
        let low = 2u * i - (i & (stride - 1u));
        let high = low + stride;
        let descends = (low & size) == 0u;
        if ((keys[low] < keys[high]) == descends) {
          let key = keys[low];
          keys[low] = keys[high];
          keys[high] = key;
        }
      }
    }
  }
  workgroupBarrier();
}
