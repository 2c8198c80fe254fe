// With subgroups the first strides of the tree are butterflies over registers: the same additions, so the same bits.

const EXCHANGE: u32 = 32u;    // threads that exchange registers: the smallest subgroup, at most 32

fn exchange_sum(value: f32, width: u32) -> f32 {
  var sum = value;
  for (var stride = 1u; stride < min(width, EXCHANGE); stride *= 2u) {
    sum += subgroupShuffleXor(sum, stride);
  }
  return sum;
}

fn exchange_max(value: f32, width: u32) -> f32 {
  var most = value;
  for (var stride = 1u; stride < min(width, EXCHANGE); stride *= 2u) {
    most = max(most, subgroupShuffleXor(most, stride));
  }
  return most;
}
