// The chat page as a person uses it, with the keyboard, on a tiny random model.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPage, startBrowser, startServer } from "./browser.mjs";
import { serveFiles } from "./files.mjs";
import { tinyModel } from "./tiny.mjs";

let server, browser, web;
before(async () => {
  const files = { "tiny.gguf": { bytes: tinyModel() }, page: { bytes: Buffer.from("<p>"), type: "text/html" } };
  [server, browser, web] = await Promise.all([startServer(), startBrowser(), serveFiles(files)]);
});
after(async () => {
  await browser?.close();
  await server?.close();
  await web?.close();
});

const open = (name, query = "") =>
  openPage(browser, `${server.address}chat/?model=${encodeURIComponent(web.address + name)}&${query}`);
const state = (page, wanted) => page.waitForSelector(`html[data-state="${wanted}"]`, { state: "attached", timeout: 120_000 });

test("a chat", async () => {
  const page = await open("tiny.gguf", "max=24&mode=greedy");
  await page.focus("#url");
  await page.keyboard.press("Enter");
  await state(page, "ready");
  assert.match(await page.textContent("#adapter"), /\w/);
  assert.equal(await page.textContent("#mode-name"), "greedy");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "question");

  await page.keyboard.type("Hello");
  await page.keyboard.press("Enter");
  await state(page, "answering");
  await state(page, "ready");
  assert.equal(await page.textContent(".message.user .text"), "Hello");
  assert.ok((await page.textContent(".message.assistant .text")).length > 0);
  assert.match(await page.textContent(".message.assistant .stats"), /^\d+ tokens · [\d.]+ tokens\/s · first after \d+ ms( · length limit)?$/);
  assert.match(await page.textContent("#speed"), /^[\d.]+ tokens\/s$/);

  await page.evaluate(() => (document.querySelector("#max").value = "400"));
  await page.keyboard.type("Go on");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant .text")[1]?.textContent);
  await page.keyboard.press("Escape");
  await state(page, "ready");
  assert.match(await page.textContent(".message.assistant:last-child .stats"), / · stopped$/);

  await page.click("#new-chat");
  assert.equal(await page.locator(".message").count(), 0);
  assert.ok(await page.isVisible("#suggestions"));
  await page.click("#change-model");
  await state(page, "choose");
});

test("a wrong address is told in a sentence, and another can be given", async () => {
  const page = await open("page");
  await page.click("#load");
  await page.waitForSelector("#load-error:not([hidden])");
  assert.match(await page.textContent("#load-error"), /answered with a web page \(text\/html\) instead of a model: check the address/);
  await page.fill("#url", `${web.address}tiny.gguf`);
  await page.keyboard.press("Enter");
  await state(page, "ready");
  assert.ok(await page.isHidden("#load-error"));
});

test("a file that a person chose", async () => {
  const page = await open("nothing");
  await page.setInputFiles("#file", { name: "mine.gguf", mimeType: "", buffer: tinyModel() });
  await state(page, "ready");
  assert.equal(await page.textContent("#model-chip"), "mine.gguf");
});

test("every page has its icon", async () => {
  for (const name of ["", "chat/", "speculation/", "agreement/"]) {
    const address = server.address + name;
    const [, icon] = /<link rel="icon" href="([^"]+)"/.exec(await (await fetch(address)).text());
    const answer = await fetch(new URL(icon, address));
    assert.match(answer.headers.get("content-type"), /svg/, `${name}: ${icon}`);
  }
});
