// Replays a recorded step: one call from wasm for the whole step, not three for every dispatch.

/**
 * @param {GPUComputePassEncoder} pass
 * @param {GPUComputePipeline[]} pipelines one a dispatch
 * @param {GPUBindGroup[]} groups one a dispatch
 * @param {Uint32Array} workgroups x, y and z of each dispatch
 */
export function replay(pass, pipelines, groups, workgroups) {
  for (let i = 0, at = 0; i < pipelines.length; i += 1, at += 3) {
    pass.setPipeline(pipelines[i]);
    pass.setBindGroup(0, groups[i]);
    pass.dispatchWorkgroups(workgroups[at], workgroups[at + 1], workgroups[at + 2]);
  }
}
