// The speculation page on a tiny random model: guessed tokens, the chart, the tree, and the comparison.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPage, startBrowser, startServer } from "./browser.mjs";
import { serveFiles } from "./files.mjs";
import { tinyModel } from "./tiny.mjs";

let server, browser, web;
before(async () => {
  const files = { "tiny.gguf": { bytes: tinyModel() } };
  [server, browser, web] = await Promise.all([startServer(), startBrowser(), serveFiles(files)]);
});
after(async () => {
  await browser?.close();
  await server?.close();
  await web?.close();
});

test("an answer with guesses, and the same without", async () => {
  const model = encodeURIComponent(`${web.address}tiny.gguf`);
  const query = `model=${model}&mode=tree4&max=48&text=&question=abababababababab&run`;
  const page = await openPage(browser, `${server.address}speculation/?${query}`);
  await page.waitForSelector('html[data-state="ready"]', { state: "attached", timeout: 180_000 });
  assert.match(await page.textContent("#status"), /^\d+ tokens in \d+ steps$/);
  assert.ok((await page.textContent("#output")).length > 0);
  assert.ok((await page.locator("#chart .bar-mark").count()) > 0);
  assert.ok((await page.locator("#tree rect").count()) > 1);
  assert.match(await page.textContent("#gain"), /^\d\.\d\d$/);
  await page.click("#compare");
  await page.waitForFunction(() => /tokens (are|differ)/.test(document.querySelector("#comparison").textContent), null, { timeout: 60_000 });
  assert.match(await page.textContent("#comparison"), /The tokens are the same\.$/);
});
