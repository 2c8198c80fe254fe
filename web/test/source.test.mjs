// Reading a model's bytes from URLs and files, in a real browser and from another origin.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, test } from "node:test";
import { openTestPage, startBrowser, startServer } from "./browser.mjs";
import { serveFiles } from "./files.mjs";

const MIB = 1 << 20;
const bytes = Buffer.alloc(37 * MIB + 11);
for (let i = 0; i < bytes.length; i += 4096) bytes.writeUInt32LE(i, i & ~3);
const hash = createHash("sha256").update(bytes).digest("hex");
const files = {
  plain: { bytes },
  hiding: { bytes, hides: true },
  sequential: { bytes, ranges: false },
  unsized: { bytes, ranges: false, length: false },
  flaky: { bytes, drops: 3 },
  breaking: { bytes: bytes.subarray(0, 8 * MIB), ranges: false, breaks: MIB },
  page: { bytes: Buffer.from("<!doctype html>"), type: "text/html; charset=utf-8" },
  empty: { bytes: Buffer.alloc(0) },
  short: { bytes: bytes.subarray(0, 1000), short: true },
};

let server, browser, page, web;
before(async () => {
  [server, browser, web] = await Promise.all([startServer(), startBrowser(), serveFiles(files)]);
  page = await openTestPage(browser, server);
});
after(async () => {
  await browser?.close();
  await server?.close();
  await web?.close();
});

/** Reads a whole file as the engine does: a header that grows, then forward in 16 MiB windows. */
function readAll(name) {
  return page.evaluate((url) => window.readAll(url), web.address + name);
}

for (const name of ["plain", "hiding", "sequential", "flaky"]) {
  test(`the bytes of the ${name} server`, async () => {
    Object.assign(web.seen, { requests: 0, mostOpen: 0 });
    const read = await readAll(name);
    assert.deepEqual(read, { size: bytes.length, hash });
    if (name === "flaky") assert.equal(files.flaky.drops, 0);
    if (name === "plain") assert.ok(web.seen.mostOpen <= 16 * MIB, `${web.seen.mostOpen} bytes were open at once`);
  });
}

test("the bytes of a file", async () => {
  const read = await page.evaluate((url) => window.readFile(url), web.address + "plain");
  assert.deepEqual(read, { size: bytes.length, hash });
});

const refusals = {
  missing: /\/missing answered 404 Not Found: check the address$/,
  page: /\/page answered with a web page \(text\/html; charset=utf-8\) instead of a model: check the address/,
  short: /\/short answered 999 bytes instead of 1000: try again$/,
  unsized: /^the server of .*\/unsized does not tell its length: download it and choose the file/,
  breaking: /^the download of .*\/breaking broke off \(.*\): check the network and try again$/,
};
for (const [name, sentence] of Object.entries(refusals)) {
  test(`the error of the ${name} server`, async () => {
    const error = await readAll(name).catch((error) => error);
    assert.ok(error instanceof Error, `it read ${JSON.stringify(error)}`);
    const message = await page.evaluate((url) => window.readAll(url).catch((error) => error.message), web.address + name);
    assert.match(message, sentence);
  });
}

test("the error of a server that is not there", async () => {
  const message = await page.evaluate(() => window.readAll("http://127.0.0.1:9/x").catch((error) => error.message));
  assert.match(message, /^http:\/\/127\.0\.0\.1:9\/x cannot be reached \(.*\): check the address/);
});
