// The GPU check inside a worker.

import init, { checkGpu } from "../pkg/forerun.js";

onmessage = async ({ data }) => {
  try {
    await init();
    postMessage({ report: JSON.parse(await checkGpu(data.limits, data.plain)) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
