// Where a model's bytes come from: a URL, read by byte ranges, or a file that a person chose.

/** Bytes of one request. */
const PIECE = 4 << 20;
/** Requests open at once: at most 16 MiB are on their way. */
const IN_FLIGHT = 4;
/** How often a piece is asked for again, and how long to wait before the first time, in milliseconds. */
const RETRIES = 3;
const RETRY_MS = 400;

/** Bytes that can be read at any offset. */
export interface ByteSource {
  /** What a person would call it. */
  readonly name: string;
  /** Length in bytes. */
  readonly size: number;
  /** At least one and at most `length` bytes from `offset` on. */
  read(offset: number, length: number): Promise<Uint8Array>;
  /** Ends open requests. */
  close(): void;
}

/** An error that names what could not be read and says what to do. */
export class ReadError extends Error {
  override readonly name = "IoError";
}

/** A file from a file picker, or any other blob. */
export function openBlob(blob: Blob): ByteSource {
  const name = blob instanceof File ? blob.name : "the given data";
  return {
    name,
    size: blob.size,
    async read(offset, length) {
      const piece = blob.slice(offset, offset + Math.min(length, PIECE));
      try {
        return new Uint8Array(await piece.arrayBuffer());
      } catch (error) {
        throw new ReadError(`${name} cannot be read any more (${text(error)}): choose the file again`);
      }
    },
    close() {},
  };
}

/** A URL. The first request tells its length and whether the server knows byte ranges; without them it is read in order. */
export async function openUrl(url: string): Promise<ByteSource> {
  const closing = new AbortController();
  const signal = closing.signal;
  const close = () => closing.abort();
  const first = await request(url, { signal, headers: { range: `bytes=0-${PIECE - 1}` } });
  if (first.status === 206) {
    const size = Number(/\/(\d+)$/.exec(first.headers.get("content-range") ?? "")?.[1] ?? NaN);
    const start = bytesOf(first, url);
    if (Number.isSafeInteger(size)) return new RangeSource(url, size, start, signal, close);
    // Another origin that does not let us see Content-Range: ask for the length in another way.
    const whole = await request(url, { signal, method: "HEAD" });
    return new RangeSource(url, lengthOf(whole, url), start, signal, close);
  }
  return new StreamSource(url, lengthOf(first, url), first, signal, close);
}

class RangeSource implements ByteSource {
  readonly name: string;
  /** Pieces asked for, by number. */
  private readonly pieces = new Map<number, Promise<Uint8Array>>();

  constructor(
    url: string,
    readonly size: number,
    first: Promise<Uint8Array>,
    private readonly signal: AbortSignal,
    readonly close: () => void,
  ) {
    this.name = url;
    this.keep(0, first.then((bytes) => this.whole(0, bytes)));
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    const number = Math.floor(offset / PIECE);
    // Reading goes forward: what lies behind is let go, what comes next is asked for already.
    for (const other of this.pieces.keys()) {
      if (other < number || other >= number + IN_FLIGHT) this.pieces.delete(other);
    }
    for (let next = number; next < number + IN_FLIGHT && next * PIECE < this.size; next += 1) {
      if (!this.pieces.has(next)) this.keep(next, this.fetch(next));
    }
    const piece = await this.pieces.get(number);
    const from = offset - number * PIECE;
    return piece?.subarray(from, from + length) ?? new Uint8Array();
  }

  private keep(number: number, piece: Promise<Uint8Array>): void {
    // A piece asked for ahead may fail while nobody waits for it; whoever comes to wait for it hears of it.
    piece.catch(() => {});
    this.pieces.set(number, piece);
  }

  /** The bytes of a piece, from the first to behind the last. */
  private span(number: number): [number, number] {
    return [number * PIECE, Math.min((number + 1) * PIECE, this.size)];
  }

  /** A piece, which must have all its bytes. */
  private whole(number: number, bytes: Uint8Array): Uint8Array {
    const [start, end] = this.span(number);
    if (bytes.length === end - start) return bytes;
    throw new ReadError(`${this.name} answered ${bytes.length} bytes instead of ${end - start}: try again`);
  }

  private async fetch(number: number): Promise<Uint8Array> {
    const [start, end] = this.span(number);
    for (let attempt = 0; ; attempt += 1) {
      try {
        const response = await request(this.name, {
          signal: this.signal,
          headers: { range: `bytes=${start}-${end - 1}` },
        });
        if (response.status !== 206) {
          await response.body?.cancel();
          throw new ReadError(`${this.name} stopped answering byte ranges: try again, or download it and choose the file`);
        }
        return this.whole(number, await bytesOf(response, this.name));
      } catch (error) {
        if (this.signal.aborted || attempt === RETRIES || error instanceof AnswerError) throw error;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS * 2 ** attempt));
      }
    }
  }
}

/** One answer, read in order. Going back starts over. */
class StreamSource implements ByteSource {
  readonly name: string;
  private reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  private position = 0;
  private chunk = new Uint8Array();

  constructor(
    url: string,
    readonly size: number,
    first: Response,
    private readonly signal: AbortSignal,
    readonly close: () => void,
  ) {
    this.name = url;
    this.reader = first.body?.getReader();
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    if (offset < this.position) await this.restart();
    while (this.position + this.chunk.length <= offset) {
      this.position += this.chunk.length;
      const next = await this.reader?.read().catch((error: unknown) => {
        throw this.signal.aborted ? error : broken(this.name, error);
      });
      if (!next?.value) return new Uint8Array();
      this.chunk = next.value as Uint8Array<ArrayBuffer>;
    }
    this.chunk = this.chunk.subarray(offset - this.position);
    this.position = offset;
    const bytes = this.chunk.subarray(0, length);
    this.chunk = this.chunk.subarray(bytes.length);
    this.position += bytes.length;
    return bytes;
  }

  private async restart(): Promise<void> {
    await this.reader?.cancel();
    const again = await request(this.name, { signal: this.signal });
    this.reader = again.body?.getReader();
    this.position = 0;
    this.chunk = new Uint8Array();
  }
}

/** The server's answer is not a model: asking again will not help. */
class AnswerError extends ReadError {}

async function request(url: string, init: RequestInit): Promise<Response> {
  let response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ReadError(
      `${url} cannot be reached (${text(error)}): check the address and the network, and that its server allows other pages to read it (CORS)`,
    );
  }
  if (!response.ok) {
    throw new AnswerError(`${url} answered ${response.status} ${response.statusText}: check the address`.replace(" :", ":"));
  }
  const type = response.headers.get("content-type") ?? "";
  if (/^text\/html|^application\/xhtml/i.test(type)) {
    await response.body?.cancel();
    throw new AnswerError(`${url} answered with a web page (${type}) instead of a model: check the address, it must lead to the file itself`);
  }
  return response;
}

async function bytesOf(response: Response, url: string): Promise<Uint8Array> {
  try {
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    throw (error as Error)?.name === "AbortError" ? error : broken(url, error);
  }
}

function lengthOf(response: Response, url: string): number {
  // A compressed answer's length says nothing about the bytes that come out of it.
  const length = response.headers.get("content-encoding") ? null : response.headers.get("content-length");
  if (length === null) {
    throw new AnswerError(`the server of ${url} does not tell its length: download it and choose the file, or use a server with byte ranges`);
  }
  return Number(length);
}

function broken(url: string, error: unknown): ReadError {
  return new ReadError(`the download of ${url} broke off (${text(error)}): check the network and try again`);
}

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
