//! Whole model files: shapes, formats, and the weights that arrive.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;

use common::{GgufWriter, Meta, TinyModel};
use forerun::model::{
    Architecture, Blocks, BytesSource, Config, Format, GgmlType, Gguf, MatrixInfo, MatrixKind, MemoryPlan, Model,
    ModelOptions, RopePairs, STAGING, Source, VectorKind, WeightSink, Wide,
};
use forerun::{Error, Result};

/// Keeps everything that arrives.
#[derive(Default)]
struct Memory {
    matrices: BTreeMap<(MatrixKind, usize), (Blocks, usize)>,
    vectors: BTreeMap<(VectorKind, usize), Vec<f32>>,
    progress: Vec<(u64, u64)>,
}

impl WeightSink for Memory {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()> {
        assert!(self.vectors.insert((kind, layer), values).is_none());
        Ok(())
    }

    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        assert_eq!(rows.format, matrix.format);
        assert!(first_row.is_multiple_of(2));
        let (whole, filled) = self
            .matrices
            .entry((matrix.kind, matrix.layer))
            .or_insert_with(|| (Blocks::zeroed(matrix.format, matrix.n_rows, matrix.n_cols), 0));
        whole.put_rows(first_row, &rows);
        *filled += rows.n_rows;
        Ok(())
    }

    fn progress(&mut self, bytes_read: u64, bytes_total: u64) {
        self.progress.push((bytes_read, bytes_total));
    }
}

/// A source that watches how it is read.
struct Watched {
    inner: BytesSource,
    largest: Cell<usize>,
    reads: Cell<usize>,
    last: Cell<u64>,
    backwards: Cell<usize>,
}

impl Watched {
    fn new(bytes: Vec<u8>) -> Self {
        let zero = || Cell::new(0);
        let inner = BytesSource::new("test", bytes);
        Self { inner, largest: zero(), reads: zero(), last: Cell::new(0), backwards: zero() }
    }

    fn forget(&self) {
        self.largest.set(0);
        self.reads.set(0);
        self.last.set(0);
        self.backwards.set(0);
    }
}

impl Source for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.largest.set(self.largest.get().max(into.len()));
        self.reads.set(self.reads.get() + 1);
        if offset < self.last.get() {
            self.backwards.set(self.backwards.get() + 1);
        }
        self.last.set(offset + into.len() as u64);
        self.inner.read(offset, into).await
    }
}

fn open(bytes: Vec<u8>, options: &ModelOptions) -> Result<Model> {
    pollster::block_on(Model::open(&BytesSource::new("test", bytes), options))
}

fn config_of(file: &GgufWriter) -> Result<Config> {
    Ok(open(file.finish(), &ModelOptions::default())?.config)
}

/// The values of a tensor of the writer, by row.
fn rows_of(file: &mut GgufWriter, name: &str) -> Vec<Vec<f32>> {
    let tensor = file.tensor(name);
    let ty = GgmlType::from_id(tensor.ty).unwrap();
    let mut values = vec![0.0; tensor.shape.iter().product::<u64>() as usize];
    assert!(ty.dequantize(&tensor.data, &mut values));
    values.chunks(tensor.shape[0] as usize).map(<[f32]>::to_vec).collect()
}

/// Puts pairs of rows that stand half a head apart side by side.
fn adjacent<T: Clone>(rows: &[T], head_dim: usize) -> Vec<T> {
    rows.chunks(head_dim)
        .flat_map(|head| (0..head_dim / 2).flat_map(|i| [head[i].clone(), head[i + head_dim / 2].clone()]))
        .collect()
}

