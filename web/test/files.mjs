// A file server on an origin of its own, with the manners, good and bad, of the servers that models lie on.

import { createServer } from "node:http";

/**
 * Serves `files[name]`, `{ bytes, ranges?, type?, hides?, length?, breaks?, drops?, short? }`:
 * `ranges: false` ignores byte ranges, `hides` keeps Content-Range from other origins, `length: false` leaves the
 * length out, `breaks` ends each answer's connection after so many bytes, `drops` refuses so many requests,
 * the one for the start of the file aside, `short` leaves the last byte of each range out.
 * `seen` counts requests and the most bytes that were asked for at once.
 */
export async function serveFiles(files) {
  const seen = { requests: 0, open: 0, mostOpen: 0 };
  const server = createServer((request, response) => {
    const file = files[(request.url ?? "").slice(1)];
    const headers = { "access-control-allow-origin": "*" };
    seen.requests += 1;
    if (!file) return void response.writeHead(404, headers).end("no such file");
    const range = file.ranges === false ? null : /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
    const start = range ? Number(range[1]) : 0;
    const asked = range ? Math.min(Number(range[2]) + 1, file.bytes.length) : file.bytes.length;
    const end = range && file.short ? asked - 1 : asked;
    if (start > 0 && file.drops > 0) {
      file.drops -= 1;
      return void request.socket.destroy();
    }
    headers["content-type"] = file.type ?? "application/octet-stream";
    if (file.length !== false) headers["content-length"] = end - start;
    if (range) headers["content-range"] = `bytes ${start}-${end - 1}/${file.bytes.length}`;
    if (range && !file.hides) headers["access-control-expose-headers"] = "content-range";
    response.writeHead(range ? 206 : 200, headers);
    if (request.method === "HEAD") return void response.end();
    seen.open += end - start;
    seen.mostOpen = Math.max(seen.mostOpen, seen.open);
    response.on("close", () => (seen.open -= end - start));
    if (file.breaks) {
      response.write(file.bytes.subarray(start, start + file.breaks), () => request.socket.destroy());
    } else {
      response.end(file.bytes.subarray(start, end));
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${server.address().port}/`;
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { address, seen, close };
}
