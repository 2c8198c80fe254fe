//! Every kernel against its CPU twin, and the bits of a step against those of steps of one, for odd shapes, every
//! bucket, every format, with and without subgroups and the packed dot product.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::control::{CONTROL_BYTES, Control, LOGPROBS, Logprobs, MAX_NEW, MAX_TOP, RECENT, STEP_STATS};
use super::forward::{Fusion, Op, Ops, Outcome, features, forward, fused_norm_tokens, vocab_parts};
use super::request::TokenLogprobs;
use super::sampler::SamplingOptions;
use super::step::{BUCKETS, CHUNK, MEMORY, Pass, Scratch};
use super::weights::Weights;
use crate::cpu::{self, KvCache, MAX_NODES, Quantized, Tree};
use crate::gpu::{Buffer, Dispatch, Gpu, GpuOptions, Kernel};
use crate::kernels::Features;
use crate::model::WeightSink;
use crate::model::{Architecture, BLOCK, Blocks, Config, Format, MatrixInfo, MatrixKind, RopePairs, VectorKind};

/// Numbers that look random and are the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// About normal, with deviation 1.
    fn normal(&mut self) -> f32 {
        (0..4).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum::<f32>() * 1.732
    }

    fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Shapes that a model could have: narrow and wide, one and many heads to a key head, sizes that no workgroup divides.
fn shapes() -> [Config; 3] {
    let config = |dim, hidden_dim, n_heads, n_kv_heads, head_dim, vocab_size, qkv_bias| Config {
        architecture: Architecture::Qwen2,
        dim,
        hidden_dim,
        n_layers: 2,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size,
        max_seq_len: 256,
        rms_norm_eps: 1e-6,
        rope_frequencies: (0..head_dim / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / head_dim as f64)).collect(),
        rope_pairs: RopePairs::Adjacent,
        qkv_bias,
        tied_head: true,
    };
    [
        config(96, 160, 4, 2, 24, 333, true),
        config(64, 2208, 7, 1, 32, 4500, false),
        config(1088, 64, 3, 3, 64, 257, true),
    ]
}

/// Whether this device has the arithmetic that the twins were compiled for, and so their bits: it fuses `fma`, or the
/// feature `unfused` keeps the twins from doing so.
static EXACT: AtomicBool = AtomicBool::new(false);

struct Bench {
    gpu: Gpu,
    config: Config,
    scratch: Scratch,
    weights: Weights,
    /// The same matrices for the twins, in the order of [`Bench::infos`].
    blocks: Vec<(MatrixKind, usize, Blocks)>,
    vectors: Vec<(VectorKind, usize, Vec<f32>)>,
    features: Features,
    /// The cache row of each position.
    rows: Vec<u32>,
    /// Tiles products and attention as for a program that plays a GPU.
    software: bool,
    /// Compiled kernels by their text.
    kernels: RefCell<HashMap<String, Kernel>>,
}

impl Bench {
    async fn new(config: Config, formats: [Format; 3], plain: bool) -> Bench {
        let gpu = Gpu::new(GpuOptions { plain, ..GpuOptions::default() }).await.unwrap();
        EXACT.store(gpu.adapter().is_software == cfg!(feature = "unfused"), Ordering::Relaxed);
        let scratch = Scratch::new(&gpu, &config, 256, MAX_NODES).await.unwrap();
        let mut random = Random(11);
        let mut infos = Vec::new();
        let mut add = |kind, layer, n_rows, n_cols, format| {
            infos.push(MatrixInfo { kind, layer, n_rows, n_cols, format });
        };
        add(MatrixKind::EmbedTokens, 0, config.vocab_size, config.dim, formats[2]);
        for (layer, &format) in formats.iter().enumerate().take(config.n_layers) {
            add(MatrixKind::QkvProj, layer, config.qkv_dim(), config.dim, format);
            add(MatrixKind::OProj, layer, config.dim, config.q_dim(), format);
            add(MatrixKind::GateUpProj, layer, 2 * config.hidden_dim, config.dim, format);
            add(MatrixKind::DownProj, layer, config.dim, config.hidden_dim, format);
        }
        let mut weights = Weights::new(&gpu, &config, &infos).await.unwrap();
        let mut blocks = Vec::new();
        for info in &infos {
            let values: Vec<f32> =
                random.normals(info.n_rows * info.n_cols).iter().map(|v| v / (info.n_cols as f32).sqrt()).collect();
            let rows = Blocks::quantize(info.format, &values, info.n_rows, info.n_cols).unwrap();
            weights.rows(info, 0, rows.clone()).await.unwrap();
            blocks.push((info.kind, info.layer, rows));
        }
        let mut vectors = Vec::new();
        for layer in 0..config.n_layers {
            let norm = |random: &mut Random| random.normals(config.dim).iter().map(|v| 1.0 + 0.1 * v).collect();
            vectors.push((VectorKind::AttnNorm, layer, norm(&mut random)));
            vectors.push((VectorKind::MlpNorm, layer, norm(&mut random)));
            let bias = if config.qkv_bias { random.normals(config.qkv_dim()) } else { Vec::new() };
            vectors.push((VectorKind::QkvBias, layer, bias));
        }
        vectors.push((VectorKind::Norm, 0, vec![1.0; config.dim]));
        for (kind, layer, values) in vectors.iter().filter(|(.., values)| !values.is_empty()) {
            weights.vector(*kind, *layer, values.clone()).await.unwrap();
        }
        let features = features(gpu.adapter());
        Bench {
            gpu,
            config,
            scratch,
            weights,
            blocks,
            vectors,
            features,
            rows: (0..256).collect(),
            software: plain,
            kernels: RefCell::default(),
        }
    }

