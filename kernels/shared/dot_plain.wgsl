// The integer dot product of 16 weight codes and 16 activation codes, where the built-in is missing.

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
  let lanes = signed_byte(a, 0u) * signed_byte(b, 0u) + signed_byte(a, 8u) * signed_byte(b, 8u)
    + signed_byte(a, 16u) * signed_byte(b, 16u) + signed_byte(a, 24u) * signed_byte(b, 24u);
  return lanes.x + lanes.y + lanes.z + lanes.w;
}

fn signed_byte(words: vec4<u32>, shift: u32) -> vec4<i32> {
  return bitcast<vec4<i32>>(words << vec4<u32>(24u - shift)) >> vec4<u32>(24u);
}
