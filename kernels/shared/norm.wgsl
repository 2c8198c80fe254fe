// h = x / rms(x) * weight, quantised, for one node. The 64 partials of the squares are added by every 64 threads
// alike, so that all of them hold the sum.

fn norm_quantize(node: u32, lid: u32) {
  let row = node * (DIM / 4u);
  var partial = 0.0;
  for (var i = lid % 64u; i < DIM / 4u; i += 64u) {
    let e = x[row + i];
    partial = fma(e.w, e.w, fma(e.z, e.z, fma(e.y, e.y, fma(e.x, e.x, partial))));
  }
  let squares = group_sum(partial, lid, 64u);
  let r = reciprocal_sqrt(fma(squares, INV_DIM, EPS));
  for (var first = 0u; first < DIM / 4u; first += WG) {
    let i = first + lid;
    var h = vec4<f32>(0.0);
    if (i < DIM / 4u) {
      h = x[row + i] * r * vectors[i];
    }
    let q = quantize4(h, lid);
    if (i < DIM / 4u) {
      store_normed(node, i, q);
    }
  }
}
