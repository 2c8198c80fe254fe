// The rows of a product's workgroup follow each other.

fn row_of(group: u32, local: u32) -> u32 {
  return group * WG_ROWS + local;
}
