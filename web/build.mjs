// Builds the package: dist/ from src/, beside the engine in pkg/ (which ./x web leaves there).

import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
rmSync(here("dist"), { recursive: true, force: true });
execFileSync(process.execPath, [here("node_modules/typescript/bin/tsc"), "-p", here("tsconfig.build.json")], { stdio: "inherit" });

// The compiler renames imports, but not the address of the worker, which bundlers look for in these very words.
const engine = readFileSync(here("dist/engine.js"), "utf8");
const renamed = engine.replace('new URL("./worker.ts", import.meta.url)', 'new URL("./worker.js", import.meta.url)');
if (renamed === engine) throw new Error("dist/engine.js no longer starts its worker in the expected words: mend build.mjs");
writeFileSync(here("dist/engine.js"), renamed);