    fn pass(&self, tokens: usize, fusion: Fusion) -> Pass {
        let fused_norm_tokens = fused_norm_tokens(self.config.dim, 16 << 10);
        // Both tilings are checked: that of software devices with the plain kernels.
        Pass {
            tokens,
            outcome: Outcome::Predict,
            fusion,
            fused_norm_tokens,
            software: self.software,
            sampled: false,
            logprobs: false,
            features: self.features,
        }
    }

    fn matrix(&self, kind: MatrixKind) -> &Blocks {
        &self.blocks.iter().find(|(known, ..)| *known == kind).unwrap().2
    }

    fn vector(&self, kind: VectorKind) -> &[f32] {
        &self.vectors.iter().find(|(known, ..)| *known == kind).unwrap().2
    }

    /// Notes operations with `note` and runs them.
    async fn run<'a>(&'a self, pass: &Pass, note: impl FnOnce(&mut Ops<'a, '_>) -> crate::Result<()>) {
        let mut noted = Vec::new();
        note(&mut Ops { config: &self.config, s: &self.scratch, pass, note: &mut |op| noted.push(op) }).unwrap();
        self.run_ops(noted).await;
    }

    async fn run_ops(&self, ops: Vec<Op<'_>>) {
        for (source, ..) in &ops {
            if !self.kernels.borrow().contains_key(&source.text) {
                let compiled = self.gpu.compile(std::slice::from_ref(source)).await.unwrap().remove(0);
                self.kernels.borrow_mut().insert(source.text.clone(), compiled);
            }
        }
        let dispatches = ops.into_iter().map(|(source, ranges, workgroups)| {
            let kernel = self.kernels.borrow()[&source.text].clone();
            let bindings = self.gpu.bind(&kernel, &ranges);
            Dispatch { kernel, bindings, workgroups }
        });
        let recording = self.gpu.record(dispatches.collect());
        self.gpu.submit(&[&recording], None);
        self.gpu.finish().await.unwrap();
    }

    fn write(&self, buffer: &Buffer, values: &[f32]) {
        self.gpu.write(buffer, 0, bytemuck::cast_slice(values));
    }

    async fn read(&self, buffer: &Buffer, n: usize) -> Vec<f32> {
        let bytes = self.gpu.read(buffer, 0, 4 * n as u64).await.unwrap();
        bytemuck::pod_collect_to_vec(&bytes)
    }

    fn write_quantized(&self, buffer: &Buffer, q: &Quantized) {
        let mut words = Vec::new();
        for (codes, scale) in q.codes.chunks(8).zip(&q.scales) {
            words.extend_from_slice(codes);
            words.extend([scale[0].to_bits(), scale[1].to_bits(), 0, 0]);
        }
        self.gpu.write(buffer, 0, bytemuck::cast_slice(&words));
    }

    async fn read_quantized(&self, buffer: &Buffer, n_rows: usize, n_cols: usize) -> Quantized {
        let n_blocks = n_rows * n_cols / BLOCK;
        let words: Vec<u32> = self.read(buffer, 12 * n_blocks).await.iter().map(|v| v.to_bits()).collect();
        let codes = words.chunks(12).flat_map(|block| block[..8].to_vec()).collect();
        let scales = words.chunks(12).map(|block| [f32::from_bits(block[8]), f32::from_bits(block[9])]).collect();
        Quantized { n_cols, codes, scales }
    }

    /// A pass of `tree` over random tokens.
    fn set_control(&self, tree: &Tree, tokens: &[u32]) {
        let mut control = Control {
            n_committed: tree.n_committed as u32,
            n_nodes: tree.n_nodes() as u32,
            n_context: (tree.n_committed + tree.n_nodes()) as u32,
            n_given: tree.n_nodes() as u32,
            max_context: 256,
            ..Control::new()
        };
        for (node, slot) in control.slots.iter_mut().enumerate() {
            *slot = self.rows[tree.slot(node.min(tree.n_nodes() - 1))];
        }
        control.tokens[..tokens.len()].copy_from_slice(tokens);
        control.ancestors[..tree.n_nodes()].copy_from_slice(&tree.ancestors);
        self.gpu.write(&self.scratch.control, 0, bytemuck::bytes_of(&control));
    }
}