#[test]
fn every_weight_arrives_where_it_belongs() {
    let base = TinyModel { layers: vec![GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0], ..TinyModel::default() };
    for tiny in [
        base.clone(),
        TinyModel { architecture: Architecture::Qwen2, tied_head: false, vocab_size: 301, ..base.clone() },
        // Three blocks a row, and heads of several widths.
        TinyModel { dim: 96, head_dim: 8, n_heads: 12, n_kv_heads: 3, architecture: Architecture::Qwen2, ..base },
    ] {
        let mut file = tiny.writer();
        // The smallest staging buffer holds the largest vector, two rows, or one head.
        let row = tiny.dim.max(tiny.hidden_dim) / 32 * 34;
        for staging in [STAGING, (row * tiny.head_dim).max(4 * tiny.dim)] {
            let source = Watched::new(file.finish());
            let options = ModelOptions { wide: Wide::ALL, ..ModelOptions::default() };
            let model = pollster::block_on(Model::open(&source, &options)).unwrap();
            source.forget();
            let mut memory = Memory::default();
            pollster::block_on(model.stream(&source, staging, &mut memory)).unwrap();
            assert!(source.largest.get() <= staging);
            assert_eq!(source.backwards.get(), 0);
            if staging == STAGING {
                assert_eq!(source.reads.get(), 1, "what fits the staging buffer is one read");
            }
            let weights: u64 = file.tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
            assert_eq!(memory.progress.last(), Some(&(weights, weights)));

            let mut expected: BTreeMap<(MatrixKind, usize), Vec<Vec<f32>>> = BTreeMap::new();
            expected.insert((MatrixKind::EmbedTokens, 0), rows_of(&mut file, "token_embd.weight"));
            if !tiny.tied_head {
                expected.insert((MatrixKind::LmHead, 0), rows_of(&mut file, "output.weight"));
            }
            let halves = model.config.rope_pairs == RopePairs::Halves;
            for layer in 0..tiny.n_layers {
                let mut rows = |name: &str| rows_of(&mut file, &format!("blk.{layer}.{name}"));
                let (mut q, mut k, v) = (rows("attn_q.weight"), rows("attn_k.weight"), rows("attn_v.weight"));
                if halves {
                    (q, k) = (adjacent(&q, tiny.head_dim), adjacent(&k, tiny.head_dim));
                    let mut q = rows("attn_q.bias").remove(0);
                    let mut k = rows("attn_k.bias").remove(0);
                    (q, k) = (adjacent(&q, tiny.head_dim), adjacent(&k, tiny.head_dim));
                    let bias = [q, k, rows("attn_v.bias").remove(0)].concat();
                    assert_eq!(memory.vectors[&(VectorKind::QkvBias, layer)], bias);
                }
                expected.insert((MatrixKind::QkvProj, layer), [q, k, v].concat());
                expected.insert((MatrixKind::OProj, layer), rows("attn_output.weight"));
                expected
                    .insert((MatrixKind::GateUpProj, layer), [rows("ffn_gate.weight"), rows("ffn_up.weight")].concat());
                expected.insert((MatrixKind::DownProj, layer), rows("ffn_down.weight"));
                assert_eq!(memory.vectors[&(VectorKind::AttnNorm, layer)], rows("attn_norm.weight")[0]);
                assert_eq!(memory.vectors[&(VectorKind::MlpNorm, layer)], rows("ffn_norm.weight")[0]);
            }
            assert_eq!(memory.vectors[&(VectorKind::Norm, 0)], rows_of(&mut file, "output_norm.weight")[0]);
            assert_eq!(model.matrices().len(), expected.len());
            for (key, expected) in &expected {
                let (blocks, filled) = &memory.matrices[key];
                assert_eq!((*filled, blocks.n_rows), (expected.len(), expected.len()), "{key:?}");
                for (row, expected) in expected.iter().enumerate() {
                    let mut found = vec![0.0; blocks.n_cols];
                    blocks.dequantize_row(row, &mut found);
                    assert_eq!(&found, expected, "{key:?} row {row}: every type here goes into q8 or q4 exactly");
                }
            }
            let plan = MemoryPlan::new(&model, 128, |config, context| (config.dim * context) as u64);
            let held: usize = memory.matrices.values().map(|(blocks, _)| blocks.bytes()).sum();
            assert_eq!(plan.weights_q4 + plan.weights_q4_min + plan.weights_q8, held as u64);
            assert_eq!(plan.vectors, 4 * memory.vectors.values().map(Vec::len).sum::<usize>() as u64);
            assert_eq!(plan.cache, (tiny.n_layers * 2 * 128 * tiny.n_kv_heads * tiny.head_dim * 2) as u64);
            assert_eq!(plan.scratch, (tiny.dim * 128) as u64);
        }
    }
}

