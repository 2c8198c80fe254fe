// The demo page without a screen: loads the model, asks one question, prints the answer as it comes, and exits with 0.
//
// FORERUN_MODEL is the model's address (the page's own default if absent), FORERUN_QUESTION the question, FORERUN_QUERY
// more of the page's address (such as `fusion=none&context=512`), FORERUN_TIMEOUT the most minutes for all of it.

import { openPage, startBrowser, startPreview } from "./browser.mjs";

const question = process.env.FORERUN_QUESTION ?? "Name three colours.";
const minutes = Number(process.env.FORERUN_TIMEOUT ?? 20);
const deadline = performance.now() + minutes * 60_000;

/** What the page shows. */
function look() {
  const text = (selector) => document.querySelector(selector)?.textContent?.trim() ?? "";
  const answer = document.querySelector(".message.assistant");
  const error = [...document.querySelectorAll(".error")].find((place) => !place.hidden);
  return {
    state: document.documentElement.dataset.state,
    phase: text("#phase"),
    amount: text("#amount"),
    error: error?.textContent ?? "",
    adapter: text("#adapter"),
    answer: answer?.querySelector(".text")?.textContent ?? "",
    stats: answer?.querySelector(".stats")?.textContent ?? "",
    ...answer?.dataset,
  };
}

/** Looks at the page again and again until `isDone`. */
async function until(page, isDone, onLook) {
  for (;;) {
    const seen = await page.evaluate(look);
    onLook(seen);
    if (seen.error) throw new Error(seen.error);
    if (isDone(seen)) return seen;
    if (performance.now() > deadline) throw new Error(`the demo took longer than ${minutes} minutes: give it more with FORERUN_TIMEOUT`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

let server, browser;
try {
  server = await startPreview();
  browser = await startBrowser();
  const query = new URLSearchParams(process.env.FORERUN_QUERY ?? "");
  // Enough to see, and not too much for a GPU that is a program on the CPU.
  if (!query.has("max")) query.set("max", "16");
  if (process.env.FORERUN_MODEL) query.set("model", process.env.FORERUN_MODEL);
  const page = await openPage(browser, `${server.address}chat/?${query}`);
  await page.click("#load");

  let phase = "";
  const loaded = await until(page, (seen) => seen.state === "ready", (seen) => {
    if (seen.state === "loading" && seen.phase !== phase) console.error((phase = seen.phase));
  });
  console.log(`adapter: ${loaded.adapter}`);

  await page.fill("#question", question);
  await page.press("#question", "Enter");
  console.log(`question: ${question}`);
  process.stdout.write("answer: ");
  let printed = 0;
  const done = await until(page, (seen) => seen.state === "ready" && seen.stats, (seen) => {
    process.stdout.write(seen.answer.slice(printed));
    printed = seen.answer.length;
  });
  console.log(`\nmode: ${done.mode}`);
  console.log(`tokens per second: ${done.tokensPerSecond}`);
  console.log(`(${done.stats})`);
  if (!done.answer.trim()) throw new Error("the answer is empty");
} catch (error) {
  console.error(`the demo failed: ${error.message}`);
  process.exitCode = 1;
} finally {
  await browser?.close();
  await server?.close();
}
