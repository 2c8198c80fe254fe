// A real Chromium and a page of the development server, for tests and for the headless demo.
//
// FORERUN_CHROMIUM names another Chromium (one with a real GPU, say), FORERUN_CHROMIUM_FLAGS replaces the flags.

import { chromium } from "playwright-core";
import { fileURLToPath } from "node:url";
import { createServer, preview } from "vite";

const configFile = fileURLToPath(new URL("../vite.config.ts", import.meta.url));
const SOFTWARE_GPU = "--enable-unsafe-webgpu --use-webgpu-adapter=swiftshader --enable-features=Vulkan --no-sandbox";

/** Starts the development server on a free port of this machine. */
export async function startServer() {
  const server = await createServer({
    configFile,
    logLevel: "warn",
    server: { port: 0, host: "127.0.0.1", hmr: false, watch: null },
  });
  await server.listen();
  const address = `http://127.0.0.1:${server.httpServer.address().port}/`;
  return { address, close: () => server.close() };
}

/** Serves the demo pages as they were built. */
export async function startPreview() {
  const server = await preview({ configFile, logLevel: "warn", preview: { port: 0, host: "127.0.0.1" } });
  const address = `http://127.0.0.1:${server.httpServer.address().port}/`;
  return { address, close: () => server.close() };
}

/** Starts Chromium. */
export async function startBrowser() {
  const executablePath = process.env.FORERUN_CHROMIUM ?? "/usr/bin/chromium";
  const args = (process.env.FORERUN_CHROMIUM_FLAGS ?? SOFTWARE_GPU).split(/\s+/).filter(Boolean);
  return chromium.launch({ executablePath, args, headless: true });
}

/** A page whose console and errors go to this program's stderr. */
export async function openPage(browser, address) {
  const page = await browser.newPage();
  page.on("console", (message) => {
    if (message.type() !== "debug") console.error(`[page] ${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => console.error(`[page] ${error}`));
  await page.goto(address);
  return page;
}

/** The page whose functions the tests call. */
export async function openTestPage(browser, server) {
  const page = await openPage(browser, `${server.address}@fs${fileURLToPath(new URL("blank.html", import.meta.url))}`);
  await page.waitForFunction(() => "run" in window);
  return page;
}
