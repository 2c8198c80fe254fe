// Without subgroups no thread sees another's registers: the tree starts in workgroup memory.

const EXCHANGE: u32 = 1u;    // threads that exchange registers

fn exchange_sum(value: f32, width: u32) -> f32 {
  return value;
}

fn exchange_max(value: f32, width: u32) -> f32 {
  return value;
}