/// A tree whose nodes hang from random earlier nodes, the first from nothing.
fn random_tree(random: &mut Random, n_committed: usize, n_nodes: usize) -> Tree {
    let mut ancestors: Vec<u32> = Vec::new();
    for node in 0..n_nodes {
        let parent = if node == 0 { 0 } else { ancestors[node - 1 - random.below(node.min(3))] };
        ancestors.push(parent | 1 << node);
    }
    Tree { n_committed, ancestors }
}

fn close(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{name}");
    let scale = want.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
    let tolerance = if EXACT.load(Ordering::Relaxed) { 0.0 } else { tolerance };
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * scale, "{name}[{i}]: {got}, the twin has {want} (scale {scale})");
    }
}

/// Quantised values agree to one code in places where a rounding falls the other way.
fn close_quantized(name: &str, got: &Quantized, want: &Quantized) {
    let values = |q: &Quantized| -> Vec<f32> {
        let codes = q.codes.iter().flat_map(|word| word.to_le_bytes());
        codes.enumerate().map(|(i, code)| f32::from(code as i8) * q.scales[i / BLOCK][0]).collect()
    };
    close(name, &values(got), &values(want), 0.0083);
    let sums = got
        .codes
        .chunks(8)
        .map(|words| words.iter().flat_map(|word| word.to_le_bytes()).map(|code| f32::from(code as i8)).sum::<f32>());
    assert!(sums.zip(&got.scales).all(|(sum, scale)| sum == scale[1]), "{name}: a block's sum is wrong");
    let differing = values(got).iter().zip(values(want)).filter(|(a, b)| (*a - b).abs() > 1e-5 * b.abs()).count();
    assert!(differing * 50 <= got.codes.len() * 4, "{name}: {differing} codes differ from the twin's");
}

fn node_counts(bucket: usize) -> Vec<usize> {
    if bucket == 1 { vec![1] } else { vec![bucket, bucket / 2 + 1] }
}

