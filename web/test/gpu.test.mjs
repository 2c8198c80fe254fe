// The engine's GPU layer in a real browser, in a window and in a worker.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openTestPage, startBrowser, startServer } from "./browser.mjs";

let server, browser, page;
before(async () => {
  server = await startServer();
  browser = await startBrowser();
  page = await openTestPage(browser, server);
});
after(async () => {
  await browser?.close();
  await server?.close();
});

function assertSound(report) {
  assert.ok(report.adapter.length > 0);
  assert.equal(report.api, "webgpu");
  for (const [check, fault] of report.checks) assert.equal(fault, null, check);
}

for (const limits of ["adapter", "default"]) {
  for (const plain of [false, true]) {
    test(`in a window: ${limits} limits, ${plain ? "without" : "with"} subgroups`, async (t) => {
      const report = await page.evaluate(([limits, plain]) => window.checkInWindow(limits, plain), [limits, plain]);
      t.diagnostic(JSON.stringify(report));
      assertSound(report);
      if (plain) assert.equal(report.subgroupSize, null);
      if (limits === "default") assert.equal(report.maxBinding, 128 << 20);
    });
  }
}

test("in a worker", async () => {
  assertSound(await page.evaluate(() => window.checkInWorker("adapter", false)));
});

test("without WebGPU the error says what to do", async () => {
  const message = await page.evaluate(async () => {
    Object.defineProperty(navigator, "gpu", { value: undefined, configurable: true });
    const error = await window.checkInWindow("adapter", false).catch((error) => error);
    delete navigator.gpu;
    return `${error.name}: ${error.message}`;
  });
  assert.match(message, /^GpuUnavailableError: this browser gives the page no WebGPU: open /);
});

test("without an adapter the error says what to do", async () => {
  const message = await page.evaluate(async () => {
    const gpu = { requestAdapter: async () => null };
    Object.defineProperty(navigator, "gpu", { value: gpu, configurable: true });
    const error = await window.checkInWindow("adapter", false).catch((error) => error);
    delete navigator.gpu;
    return `${error.name}: ${error.message}`;
  });
  assert.match(message, /^GpuUnavailableError: no GPU adapter was found/);
});
