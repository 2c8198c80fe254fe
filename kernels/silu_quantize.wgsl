// act = quantised(silu(gate) * up). The products come from a kernel of their own.

const HIDDEN_DIM: u32 = 128u;
const WG: u32 = 64u;             // threads per workgroup, four elements each

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> gate_up: array<vec4<f32>>;     // [n_nodes, gate and up, HIDDEN_DIM / 4]
@group(0) @binding(2) var<storage, read_write> h: array<QuantBlock>;    // [n_nodes, HIDDEN_DIM / 32]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  let node = wid.y;
  if (node >= control.n_nodes) {
    return;
  }
  let i = wid.x * WG + lid;
  let at = node * (HIDDEN_DIM / 2u) + min(i, HIDDEN_DIM / 4u - 1u);
  let gate = gate_up[at];
  let up = gate_up[at + HIDDEN_DIM / 4u];
  var act: vec4<f32>;
  for (var e = 0u; e < 4u; e++) {
    act[e] = silu_product(gate[e], up[e]);
  }
  let quantized = quantize4(act, lid);
  if (i < HIDDEN_DIM / 4u) {
    store_quantized(node * (HIDDEN_DIM / 32u) + i / 8u, i % 8u, quantized);
  }
}