/// All kernels of a shape, formats and features, at every bucket.
async fn check_kernels(config: Config, formats: [Format; 3], plain: bool, packed_dot: bool) {
    let mut bench = Bench::new(config, formats, plain).await;
    bench.features.packed_dot = packed_dot;
    let (c, s, w) = (&bench.config, &bench.scratch, &bench.weights);
    let layer = &w.layers[0];
    let mut random = Random(5);
    for (bucket, n) in BUCKETS.iter().flat_map(|&bucket| node_counts(bucket).into_iter().map(move |n| (bucket, n))) {
        let pass = bench.pass(bucket, Fusion::ALL);
        let n_committed = [0, 37, 64, 130][random.below(4)];
        let tree = random_tree(&mut random, n_committed, n);
        let tokens: Vec<u32> = (0..n).map(|_| random.below(c.vocab_size) as u32).collect();
        bench.set_control(&tree, &tokens);

        bench.run(&pass, |ops| ops.embed(&w.embed_tokens)).await;
        let x = cpu::embed(bench.matrix(MatrixKind::EmbedTokens), &tokens);
        close("embed", &bench.read(&s.x, n * c.dim).await, &x, 1e-6);

        // Activations with outliers, as real models have them.
        let mut x = random.normals(n * c.dim);
        x[c.dim / 3] = 70_000.0;
        bench.write(&s.x, &x);
        let norm = bench.vector(VectorKind::AttnNorm);
        let h = cpu::norm_quantize(&x, norm, c.rms_norm_eps);
        let plain_norm = bench.pass(bucket, Fusion::NONE);
        bench.run(&plain_norm, |ops| ops.norm(&layer.attn_vectors).map(|_| ())).await;
        close_quantized("norm_quantize", &bench.read_quantized(&s.h, n, c.dim).await, &h);

        let x = random.normals(n * c.dim);
        bench.write(&s.x, &x);
        let h = cpu::norm_quantize(&x, norm, c.rms_norm_eps);
        bench.write_quantized(&s.h, &h);
        bench.run(&pass, |ops| ops.matmul(&layer.qkv_proj, &layer.attn_vectors, &s.qkv, false)).await;
        let mut qkv = cpu::matmul(bench.matrix(MatrixKind::QkvProj), &h);
        close("matmul", &bench.read(&s.qkv, n * c.qkv_dim()).await, &qkv, 2e-6);

        if c.qkv_bias {
            cpu::add_bias(&mut qkv, bench.vector(VectorKind::QkvBias));
        }
        let mut cache = random_cache(&mut random, c);
        bench.gpu.write(&s.caches[0], 0, bytemuck::cast_slice(&[cache.k.clone(), cache.v.clone()].concat()));
        let q = cpu::rope_cache(c, &qkv, &cpu::rope_table(c, 256), &tree, &mut cache);
        for (name, fused) in [("rope_cache", false), ("qkv", true)] {
            bench.write(&s.q, &vec![9.0; n * c.q_dim()]);
            bench
                .run(&pass, |ops| match fused {
                    true => ops.qkv(&layer.qkv_proj, &layer.attn_vectors, &s.caches[0], false),
                    false => ops.rope_cache(&layer.attn_vectors, &s.caches[0]),
                })
                .await;
            close(name, &bench.read(&s.q, n * c.q_dim()).await, &q, 2e-6);
            let got = bench.read(&s.caches[0], cache.k.len()).await;
            let got: Vec<f32> = bytemuck::cast_slice::<f32, half::f16>(&got).iter().map(|v| v.to_f32()).collect();
            let want: Vec<f32> =
                [&cache.k, &cache.v].into_iter().flatten().map(|v| half::f16::from_bits(*v).to_f32()).collect();
            close(name, &got, &want, 1e-3);
        }

        bench.run(&pass, |ops| ops.attention(&s.caches[0])).await;
        let parts = cpu::attention(c, &q, &cache, &tree);
        let partial = bench.read(&s.partial, n * c.n_heads * s.max_chunks() * (c.head_dim + 2)).await;
        for (node, head) in (0..n).flat_map(|node| (0..c.n_heads).map(move |head| (node, head))) {
            for chunk in 0..(tree.position(node) + 1).div_ceil(CHUNK) {
                let at = ((node * c.n_heads + head) * s.max_chunks() + chunk) * (c.head_dim + 2);
                let (most, sum, acc) = parts.at(node, head, chunk);
                close("attention", &partial[at..][..c.head_dim], acc, 2e-3);
                close("attention's weights", &partial[at + c.head_dim..][..2], &[most, sum], 2e-3);
            }
        }
        bench.run(&pass, |ops| ops.merge()).await;
        let attn = cpu::merge_quantize(&parts);
        close_quantized("merge", &bench.read_quantized(&s.attn, n, c.q_dim()).await, &attn);

        let mut sum = x.clone();
        bench.write(&s.x, &x);
        bench.write_quantized(&s.attn, &attn);
        bench.run(&pass, |ops| ops.project(&layer.o_proj, &s.attn)).await;
        cpu::add_residual(&mut sum, &cpu::matmul(bench.matrix(MatrixKind::OProj), &attn));
        close("project", &bench.read(&s.x, n * c.dim).await, &sum, 2e-6);

        let gate_up = cpu::matmul(bench.matrix(MatrixKind::GateUpProj), &h);
        let act = cpu::silu_quantize(&gate_up, c.hidden_dim);
        bench.run(&pass, |ops| ops.gate_up(&layer.gate_up_proj, &layer.attn_vectors, false)).await;
        close_quantized("gate_up", &bench.read_quantized(&s.act, n, c.hidden_dim).await, &act);
        bench.write(&s.gate_up, &gate_up);
        bench.run(&pass, |ops| ops.silu_quantize()).await;
        close_quantized("silu_quantize", &bench.read_quantized(&s.act, n, c.hidden_dim).await, &act);

        let mut logits = random.normals(n * c.vocab_size);
        logits[c.vocab_size / 2] = 8.0;
        logits[c.vocab_size / 2 + 1] = 8.0;
        bench.write(&s.logits, &logits);
        bench.run(&pass, |ops| ops.argmax()).await;
        bench.run(&pass, |ops| ops.accept()).await;
        let control = bench.gpu.read(&s.control, 0, size_of::<Control>() as u64).await.unwrap();
        let control: Control = bytemuck::pod_read_unaligned(&control);
        let want = cpu::argmax(&logits[(n - 1) * c.vocab_size..]);
        assert_eq!((control.recent[0], control.n_generated), (want, 1), "argmax and accept");
        assert_eq!(control.n_committed as usize, tree.n_committed + n, "accept");
    }
}

fn random_cache(random: &mut Random, config: &Config) -> KvCache {
    let mut cache = KvCache::new(config.n_kv_heads, 256, config.head_dim);
    for half in cache.k.iter_mut().chain(&mut cache.v) {
        *half = half::f16::from_f32(random.normal()).to_bits();
    }
    cache
}

#[test]
fn kernels_agree_with_their_twins() {
    let formats = [Format::Q4Min, Format::Q4, Format::Q8];
    for (i, config) in shapes().into_iter().enumerate() {
        let formats = [formats[i], formats[(i + 1) % 3], formats[(i + 2) % 3]];
        pollster::block_on(check_kernels(config, formats, i == 1, i != 2));
    }
}

