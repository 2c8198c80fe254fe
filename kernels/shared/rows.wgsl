// y[node, local] = W[row_of(group, local)] · input[node] for the rows of one workgroup. LANES adjacent threads share a
// row; partial `l` adds the blocks l, l + LANES, … and the tree adds the partials. Each thread holds ROWS rows and TILE
// tokens in registers, which changes no order.

@group(0) @binding(3) var<storage, read> codes: array<vec4<u32>>;    // [N_ROWS, N_BLOCKS] blocks
@group(0) @binding(4) var<storage, read> scales: array<u32>;         // [N_ROWS, N_BLOCKS] scales, packed

const GROUPS: u32 = WG / LANES;
const WG_ROWS: u32 = GROUPS * ROWS;
const SUMS: u32 = ROWS * TILE;

var<workgroup> y: array<f32, TOKENS * WG_ROWS>;
var<workgroup> lane_sums: array<f32, 4u * WG>;

fn multiply_rows(group: u32, lid: u32, n_nodes: u32) {
  let lane = lid % LANES;
  let member = lid / LANES;
  var first_block: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    first_block[r] = min(row_of(group, r * GROUPS + member), N_ROWS - 1u) * N_BLOCKS;
  }
  for (var tile = 0u; tile < n_nodes; tile += TILE) {
    // Written out, since not every driver clears a variable again for each turn of a loop.
    var acc: array<f32, SUMS>;
    for (var i = 0u; i < SUMS; i++) {
      acc[i] = 0.0;
    }
    for (var block = lane; block < N_BLOCKS; block += LANES) {
      var w: array<Weights, ROWS>;
      for (var r = 0u; r < ROWS; r++) {
        w[r] = load_weights(first_block[r] + block);
      }
      for (var t = 0u; t < TILE; t++) {
        let h = load_input(tile + t, block);
        for (var r = 0u; r < ROWS; r++) {
          acc[t * ROWS + r] = add_block(acc[t * ROWS + r], w[r], h);
        }
      }
    }
    for (var first = 0u; first < SUMS; first += 4u) {
      add_lanes(&acc, tile, first, lid);
    }
  }
  workgroupBarrier();
}

// The tree over the lanes, for four of the sums at once.
fn add_lanes(acc: ptr<function, array<f32, SUMS>>, tile: u32, first: u32, lid: u32) {
  const EXCHANGED = min(EXCHANGE, LANES);
  const LEFT = LANES / EXCHANGED;
  workgroupBarrier();
  for (var i = 0u; i < min(SUMS - first, 4u); i++) {
    let sum = exchange_sum((*acc)[first + i], LANES);
    if (lid % EXCHANGED == 0u) {
      lane_sums[i * (WG / EXCHANGED) + lid / EXCHANGED] = sum;
    }
  }
  workgroupBarrier();
  for (var i = lid; i < min(SUMS - first, 4u) * GROUPS; i += WG) {
    var tree: array<f32, LEFT>;
    for (var j = 0u; j < LEFT; j++) {
      tree[j] = lane_sums[i * LEFT + j];
    }
    for (var stride = 1u; stride < LEFT; stride *= 2u) {
      for (var j = 0u; j + stride < LEFT; j += 2u * stride) {
        tree[j] += tree[j + stride];
      }
    }
    let a = first + i / GROUPS;
    y[(tile + a / ROWS) * WG_ROWS + (a % ROWS) * GROUPS + i % GROUPS] = tree[0];
  }
}