#[test]
fn a_staging_buffer_that_is_too_small_is_named() {
    let source = BytesSource::new("test", TinyModel::default().build());
    let model = pollster::block_on(Model::open(&source, &ModelOptions::default())).unwrap();
    match pollster::block_on(model.stream(&source, 100, &mut Memory::default())) {
        Err(Error::BadInput(message)) => assert!(message.contains("token_embd.weight"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn formats_follow_the_file_and_the_options() {
    use Format::{Q4, Q4Min, Q8};
    use GgmlType::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    let plain = ModelOptions::default();
    let narrow = ModelOptions { wide: Wide::NONE, keep_q8: false, narrow: Q4 };
    let wide = ModelOptions { wide: Wide::ALL, ..plain };
    // Types of q, k, v, output, gate, up, down; then the formats of qkv, output, gate and up, down.
    for (options, embed, layers, embed_format, formats) in [
        (plain, Q8_0, [Q4_0; 7], Q8, [Q4, Q4, Q4, Q4]),
        (plain, Q4_0, [Q4_1; 7], Q4, [Q4Min, Q4Min, Q4Min, Q4Min]),
        (plain, F16, [Q4_0, Q4_0, Q4_1, Q4_0, Q4_0, Q5_0, Q6_K], Q8, [Q4Min, Q4, Q4Min, Q4Min]),
        (plain, Q6_K, [Q4_0, Q4_0, Q8_0, Q8_0, Q4_K, Q5_K, Q5_1], Q8, [Q8, Q8, Q4Min, Q4Min]),
        (plain, Q5_0, [BF16, F32, F16, Q5_0, Q4_0, Q4_0, Q4_0], Q8, [Q4Min, Q4Min, Q4, Q4]),
        (narrow, Q8_0, [Q8_0, Q5_0, Q4_0, Q6_K, Q4_0, Q4_1, Q4_K], Q4, [Q4, Q4, Q4Min, Q4Min]),
        (wide, Q4_1, [Q4_0, Q4_0, Q4_1, Q4_0, Q5_0, Q4_0, Q6_K], Q4Min, [Q4Min, Q4, Q8, Q8]),
    ] {
        let tiny =
            TinyModel { dim: 256, hidden_dim: 256, head_dim: 64, embed, layers: layers.into(), ..TinyModel::default() };
        let model = open(tiny.build(), &options).unwrap();
        let format = |kind| model.matrix(kind, 1).unwrap().format;
        assert_eq!(model.matrix(MatrixKind::EmbedTokens, 0).unwrap().format, embed_format);
        let found = [MatrixKind::QkvProj, MatrixKind::OProj, MatrixKind::GateUpProj, MatrixKind::DownProj].map(format);
        assert_eq!(found, formats, "{embed:?} {layers:?}");
    }
    assert!(matches!(open(vec![], &ModelOptions { narrow: Q8, ..plain }), Err(Error::BadInput(_))));
    assert_eq!("all".parse::<Wide>().unwrap(), Wide::ALL);
    assert_eq!("none".parse::<Wide>().unwrap(), Wide::NONE);
    assert_eq!("embed_tokens,lm_head".parse::<Wide>().unwrap(), Wide::OUTER);
    assert!("head".parse::<Wide>().is_err());
}

#[test]
fn every_type_streams_in_every_format() {
    use GgmlType::*;
    for ty in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K] {
        for wide in [Wide::ALL, Wide::NONE] {
            for narrow in [Format::Q4, Format::Q4Min] {
                let tiny = TinyModel {
                    dim: 256,
                    hidden_dim: 512,
                    head_dim: 64,
                    embed: ty,
                    layers: vec![ty],
                    ..TinyModel::default()
                };
                let options = ModelOptions { wide, narrow, keep_q8: false };
                let mut file = tiny.writer();
                let source = BytesSource::new("test", file.finish());
                let model = pollster::block_on(Model::open(&source, &options)).unwrap();
                let mut memory = Memory::default();
                pollster::block_on(model.stream(&source, STAGING, &mut memory)).unwrap();
                let expected = rows_of(&mut file, "blk.1.ffn_down.weight").concat();
                let (blocks, _) = &memory.matrices[&(MatrixKind::DownProj, 1)];
                let (mut error, mut norm) = (0.0, 0.0);
                let mut row = vec![0.0; 512];
                for (i, expected) in expected.chunks(512).enumerate() {
                    blocks.dequantize_row(i, &mut row);
                    for (found, expected) in row.iter().zip(expected) {
                        error += (found - expected).powi(2);
                        norm += expected.powi(2);
                    }
                }
                let most = if blocks.format == Format::Q8 { 1e-4 } else { 0.02 };
                assert!(error <= most * norm, "{} in {:?}: {}", ty.name(), blocks.format, error / norm);
            }
        }
    }
}

#[test]
fn all_versions_of_the_header_read_alike() {
    let mut file = TinyModel::default().writer();
    let newest = pollster::block_on(Gguf::read(&BytesSource::new("test", file.finish()))).unwrap();
    for version in [1, 2] {
        file.version = version;
        let bytes = file.finish();
        let older = pollster::block_on(Gguf::read(&BytesSource::new("test", bytes.clone()))).unwrap();
        assert_eq!(older.version, version);
        assert!(older.metadata.iter().eq(newest.metadata.iter()));
        let names = |gguf: &Gguf| -> Vec<_> {
            gguf.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone(), tensor.bytes)).collect()
        };
        assert_eq!(names(&older), names(&newest));
        assert!(open(bytes, &ModelOptions::default()).is_ok());
    }
}

#[test]
fn a_header_longer_than_the_first_read_is_read_on() {
    let mut file = TinyModel::default().writer();
    file.key("padding", Meta::Strs((0..300_000).map(|i| format!("string {i}")).collect()));
    let source = Watched::new(file.finish());
    let model = pollster::block_on(Model::open(&source, &ModelOptions::default())).unwrap();
    assert_eq!(model.metadata.strings("padding").map(<[String]>::len), Some(300_000));
    assert_eq!(source.backwards.get(), 0, "a prefix that grows is read once");
}

#[test]
fn a_larger_alignment_and_nested_arrays_are_understood() {
    let mut file = TinyModel::default().writer();
    file.alignment = 4096;
    file.key("general.alignment", Meta::U32(4096));
    // Two arrays of one u8 each.
    let mut nested = 9u32.to_le_bytes().to_vec();
    nested.extend(2u64.to_le_bytes());
    for _ in 0..2 {
        nested.extend(0u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
        nested.push(7);
    }
    file.key("nested", Meta::Raw(9, nested));
    let model = open(file.finish(), &ModelOptions::default()).unwrap();
    assert!(model.metadata.get("nested").is_none());
    assert_eq!(model.tensors()[0].offset % 4096, 0);
}

#[test]
fn the_rotary_frequencies_are_scaled_as_the_file_says() {
    let mut file = TinyModel::default().writer();
    file.key("llama.rope.freq_base", Meta::F32(500_000.0));
    let plain = config_of(&file).unwrap().rope_frequencies;
    let expected: Vec<f64> = (0..8).map(|i| 500_000f64.powf(-f64::from(2 * i) / 16.0)).collect();
    assert_eq!(plain, expected);

    file.key("llama.rope.scaling.type", "linear").key("llama.rope.scaling.factor", Meta::F32(4.0));
    let linear = config_of(&file).unwrap().rope_frequencies;
    assert!(linear.iter().zip(&plain).all(|(linear, plain)| *linear == plain / 4.0));

    // Numbers of Llama 3.1; the ends are kept and divided, the middle is blended.
    file.key("llama.rope.scaling.type", "llama3").key("llama.rope.scaling.factor", Meta::F32(8.0));
    let llama3 = config_of(&file).unwrap().rope_frequencies;
    let expected = [1.0, 0.19392, 0.037606, 0.0072927, 0.0];
    for (i, expected) in expected.iter().enumerate().take(3) {
        assert!((llama3[i] - expected).abs() < 1e-4 * expected, "{i}: {}", llama3[i]);
    }
    assert!(llama3[4] < plain[4] && llama3[4] > plain[4] / 8.0, "a wavelength of 4,443 is between 2,048 and 8,192");
    assert!((llama3[7] - plain[7] / 8.0).abs() < 1e-12);

    file.remove_key("llama.rope.scaling.type").remove_key("llama.rope.scaling.factor");
    let factors: Vec<f32> = (0..8).map(|i| 1.0 + i as f32).collect();
    let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    file.add("rope_freqs.weight", GgmlType::F32, &[8], bytes);
    let divided = config_of(&file).unwrap().rope_frequencies;
    for (i, divided) in divided.iter().enumerate() {
        assert_eq!(*divided, plain[i] / f64::from(factors[i]));
    }
}

#[test]
fn shapes_come_from_the_keys() {
    let config = open(TinyModel::default().build(), &ModelOptions::default()).unwrap().config;
    assert_eq!((config.dim, config.hidden_dim, config.n_layers), (64, 96, 2));
    assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (4, 2, 16));
    assert_eq!((config.vocab_size, config.max_seq_len), (288, 256));
    assert_eq!(config.rope_pairs, RopePairs::Adjacent);
    assert!(config.tied_head && !config.qkv_bias);

    // Without their keys, key-value heads are as many as heads, and heads share the width.
    let mut file = TinyModel { n_kv_heads: 4, ..TinyModel::default() }.writer();
    for key in ["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"] {
        file.remove_key(&format!("llama.{key}"));
    }
    let config = config_of(&file).unwrap();
    assert_eq!((config.n_kv_heads, config.head_dim), (4, 16));
    file.key("llama.attention.sliding_window", Meta::U32(100));
    assert_eq!(config_of(&file).unwrap().max_seq_len, 100);
}