/// Texts over a small alphabet, so that much repeats, with what the counters may hold.
async fn check_draft(max_seq_len: usize, random: &mut Random) {
    let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
    let config = shapes().into_iter().next().unwrap();
    let scratch = Scratch::new(&gpu, &config, max_seq_len, MAX_NODES).await.unwrap();
    let mut bench = Bench::new(config, [Format::Q4; 3], false).await;
    (bench.gpu, bench.scratch) = (gpu, scratch);
    let s = &bench.scratch;
    for round in 0..24 {
        let alphabet = [2, 5, 40, 300][round % 4];
        let mut memory: Vec<u32> =
            (0..[0, 1, 700, MEMORY][round / 4 % 4]).map(|_| random.below(alphabet) as u32).collect();
        memory.iter_mut().filter(|_| random.below(50) == 0).for_each(|token| *token = cpu::draft::SEPARATOR);
        let n_context = [1, 2, 9, 200, max_seq_len - 3, max_seq_len - 1][round % 6].max(1);
        let context: Vec<u32> = (0..n_context).map(|_| random.below(alphabet) as u32).collect();
        let counters = cpu::draft::OrderCounters {
            hits: std::array::from_fn(|_| random.below(900) as u32),
            tries: std::array::from_fn(|_| 900 + random.below(3000) as u32),
        };
        let text = cpu::draft::DraftText { memory: &memory, context: &context, memory_capacity: MEMORY, max_seq_len };
        let candidates = cpu::draft::scan(&text);
        let bucket = BUCKETS[1 + round % 5];
        let most = bucket.min(s.max_seq_len - n_context + 1);
        let want = cpu::draft::draft_tree(&text, &candidates, &counters, most);

        let control = Control {
            n_committed: n_context as u32 - 1,
            n_context: n_context as u32,
            n_memory: memory.len() as u32,
            hits: counters.hits,
            tries: counters.tries,
            ..Control::new()
        };
        bench.gpu.write(&s.control, 0, bytemuck::bytes_of(&control));
        bench.gpu.write(&s.text, 0, bytemuck::cast_slice(&memory));
        bench.gpu.write(&s.text, 4 * MEMORY as u64, bytemuck::cast_slice(&context));
        let pass = bench.pass(bucket, Fusion::NONE);
        bench.run(&pass, |ops| ops.find_matches()).await;
        bench.run(&pass, |ops| ops.draft()).await;
        let bytes = bench.gpu.read(&s.control, 0, size_of::<Control>() as u64).await.unwrap();
        let got: Control = bytemuck::pod_read_unaligned(&bytes);
        let n = got.n_nodes as usize;
        assert_eq!(got.tokens[..n], want.tokens, "tokens of round {round}");
        assert_eq!(got.ancestors[..n], want.ancestors, "ancestors of round {round}");
        assert_eq!((got.match_length, got.n_given), (want.match_length, 1), "round {round}");
        let votes = got.candidate_orders.iter().zip(got.candidate_tokens).take(got.n_candidates as usize);
        let votes: Vec<_> = votes.map(|(order, token)| cpu::draft::Vote { order: *order, token }).collect();
        assert_eq!(votes, want.votes, "candidates of round {round}");

        // Accepting a random prediction of each node: the path, and the counters.
        let predictions: Vec<u32> = (0..n)
            .map(|node| {
                let children = (node + 1..n).filter(|child| want.parents[*child] as usize == node);
                let children: Vec<u32> = children.map(|child| want.tokens[child]).collect();
                if children.is_empty() || random.below(4) == 0 { 7 } else { children[random.below(children.len())] }
            })
            .collect();
        let parts = vocab_parts(bench.config.vocab_size);
        let mut best = vec![[0.0f32.to_bits(), u32::MAX]; n * parts];
        predictions.iter().enumerate().for_each(|(node, token)| best[node * parts] = [1f32.to_bits(), *token]);
        bench.gpu.write(&s.best, 0, bytemuck::cast_slice(&best));
        let mut control = Control { max_context: s.max_seq_len as u32, ..got };
        control.slots = got.slots;
        bench.gpu.write(&s.control, 0, bytemuck::bytes_of(&control));
        bench.run(&pass, |ops| ops.accept()).await;
        let bytes = bench.gpu.read(&s.control, 0, size_of::<Control>() as u64).await.unwrap();
        let accepted: Control = bytemuck::pod_read_unaligned(&bytes);
        let mut rows: Vec<u32> =
            bytemuck::pod_collect_to_vec(&bench.gpu.read(&s.slot_map, 0, s.slot_map.size()).await.unwrap());
        let (path, tokens) = cpu::accept(&want.tokens, &want.parents, &predictions);
        let room = s.max_seq_len - n_context;
        let appended = &tokens[..tokens.len().min(room)];
        assert_eq!(accepted.recent[..appended.len()], *appended, "accepted tokens of round {round}");
        assert_eq!(accepted.n_generated as usize, appended.len(), "round {round}");
        for (i, node) in path.iter().enumerate().take(appended.len()) {
            assert_eq!(rows[n_context - 1 + i], got.slots[*node], "rows of round {round}");
        }
        rows.sort_unstable();
        assert!(rows.iter().enumerate().all(|(i, row)| *row == i as u32), "the slot map is no permutation");
        let mut counters = counters;
        counters.update(&want.votes, predictions[0]);
        assert_eq!((accepted.hits, accepted.tries), (counters.hits, counters.tries), "counters of round {round}");
    }
}

