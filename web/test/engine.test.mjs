// The engine as a page uses it, with a tiny random model, on whatever adapter the browser has.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openTestPage, startBrowser, startServer } from "./browser.mjs";
import { serveFiles } from "./files.mjs";
import { tinyModel } from "./tiny.mjs";

const model = tinyModel();
const PROMPT = "The quick brown fox jumps over the lazy dog and then some more. ";
const TOKENS = 48;
const files = {
  "tiny.gguf": { bytes: model },
  "short.gguf": { bytes: model.subarray(0, model.length - 1000) },
  "zip.gguf": { bytes: Buffer.concat([Buffer.from("PK\x03\x04"), Buffer.alloc(10_000)]) },
  "empty.gguf": { bytes: Buffer.alloc(0) },
};

let server, browser, page, web, url;
before(async () => {
  [server, browser, web] = await Promise.all([startServer(), startBrowser(), serveFiles(files)]);
  page = await openTestPage(browser, server);
  url = web.address + "tiny.gguf";
});
after(async () => {
  await browser?.close();
  await server?.close();
  await web?.close();
});

/** Loads a model, answers, and says what the engine was like before and after. */
function run(options = {}, { prompt = PROMPT, maxTokens = TOKENS, address = url, asFile = false } = {}) {
  return page.evaluate((request) => window.run(request), { options, prompt, maxTokens, address, asFile });
}

let expected;
test("a text is continued, and nothing is made while decoding", async (t) => {
  const { before, after, pieces, completion, phases } = await run();
  t.diagnostic(JSON.stringify(after));
  assert.equal(before.architecture, "llama");
  assert.equal(before.backend, "gpu");
  assert.equal(before.contextLength, 512);
  assert.ok(before.adapter.length > 0);
  assert.ok(before.heapBytes < 32 << 20, `${before.heapBytes} bytes of heap`);
  assert.deepEqual(phases, ["start", "header", "weights", "compile", "ready"]);
  assert.equal(completion.tokens.length, TOKENS);
  assert.equal(completion.promptTokens, PROMPT.length);
  assert.equal(completion.finishReason, "length");
  assert.equal(completion.mode, "adaptive");
  assert.ok(completion.ttftMs > 0 && completion.decodeMsPerToken > 0);
  assert.equal(pieces.join(""), completion.text);
  for (const kind of ["buffers", "bindings", "kernels"]) assert.equal(after[kind], before[kind], `${kind} made while decoding`);
  expected = completion.tokens;
});

const variants = {
  unfused: { fusion: "none" },
  fused: { fusion: "all" },
  "default limits": { limits: "default" },
  "no subgroups, greedy, from a file": { plain: true, mode: "greedy" },
};
for (const [name, options] of Object.entries(variants)) {
  test(`the same tokens: ${name}`, async () => {
    const { completion, before } = await run(options, { asFile: name.includes("file") });
    assert.deepEqual(completion.tokens, expected);
    assert.deepEqual(before.leftOut, []);
    if (options.fusion === "all") assert.ok(completion.dispatchesPerStep <= 6 * 2 + 10, `${completion.dispatchesPerStep} dispatches`);
  });
}

test("the CPU answers too", async () => {
  const { before, completion } = await run({ backend: "cpu" });
  assert.equal(before.backend, "cpu");
  assert.equal(before.adapter, null);
  assert.equal(completion.tokens.length, TOKENS);
});

test("a conversation is answered through the template, and its start is kept", async () => {
  const seen = await page.evaluate(() => window.converse());
  assert.equal(seen.first.promptTokens, "[user] Hello\n[assistant] ".length);
  assert.equal(seen.first.cachedTokens, 0);
  assert.ok(seen.second.cachedTokens >= seen.first.promptTokens, `${seen.second.cachedTokens} tokens were kept`);
});

