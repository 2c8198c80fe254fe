//! Small GGUF files made on the spot: a writer that can also write wrong ones, and tiny random models.

// Each test file uses its own part of this.
#![allow(dead_code)]

use forerun::model::{Architecture, GgmlType};
use half::{bf16, f16};

/// Numbers that look random and are the same everywhere (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// From `low` to `high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }
}

/// A metadata value with the type it has in the file.
#[derive(Debug, Clone)]
pub enum Meta {
    U32(u32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type's number and the value's bytes, right or wrong.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Meta {
    fn from(text: &str) -> Self {
        Meta::Str(text.into())
    }
}

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub ty: u32,
    /// Fastest dimension first.
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
    /// Written in place of the right offset.
    pub offset: Option<u64>,
}

/// Writes GGUF files. Fields are public so that a test can spoil one.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    pub version: u32,
    pub alignment: usize,
    pub keys: Vec<(String, Meta)>,
    pub tensors: Vec<Tensor>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufWriter {
    pub fn key(&mut self, name: &str, value: impl Into<Meta>) -> &mut Self {
        let value = value.into();
        match self.keys.iter_mut().find(|(key, _)| key == name) {
            Some(entry) => entry.1 = value,
            None => self.keys.push((name.into(), value)),
        }
        self
    }

    pub fn remove_key(&mut self, name: &str) -> &mut Self {
        self.keys.retain(|(key, _)| key != name);
        self
    }

    pub fn add(&mut self, name: &str, ty: GgmlType, shape: &[u64], data: Vec<u8>) -> &mut Self {
        self.tensors.push(Tensor { name: name.into(), ty: ty.id(), shape: shape.into(), data, offset: None });
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the tensor is there")
    }

    fn size(&self, out: &mut Vec<u8>, n: u64) {
        if self.version == 1 {
            out.extend((n as u32).to_le_bytes());
        } else {
            out.extend(n.to_le_bytes());
        }
    }

    fn string(&self, out: &mut Vec<u8>, text: &str) {
        self.size(out, text.len() as u64);
        out.extend(text.as_bytes());
    }

    fn value(&self, out: &mut Vec<u8>, value: &Meta) {
        let array = |out: &mut Vec<u8>, ty: u32, n: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(ty.to_le_bytes());
            self.size(out, n as u64);
        };
        let scalar = |out: &mut Vec<u8>, ty: u32, bytes: &[u8]| {
            out.extend(ty.to_le_bytes());
            out.extend(bytes);
        };
        match value {
            Meta::U32(value) => scalar(out, 4, &value.to_le_bytes()),
            Meta::U64(value) => scalar(out, 10, &value.to_le_bytes()),
            Meta::F32(value) => scalar(out, 6, &value.to_le_bytes()),
            Meta::Bool(value) => scalar(out, 7, &[*value as u8]),
            Meta::Raw(ty, bytes) => scalar(out, *ty, bytes),
            Meta::Str(text) => {
                out.extend(8u32.to_le_bytes());
                self.string(out, text);
            }
            Meta::Strs(texts) => {
                array(out, 8, texts.len());
                texts.iter().for_each(|text| self.string(out, text));
            }
            Meta::I32s(values) => {
                array(out, 5, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            Meta::F32s(values) => {
                array(out, 6, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
        }
    }

    /// The header alone, without the padding behind it.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        self.size(&mut out, self.tensors.len() as u64);
        self.size(&mut out, self.keys.len() as u64);
        for (name, value) in &self.keys {
            self.string(&mut out, name);
            self.value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            self.string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|&n| self.size(&mut out, n));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        out
    }

    /// The file.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

/// The shape and types of a tiny random model.
#[derive(Debug, Clone)]
pub struct TinyModel {
    pub architecture: Architecture,
    pub dim: usize,
    pub hidden_dim: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub max_seq_len: usize,
    pub tied_head: bool,
    /// Type of the embedding table (and of the head).
    pub embed: GgmlType,
    /// Types of the matrices of the layers, used in turn: q, k, v, output, gate, up, down, q of the next layer …
    pub layers: Vec<GgmlType>,
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            architecture: Architecture::Llama,
            dim: 64,
            hidden_dim: 96,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            vocab_size: 288,
            max_seq_len: 256,
            tied_head: true,
            embed: GgmlType::Q8_0,
            layers: vec![GgmlType::Q4_0],
            seed: 1,
        }
    }
}

impl TinyModel {
    /// The file's bytes.
    pub fn build(&self) -> Vec<u8> {
        self.writer().finish()
    }

    /// A writer that holds the model, to be spoilt before it is finished.
    pub fn writer(&self) -> GgufWriter {
        let mut random = Random(self.seed);
        let mut file = GgufWriter::default();
        let qwen2 = self.architecture == Architecture::Qwen2;
        let name = if qwen2 { "qwen2" } else { "llama" };
        file.key("general.architecture", name);
        for (key, value) in [
            ("context_length", self.max_seq_len),
            ("embedding_length", self.dim),
            ("block_count", self.n_layers),
            ("feed_forward_length", self.hidden_dim),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ] {
            file.key(&format!("{name}.{key}"), Meta::U32(value as u32));
        }
        file.key(&format!("{name}.attention.layer_norm_rms_epsilon"), Meta::F32(1e-5));
        file.key(&format!("{name}.rope.freq_base"), Meta::F32(10_000.0));
        tokenizer(&mut file, self.vocab_size);

        let (dim, hidden_dim, vocab_size) = (self.dim as u64, self.hidden_dim as u64, self.vocab_size as u64);
        let (q_dim, kv_dim) = ((self.n_heads * self.head_dim) as u64, (self.n_kv_heads * self.head_dim) as u64);
        let mut types = self.layers.iter().copied().cycle();
        let mut add = |file: &mut GgufWriter, name: &str, ty: GgmlType, n_cols: u64, n_rows: u64| {
            let data = random_tensor(&mut random, ty, n_cols as usize, n_rows as usize);
            file.add(name, ty, &[n_cols, n_rows], data);
        };
        let mut vector_random = Random(self.seed ^ 0x5eed);
        let mut add_vector = |file: &mut GgufWriter, name: &str, n: u64, centre: f32| {
            let values = (0..n).flat_map(|_| (centre + vector_random.between(-0.2, 0.2)).to_le_bytes()).collect();
            file.add(name, GgmlType::F32, &[n], values);
        };
        add(&mut file, "token_embd.weight", self.embed, dim, vocab_size);
        for layer in 0..self.n_layers {
            let name = |name: &str| format!("blk.{layer}.{name}");
            add_vector(&mut file, &name("attn_norm.weight"), dim, 1.0);
            for (part, n_cols, n_rows) in [
                ("attn_q.weight", dim, q_dim),
                ("attn_k.weight", dim, kv_dim),
                ("attn_v.weight", dim, kv_dim),
                ("attn_output.weight", q_dim, dim),
                ("ffn_gate.weight", dim, hidden_dim),
                ("ffn_up.weight", dim, hidden_dim),
                ("ffn_down.weight", hidden_dim, dim),
            ] {
                add(&mut file, &name(part), types.next().expect("at least one type"), n_cols, n_rows);
            }
            if qwen2 {
                for (part, n) in [("attn_q.bias", q_dim), ("attn_k.bias", kv_dim), ("attn_v.bias", kv_dim)] {
                    add_vector(&mut file, &name(part), n, 0.0);
                }
            }
            add_vector(&mut file, &name("ffn_norm.weight"), dim, 1.0);
        }
        add_vector(&mut file, "output_norm.weight", dim, 1.0);
        if !self.tied_head {
            add(&mut file, "output.weight", self.embed, dim, vocab_size);
        }
        file
    }
}

/// A byte-level vocabulary without merges: 256 bytes (as far as they fit) and names for the rest; the last token ends.
fn tokenizer(file: &mut GgufWriter, vocab_size: usize) {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let tokens = (0..vocab_size as u32)
        .map(|i| match i {
            _ if i as usize == vocab_size - 1 => "<|end|>".to_owned(),
            0..=255 if printable(i) => char::from_u32(i).into_iter().collect(),
            0..=255 => {
                next += 1;
                char::from_u32(next - 1).into_iter().collect()
            }
            _ => format!("<{i}>"),
        })
        .collect();
    let kinds = (0..vocab_size).map(|i| if i == vocab_size - 1 { 3 } else { 1 }).collect();
    file.key("tokenizer.ggml.model", "gpt2");
    file.key("tokenizer.ggml.pre", "qwen2");
    file.key("tokenizer.ggml.tokens", Meta::Strs(tokens));
    file.key("tokenizer.ggml.token_type", Meta::I32s(kinds));
    file.key("tokenizer.ggml.merges", Meta::Strs(Vec::new()));
    file.key("tokenizer.ggml.eos_token_id", Meta::U32(vocab_size as u32 - 1));
    file.key("tokenizer.ggml.add_bos_token", Meta::Bool(false));
}

/// Random weights of type `ty`, whose products with vectors of ones keep the vectors' size.
pub fn random_tensor(random: &mut Random, ty: GgmlType, n_cols: usize, n_rows: usize) -> Vec<u8> {
    assert!(n_cols.is_multiple_of(ty.block_elements()), "{} needs rows of whole blocks", ty.name());
    let deviation = 1.0 / (n_cols as f32).sqrt();
    let n_blocks = n_cols / ty.block_elements() * n_rows;
    let mut out = Vec::with_capacity(n_blocks * ty.block_bytes());
    for _ in 0..n_blocks {
        let start = out.len();
        out.extend((0..ty.block_bytes()).map(|_| random.u64() as u8));
        let block = &mut out[start..];
        let size = deviation * random.between(0.5, 1.5);
        let mut put = |at: usize, value: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        match ty {
            GgmlType::F32 => {
                block.copy_from_slice(&(1.7 * random.between(-deviation, deviation)).to_le_bytes());
            }
            GgmlType::F16 => put(0, 1.7 * random.between(-deviation, deviation)),
            GgmlType::BF16 => {
                block.copy_from_slice(&bf16::from_f32(1.7 * random.between(-deviation, deviation)).to_le_bytes());
            }
            GgmlType::Q4_0 => put(0, size / 4.6),
            GgmlType::Q4_1 => {
                put(0, size / 4.6);
                put(2, -7.4 * size / 4.6);
            }
            GgmlType::Q5_0 => put(0, size / 9.2),
            GgmlType::Q5_1 => {
                put(0, size / 9.2);
                put(2, -15.3 * size / 9.2);
            }
            GgmlType::Q8_0 => put(0, size / 74.0),
            GgmlType::Q4_K => {
                put(0, size / 4.6 / 32.0);
                put(2, 7.5 * size / 4.6 / 32.0);
            }
            GgmlType::Q5_K => {
                put(0, size / 9.2 / 32.0);
                put(2, 15.5 * size / 9.2 / 32.0);
            }
            GgmlType::Q6_K => put(208, size / 18.5 / 74.0),
            _ => panic!("no random tensors of type {}", ty.name()),
        }
    }
    out
}
