// Sums and maxima over aligned groups of adjacent threads, in the order of the adjacent-first binary tree. Every
// thread of a group gets the result. All threads of the workgroup must call these.

var<workgroup> scratch: array<f32, WG>;

fn group_sum(value: f32, lid: u32, width: u32) -> f32 {
  var sum = exchange_sum(value, width);
  for (var stride = EXCHANGE; stride < width; stride *= 8u) {
    let fan = min(width / stride, 8u);
    workgroupBarrier();
    scratch[lid] = sum;
    workgroupBarrier();
    sum = tree_of_scratch(lid & ~(stride * fan - 1u), stride, fan);
  }
  return sum;
}

fn group_max(value: f32, lid: u32, width: u32) -> f32 {
  var most = exchange_max(value, width);
  for (var stride = EXCHANGE; stride < width; stride *= 8u) {
    let fan = min(width / stride, 8u);
    workgroupBarrier();
    scratch[lid] = most;
    workgroupBarrier();
    let first = lid & ~(stride * fan - 1u);
    for (var i = 0u; i < fan; i++) {
      most = max(most, scratch[first + i * stride]);
    }
  }
  return most;
}

// The tree over `fan` <= 8 elements of scratch, `stride` apart.
fn tree_of_scratch(first: u32, stride: u32, fan: u32) -> f32 {
  if (fan == 1u) { return scratch[first]; }
  let a = scratch[first] + scratch[first + stride];
  if (fan == 2u) { return a; }
  let b = scratch[first + 2u * stride] + scratch[first + 3u * stride];
  if (fan == 4u) { return a + b; }
  let c = scratch[first + 4u * stride] + scratch[first + 5u * stride];
  let d = scratch[first + 6u * stride] + scratch[first + 7u * stride];
  return (a + b) + (c + d);
}
