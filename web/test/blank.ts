// What the browser tests call.

import init, { checkGpu } from "../pkg/forerun.js";

async function checkInWindow(limits: string, plain: boolean): Promise<unknown> {
  await init();
  return JSON.parse(await checkGpu(limits, plain));
}

function checkInWorker(limits: string, plain: boolean): Promise<unknown> {
  const worker = new Worker(new URL("./check-worker.ts", import.meta.url), { type: "module" });
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data.report));
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage({ limits, plain });
  });
}

Object.assign(window, { checkInWindow, checkInWorker });
