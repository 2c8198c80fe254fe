// Serves and builds the demo pages in demos/, with the package straight from its sources.

import { createReadStream, existsSync, readdirSync, statSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { basename, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type Connect, type Plugin } from "vite";

const repository = fileURLToPath(new URL("..", import.meta.url));
const demos = join(repository, "demos");
const models = resolve(process.env.FORERUN_MODELS ?? join(repository, "models"));

/** Serves `/models/NAME` with byte ranges; what is not there is a plain 404, not the page that Vite falls back to. */
function serveModels(): Plugin {
  const serve: Connect.NextHandleFunction = (request: IncomingMessage, response: ServerResponse, next) => {
    const path = decodeURIComponent((request.url ?? "").split("?")[0] ?? "");
    if (!path.startsWith("/models/")) return next();
    const file = join(models, basename(path));
    if (!existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404, { "content-type": "text/plain" }).end("no such model\n");
      return;
    }
    const size = statSync(file).size;
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const start = range ? Number(range[1]) : 0;
    const end = range?.[2] ? Math.min(Number(range[2]), size - 1) : size - 1;
    if (start > end) {
      response.writeHead(416, { "content-range": `bytes */${size}` }).end();
      return;
    }
    response.writeHead(range ? 206 : 200, {
      "accept-ranges": "bytes",
      "content-type": "application/octet-stream",
      "content-length": end - start + 1,
      ...(range ? { "content-range": `bytes ${start}-${end}/${size}` } : {}),
    });
    if (request.method === "HEAD") response.end();
    else createReadStream(file, { start, end }).pipe(response);
  };
  return {
    name: "serve-models",
    configureServer: (server) => void server.middlewares.use(serve),
    configurePreviewServer: (server) => void server.middlewares.use(serve),
  };
}

/** Every folder of demos/ with a page in it, and the list of them. */
function pages(): string[] {
  const folders = readdirSync(demos).map((name) => join(demos, name, "index.html"));
  return [join(demos, "index.html"), ...folders].filter((page) => existsSync(page));
}

export default defineConfig({
  root: demos,
  base: "./",
  cacheDir: join(repository, "web/node_modules/.vite"),
  resolve: { alias: { forerun: join(repository, "web/src/index.ts") } },
  server: { fs: { allow: [repository] } },
  worker: { format: "es" },
  build: {
    outDir: join(repository, "dist"),
    emptyOutDir: true,
    target: "es2023",
    rolldownOptions: { input: pages() },
  },
  plugins: [serveModels()],
});