#[test]
fn drafts_are_those_of_the_twins() {
    let mut random = Random(23);
    for max_seq_len in [256, 2048] {
        pollster::block_on(check_draft(max_seq_len, &mut random));
    }
}

/// Mixes of options, of which every one is off somewhere.
fn sampling_options(random: &mut Random, round: usize, vocab_size: usize) -> SamplingOptions {
    let biased = (0..random.below(65).min(vocab_size)).map(|i| ((i * 7 % vocab_size) as u32, random.normal() * 5.0));
    SamplingOptions {
        logit_bias: if round % 3 == 1 { biased.collect() } else { Vec::new() },
        temperature: [0.8, 0.0, 1.0, 0.05, 3.0][round % 5],
        top_k: [0, 40, 1, 256][round % 4],
        top_p: [1.0, 0.9, 0.3, 0.999][round / 2 % 4],
        min_p: [0.0, 0.05, 0.0][round % 3],
        seed: random.next() as u32,
        repetition_penalty: [1.1, 1.0, 0.8][round % 3],
        presence_penalty: [0.0, 0.4, -1.0, 0.0][round % 4],
        frequency_penalty: [0.0, 0.3, 0.0][round % 3],
    }
}

/// The sampler's kernels over random trees and texts with many repetitions.
async fn check_sampling(config: Config, bench: &mut Bench, random: &mut Random) {
    let vocab_size = config.vocab_size;
    bench.scratch = Scratch::new(&bench.gpu, &config, 2048, MAX_NODES).await.unwrap();
    bench.config = config;
    let s = &bench.scratch;
    let (mut choices, mut differing) = (0, 0);
    for (round, (bucket, n)) in BUCKETS
        .iter()
        .cycle()
        .flat_map(|&bucket| node_counts(bucket).into_iter().map(move |n| (bucket, n)))
        .take(24)
        .enumerate()
    {
        let options = sampling_options(random, round, vocab_size);
        let Some(sampling) = options.resolve(vocab_size).unwrap() else { continue };
        let n_context = [9, 300, 1020, 1500][round % 4];
        let n_generated = [0, 5, n_context - 1][round % 3];
        // Few tokens that come often, and many, of which some stand at the edge of a window alone.
        let alphabet = [random.below(12) + 1, 200, vocab_size][round % 3].min(vocab_size);
        let mut draw = |n: usize| -> Vec<u32> { (0..n).map(|_| random.below(alphabet) as u32).collect() };
        let (context, mut tokens) = (draw(n_context), draw(n));
        tokens[0] = context[n_context - 1];
        let tree = random_tree(random, n_context - 1, n);
        let mut control = Control {
            n_committed: tree.n_committed as u32,
            n_nodes: n as u32,
            n_context: n_context as u32,
            n_generated: n_generated as u32,
            n_given: 1,
            max_context: 2048,
            ..Control::new()
        };
        control.tokens[..n].copy_from_slice(&tokens);
        control.ancestors[..n].copy_from_slice(&tree.ancestors);
        let mut logits: Vec<f32> = random.normals(n * vocab_size).iter().map(|v| 4.0 * v).collect();
        if round % 2 == 1 {
            // Many that are equal.
            logits.iter_mut().for_each(|v| *v = v.round());
        }
        logits[vocab_size / 2] = f32::NAN;
        bench.gpu.write(&s.control, 0, bytemuck::bytes_of(&control));
        bench.gpu.write(&s.text, 4 * MEMORY as u64, bytemuck::cast_slice(&context));
        bench.gpu.write(&s.sampling, 0, bytemuck::bytes_of(&sampling));
        bench.write(&s.logits, &logits);
        let pass = bench.pass(bucket, Fusion::NONE);
        bench.run(&pass, |ops| ops.penalize()).await;
        let penalized = bench.read(&s.logits, n * vocab_size).await;
        bench.run(&pass, |ops| ops.threshold()).await;
        bench.run(&pass, |ops| ops.sample()).await;
        let thresholds = bench.read(&s.thresholds, n).await;
        let parts = vocab_parts(vocab_size);
        let best = bench.read(&s.best, 2 * n * parts).await;
        let counts = bench.read(&s.counts, s.counts.size() as usize / 4).await;
        assert!(counts.iter().all(|count| count.to_bits() == 0), "counts are left behind in round {round}");
        for node in 0..n {
            let row = node * vocab_size..(node + 1) * vocab_size;
            let path = (1..n).filter(|i| tree.ancestors[node] >> i & 1 == 1);
            let ancestors: Vec<u32> = path.map(|i| tokens[i]).collect();
            let logits = &mut logits[row.clone()];
            cpu::penalize(logits, &sampling, &context, n_context - n_generated, &ancestors);
            for (token, (got, want)) in penalized[row].iter().zip(&*logits).enumerate() {
                let bound = if EXACT.load(Ordering::Relaxed) { 0.0 } else { 1e-5 };
                let agrees = (got - want).abs() <= bound || (got.is_nan() && want.is_nan());
                assert!(agrees, "token {token} of node {node} in round {round}: {got}, the twin has {want}");
            }
            let threshold = cpu::threshold(logits, &sampling);
            let want = cpu::sample(logits, &sampling, threshold, n_context + ancestors.len());
            let best = best[2 * node * parts..][..2 * parts].chunks(2);
            let found = best.fold((f32::NEG_INFINITY, 0), |most, best| {
                if best[0] > most.0 && best[1].to_bits() < vocab_size as u32 {
                    (best[0], best[1].to_bits())
                } else {
                    most
                }
            });
            choices += 1;
            if found.1 != want || thresholds[node].to_bits() != threshold {
                differing += 1;
                if EXACT.load(Ordering::Relaxed) {
                    panic!(
                        "node {node} of {n} in round {round}: token {} of threshold {:#x}, the twin has {want} of {threshold:#x} with {options:?}",
                        found.1,
                        thresholds[node].to_bits()
                    );
                }
            }
        }
    }
    assert!(choices > 100 && differing * 20 <= choices, "{differing} of {choices} choices differ");
}

