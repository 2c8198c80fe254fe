// h = quantised(x / rms(x) * weight), one workgroup per node.

const DIM: u32 = 64u;            // model width
const INV_DIM: f32 = 0.015625;   // 1 / DIM
const EPS: f32 = 1e-6;
const WG: u32 = 64u;             // threads per workgroup

@group(0) @binding(0) var<storage, read> control: Control;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;            // [n_nodes, DIM / 4]
@group(0) @binding(2) var<storage, read> vectors: array<vec4<f32>>;      // the norm's weight [DIM / 4] first
@group(0) @binding(3) var<storage, read_write> h: array<QuantBlock>;     // [n_nodes, DIM / 32]

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {
  if (wid.x >= control.n_nodes) {
    return;
  }
  norm_quantize(wid.x, lid);
}

fn store_normed(node: u32, i: u32, q: Quantized) {
  store_quantized(node * (DIM / 32u) + i / 8u, i % 8u, q);
}
