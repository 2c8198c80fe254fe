// A tiny random Llama as a GGUF file, made on the spot: two layers, 16-bit weights, a byte for a token.

const END = "<|end|>";
const SHAPE = { dim: 64, hiddenDim: 96, nLayers: 2, nHeads: 4, nKvHeads: 2, headDim: 16, vocabSize: 288, context: 512 };
const TEMPLATE =
  "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}" +
  "{% if add_generation_prompt %}[assistant] {% endif %}";

/** A file under construction. */
class Writer {
  parts = [];
  length = 0;

  bytes(bytes) {
    this.parts.push(bytes);
    this.length += bytes.length;
  }
  u32(value) {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    this.bytes(bytes);
  }
  u64(value) {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE(BigInt(value));
    this.bytes(bytes);
  }
  f32(value) {
    const bytes = Buffer.alloc(4);
    bytes.writeFloatLE(value);
    this.bytes(bytes);
  }
  string(text) {
    const bytes = Buffer.from(text);
    this.u64(bytes.length);
    this.bytes(bytes);
  }
  /** A metadata value: its type's number in the file, then itself. */
  value(value) {
    if (typeof value === "string") {
      this.u32(8);
      this.string(value);
    } else if (typeof value === "boolean") {
      this.u32(7);
      this.bytes(Buffer.from([Number(value)]));
    } else if (Array.isArray(value)) {
      const isText = value.every((item) => typeof item === "string");
      this.u32(9);
      this.u32(isText ? 8 : 5);
      this.u64(value.length);
      for (const item of value) isText ? this.string(item) : this.u32(item);
    } else if (Number.isInteger(value)) {
      this.u32(4);
      this.u32(value);
    } else {
      this.u32(6);
      this.f32(value);
    }
  }
  pad() {
    this.bytes(Buffer.alloc(-this.length & 31));
  }
}

/** Numbers from -1 to 1 that look random and are the same everywhere (mulberry32). */
function random(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

/** The character that stands for each byte in a byte-level vocabulary. */
function byteLevel() {
  let next = 256;
  const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++));
}

/** The model's bytes. */
export function tinyModel({ seed = 1 } = {}) {
  const { dim, hiddenDim, nLayers, nHeads, nKvHeads, headDim, vocabSize, context } = SHAPE;
  const tokens = [...byteLevel(), ...Array.from({ length: vocabSize - 257 }, (_, i) => `<${i + 256}>`), END];
  const metadata = {
    "general.architecture": "llama",
    "llama.context_length": context,
    "llama.embedding_length": dim,
    "llama.block_count": nLayers,
    "llama.feed_forward_length": hiddenDim,
    "llama.attention.head_count": nHeads,
    "llama.attention.head_count_kv": nKvHeads,
    "llama.attention.layer_norm_rms_epsilon": 0.00001,
    "llama.rope.freq_base": 10_000.5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": tokens.map((token) => (token === END ? 3 : 1)),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": vocabSize - 1,
    "tokenizer.ggml.add_bos_token": false,
    "tokenizer.chat_template": TEMPLATE,
  };
  // "a b" must have a token: it takes the place of one that stands for nothing.
  tokens[256] = "ab";

  const next = random(seed);
  const tensors = [];
  const matrix = (name, nCols, nRows) => {
    const values = Float32Array.from({ length: nCols * nRows }, () => (1.7 * next()) / Math.sqrt(nCols));
    tensors.push({ name, shape: [nCols, nRows], values });
  };
  const vector = (name, n) => {
    tensors.push({ name, shape: [n], values: Float32Array.from({ length: n }, () => 1 + 0.2 * next()) });
  };
  matrix("token_embd.weight", dim, vocabSize);
  for (let layer = 0; layer < nLayers; layer += 1) {
    const of = (name) => `blk.${layer}.${name}.weight`;
    vector(of("attn_norm"), dim);
    matrix(of("attn_q"), dim, nHeads * headDim);
    matrix(of("attn_k"), dim, nKvHeads * headDim);
    matrix(of("attn_v"), dim, nKvHeads * headDim);
    matrix(of("attn_output"), nHeads * headDim, dim);
    vector(of("ffn_norm"), dim);
    matrix(of("ffn_gate"), dim, hiddenDim);
    matrix(of("ffn_up"), dim, hiddenDim);
    matrix(of("ffn_down"), hiddenDim, dim);
  }
  vector("output_norm.weight", dim);

  const file = new Writer();
  file.bytes(Buffer.from("GGUF"));
  file.u32(3);
  file.u64(tensors.length);
  file.u64(Object.keys(metadata).length);
  for (const [key, value] of Object.entries(metadata)) {
    file.string(key);
    file.value(value);
  }
  let offset = 0;
  for (const { name, shape, values } of tensors) {
    file.string(name);
    file.u32(shape.length);
    for (const n of shape) file.u64(n);
    file.u32(0);
    file.u64(offset);
    offset += (values.byteLength + 31) & ~31;
  }
  for (const { values } of tensors) {
    file.pad();
    file.bytes(Buffer.from(values.buffer));
  }
  return Buffer.concat(file.parts);
}