#[test]
fn choices_are_those_of_the_twins() {
    let mut random = Random(41);
    pollster::block_on(async {
        let [_, wide, narrow] = shapes();
        let mut bench = Bench::new(shapes()[0].clone(), [Format::Q4; 3], false).await;
        for config in [narrow, wide] {
            check_sampling(config, &mut bench, &mut random).await;
        }
    });
}

/// Log-probabilities behind the nodes of random paths, and the logits that penalties leave to them.
async fn check_logprobs(config: Config, bench: &mut Bench, random: &mut Random) {
    let vocab_size = config.vocab_size;
    bench.scratch = Scratch::new(&bench.gpu, &config, 256, MAX_NODES).await.unwrap();
    bench.scratch.make_kept(&bench.gpu).await.unwrap();
    bench.config = config;
    let s = &bench.scratch;
    for (round, bucket) in BUCKETS.iter().copied().cycle().take(18).enumerate() {
        // Nodes that the context holds, and a path through the others; an end token may have cut off what follows it.
        let n_given = 1 + random.below(bucket.min(3));
        let accepted = (n_given..bucket).filter(|_| random.below(3) == 0).take(8);
        let path: Vec<usize> = (0..n_given).chain(accepted).collect();
        let nodes = &path[n_given - 1..];
        let n_new = (nodes.len() - usize::from(round % 4 == 3)).min(MAX_NEW);
        let (n_generated, n_steps) = (n_new + random.below(400), 1 + random.below(200));
        let n_top = [20, 0, 5, 1][round % 4];
        let mut control = Control {
            n_nodes: bucket as u32,
            n_given: n_given as u32,
            n_context: 200,
            n_generated: n_generated as u32,
            n_steps: n_steps as u32,
            n_new: n_new as u32,
            n_top: n_top as u32,
            ..Control::new()
        };
        control.step_paths[(n_steps - 1) % STEP_STATS] = path.iter().fold(0, |path, node| path | 1 << node);
        control.recent = std::array::from_fn(|_| random.below(vocab_size) as u32);
        let spread = [4.0, 0.3, 15.0][round % 3];
        let mut logits: Vec<f32> = random.normals(bucket * vocab_size).iter().map(|v| spread * v).collect();
        if round % 2 == 1 {
            // Many that are equal.
            logits.iter_mut().for_each(|v| *v = v.round());
        }
        for (i, value) in [f32::NAN, f32::NEG_INFINITY, -0.0, -200.0].into_iter().enumerate() {
            (0..bucket).for_each(|node| logits[node * vocab_size + (7 + 50 * i) * (node + 1) % vocab_size] = value);
        }
        let mut pass = bench.pass(bucket, Fusion::NONE);
        pass.logprobs = true;
        bench.gpu.write(&s.control, 0, bytemuck::bytes_of(&control));
        bench.write(&s.logits, &logits);
        if round % 2 == 0 {
            pass.sampled = true;
            let options = SamplingOptions { logit_bias: vec![(3, 9.0)], ..SamplingOptions::default() };
            bench.gpu.write(&s.sampling, 0, bytemuck::bytes_of(&options.resolve(vocab_size).unwrap().unwrap()));
            bench.run(&pass, |ops| ops.penalize()).await;
        }
        bench.run(&pass, |ops| ops.logprob_parts()).await;
        bench.run(&pass, |ops| ops.logprobs()).await;
        let bytes = bench.gpu.read(&s.control, 0, CONTROL_BYTES).await.unwrap();
        let told: Vec<Logprobs> = bytemuck::pod_collect_to_vec(&bytes[size_of::<Control>()..]);
        assert_eq!((told.len(), MAX_TOP), (LOGPROBS, 20));
        for (i, node) in nodes.iter().enumerate().take(n_new) {
            let number = n_generated - n_new + i;
            let got = told[number % LOGPROBS].told(n_top.min(vocab_size));
            let token = control.recent[number % RECENT];
            let want = cpu::logprobs(&logits[node * vocab_size..][..vocab_size], token, n_top);
            let at = format!("token {i} of {n_new} in round {round}");
            let tokens = |told: &TokenLogprobs| told.top.iter().map(|(token, _)| *token).collect::<Vec<_>>();
            assert_eq!(tokens(&got), tokens(&want), "{at}");
            for (got, want) in numbers(&got).zip(numbers(&want)) {
                let bound = if EXACT.load(Ordering::Relaxed) { 0.0 } else { 2e-6 * want.abs().max(1.0) };
                let agrees = (got - want).abs() <= bound || got == want || (got.is_nan() && want.is_nan());
                assert!(agrees, "{at}: {got}, the twin has {want}");
            }
        }
    }
}