test("leaving the loop ends the answer, and the next one works", async () => {
  const seen = await page.evaluate(() => window.leaveEarly());
  assert.equal(seen.left.finishReason, "abort");
  assert.ok(seen.left.tokens.length < 400, `${seen.left.tokens.length} tokens`);
  assert.equal(seen.bySignal.finishReason, "abort");
  assert.equal(seen.beforeStart, "AbortError");
  assert.deepEqual(seen.next, expected);
});

test("loading can be broken off", async () => {
  assert.equal(await page.evaluate((url) => window.abortLoading(url), url), "AbortError: the request was aborted");
});

test("requests wait for one another", async () => {
  const [one, two] = await page.evaluate(() => window.twoAtOnce());
  assert.deepEqual(one, two);
});

test("a prompt that does not fit is refused, and the next one works", async () => {
  const seen = await page.evaluate(() => window.tooLong());
  assert.match(seen.error, /^ContextOverflowError: the prompt needs a context of 60[01] tokens or more but this one holds 512/);
  assert.deepEqual(seen.next, expected);
});

test("a seed gives the same tokens in every mode", async () => {
  const { same, other, plain, errors } = await page.evaluate(() => window.sample());
  for (const tokens of same) assert.deepEqual(tokens, same[0]);
  assert.notDeepEqual(other, same[0]);
  assert.deepEqual(plain, expected);
  assert.match(errors[0], /^BadInputError: top_p is 2/);
  assert.match(errors[1], /^BadInputError: .*NaN/);
});

test("what was timed and what was answered is kept for the next visit", async () => {
  const seen = await page.evaluate((url) => window.keep(url), url);
  assert.ok(seen.phases.includes("calibrate") && !seen.again.includes("calibrate"), `${seen.phases}; ${seen.again}`);
  assert.ok(seen.timed[0] >= 1 && seen.timed[1] >= 2, `${seen.timed}`);
  assert.deepEqual(seen.window, seen.timed);
  // A head of 16 bytes, the answer and a separator.
  assert.equal(seen.memory, 16 + 4 * (24 + 1));
  assert.ok(seen.isKept && seen.isRestored);
  assert.equal(seen.emptied, 16);
  assert.match(seen.error, /^BadInputError: /);
  assert.deepEqual(seen.completion, expected.slice(0, 24));
  assert.deepEqual(seen.tokens, seen.completion);
});

test("log-probabilities are the same in every mode", async () => {
  const { told, error } = await page.evaluate(() => window.logprobs());
  const [{ tokens, logprobs }] = told;
  assert.deepEqual(tokens, expected.slice(0, 24));
  for (const other of told) assert.deepEqual(other.logprobs, logprobs);
  assert.deepEqual(logprobs.map(({ id }) => id), tokens);
  for (const { id, logprob, top } of logprobs) {
    assert.equal(top.length, 3);
    assert.deepEqual([top[0].id, top[0].logprob], [id, logprob]);
    assert.ok(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob && logprob < 0);
  }
  assert.match(error, /^BadInputError: logprobs asks for the 21/);
});

test("a disposed engine says so", async () => {
  assert.match(await page.evaluate(() => window.useDisposed()), /^AbortError: the engine was disposed of/);
});

const refusals = [
  ["short.gguf", {}, /^ModelFormatError: .*(tensor|ends|truncated)/],
  ["zip.gguf", {}, /^ModelFormatError: /],
  ["empty.gguf", {}, /^(ModelFormat|Io)Error: /],
  ["nothing.gguf", {}, /^IoError: .*answered 404/],
  ["tiny.gguf", { contextLength: 100_000 }, /^BadInputError: a context of 100000 tokens was asked for/],
  ["tiny.gguf", { fusion: "some" }, /^BadInputError: the options cannot be read/],
];
for (const [name, options, sentence] of refusals) {
  test(`the error for ${name} ${JSON.stringify(options)}`, async () => {
    const request = { options, prompt: PROMPT, maxTokens: 1, address: web.address + name, asFile: false };
    const told = await page.evaluate((request) => window.run(request).catch((error) => `${error.name}: ${error.message}`), request);
    assert.match(told, sentence);
  });
}
