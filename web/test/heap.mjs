// How much memory of its own the engine takes for a real model: the weights must not gather there on their way to the
// GPU. `npm run test:heap` loads qwen2.5-0.5b.gguf, or the model named behind it, from the models folder.

import { openTestPage, startBrowser, startServer } from "./browser.mjs";

const MOST = 256 << 20;
const name = process.argv[2] ?? "qwen2.5-0.5b.gguf";
let server, browser;
try {
  server = await startServer();
  browser = await startBrowser();
  const page = await openTestPage(browser, server);
  const request = {
    options: { contextLength: 512, fusion: "none" },
    prompt: "The capital of France is",
    maxTokens: 2,
    address: `${server.address}models/${name}`,
    asFile: false,
  };
  const { after, completion } = await page.evaluate((request) => window.run(request), request);
  console.log(`${name} on ${after.adapter}: ${(after.heapBytes / 2 ** 20).toFixed(1)} MiB of heap, and it says "${completion.text}"`);
  if (after.heapBytes > MOST) throw new Error(`the heap holds more than ${MOST / 2 ** 20} MiB`);
} catch (error) {
  console.error(`the heap test failed: ${error.message}`);
  process.exitCode = 1;
} finally {
  await browser?.close();
  await server?.close();
}