fn numbers(told: &TokenLogprobs) -> impl Iterator<Item = f32> {
    std::iter::once(told.logprob).chain(told.top.iter().map(|(_, logprob)| *logprob))
}

#[test]
fn log_probabilities_are_those_of_the_twin() {
    let mut random = Random(61);
    pollster::block_on(async {
        for plain in [false, true] {
            let [_, wide, narrow] = shapes();
            let widest = Config { vocab_size: 21_000, ..narrow.clone() };
            let tiny = Config { vocab_size: 12, ..narrow.clone() };
            let mut bench = Bench::new(shapes()[0].clone(), [Format::Q4; 3], plain).await;
            for config in [narrow, wide, widest, tiny] {
                check_logprobs(config, &mut bench, &mut random).await;
            }
        }
    });
}

/// Bits of the residual and of the logits of each node after a whole step.
async fn bits(bench: &Bench, pass: &Pass, tree: &Tree, tokens: &[u32]) -> Vec<Vec<u32>> {
    let n = tree.n_nodes();
    bench.set_control(tree, tokens);
    let mut ops = Vec::new();
    forward(&bench.config, &bench.weights, &bench.scratch, pass, &mut |op| ops.push(op)).unwrap();
    // The step's nodes are set already, and nothing shall be accepted.
    let last = ops.len() - 1;
    let ops = ops.into_iter().enumerate().filter(|(i, _)| *i != 0 && *i != last).map(|(_, op)| op).collect();
    bench.run_ops(ops).await;
    let x = bench.read(&bench.scratch.x, n * bench.config.dim).await;
    let logits = bench.read(&bench.scratch.logits, n * bench.config.vocab_size).await;
    x.chunks(bench.config.dim)
        .zip(logits.chunks(bench.config.vocab_size))
        .map(|(x, logits)| x.iter().chain(logits).map(|v| v.to_bits()).collect())
        .collect()
}

/// A token's numbers are the same bits in any tree, bucket and plan as in steps of one.
async fn check_bits(config: Config, formats: [Format; 3]) {
    let bench = Bench::new(config, formats, false).await;
    let mut plain = Bench::new(bench.config.clone(), formats, true).await;
    let mut random = Random(3);
    // Where the rows lie in the cache tells in no bit.
    for i in 1..256 {
        plain.rows.swap(i, random.below(i + 1));
    }
    plain.gpu.write(&plain.scratch.slot_map, 0, bytemuck::cast_slice(&plain.rows));
    let one_by_one = |bench: &Bench, tree: &Tree, tokens: &[u32], node: usize| {
        let path: Vec<usize> = (0..tree.n_nodes()).filter(|i| tree.ancestors[node] >> i & 1 == 1).collect();
        let steps: Vec<(Tree, Vec<u32>)> = path
            .iter()
            .enumerate()
            .map(|(i, &node)| (Tree::chain(tree.n_committed + i, 1), vec![tokens[node]]))
            .collect();
        let pass = bench.pass(1, Fusion::NONE);
        pollster::block_on(async {
            let mut last = Vec::new();
            for (tree, tokens) in &steps {
                last = bits(bench, &pass, tree, tokens).await;
            }
            last.remove(0)
        })
    };
    for bucket in BUCKETS {
        for n in node_counts(bucket) {
            let tree = random_tree(&mut random, 29, n);
            let tokens: Vec<u32> = (0..n).map(|_| random.below(bench.config.vocab_size) as u32).collect();
            let watched = [0, n / 2, n - 1];
            let want: Vec<_> = watched.iter().map(|&node| one_by_one(&bench, &tree, &tokens, node)).collect();
            for (bench, fusion) in [(&bench, Fusion::NONE), (&bench, Fusion::ALL), (&plain, Fusion::ALL)] {
                let got = bits(bench, &bench.pass(bucket, fusion), &tree, &tokens).await;
                for (want, node) in want.iter().zip(watched) {
                    assert!(got[node] == *want, "node {node} of {n} in a bucket of {bucket} with {fusion:?}");
                }
            }
        }
    }
}

#[test]
fn a_tree_has_the_bits_of_steps_of_one() {
    for config in shapes() {
        pollster::block_on(check_bits(config, [Format::Q4Min, Format::Q8, Format::Q8]));
    }
}
