//! The CPU twins give the same bits whatever the instruction set, the threads and the split into passes.

use forerun::Error;
use forerun::cpu::simd::{self, Level};
use forerun::cpu::{
    CpuModel, CpuWeights, KvCache, LogitsOf, PackedBlocks, Pass, Quantized, Tree, argmax, attention, matmul, merge,
    quantize,
};
use forerun::decoder::request::News;
use forerun::decoder::{Finish, Mode, Request, SamplingOptions};
use forerun::model::package::{MatrixInfo, MatrixKind, VectorKind, WeightSink};
use forerun::model::{Architecture, Blocks, Config, Format, RopePairs};
use std::ops::ControlFlow;
use std::sync::Mutex;

/// The level is one for the whole process, so tests that set it take turns.
static LEVEL: Mutex<()> = Mutex::new(());

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// Any codes, and finite scales of either sign.
    fn blocks(&mut self, format: Format, n_rows: usize, n_cols: usize) -> Blocks {
        let n = n_rows * n_cols / 32;
        let mut scale = || u32::from(half::f16::from_f32(self.float() * 0.05).to_bits());
        let scales = (0..format.scale_words(n)).map(|_| scale() | scale() << 16).collect();
        let codes = (0..n * format.code_words()).map(|_| self.bits()).collect();
        Blocks { format, n_rows, n_cols, codes, scales }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `f` at every level of this machine.
fn everywhere(mut f: impl FnMut(&str)) {
    let _turn = LEVEL.lock().unwrap();
    for level in [Level::Plain, Level::Avx2, Level::AvxVnni, Level::Avx512Vnni] {
        if simd::limit(level) == level {
            f(&format!("{level:?}"));
        }
    }
    simd::limit(Level::Avx512Vnni);
}

#[test]
fn products_are_the_same_bits_everywhere() {
    let mut random = Random(1);
    // Odd numbers of blocks and rows, each number of lanes, and both ends of a lane's range.
    for (n_rows, n_cols) in [(1, 32), (17, 96), (48, 576), (16, 2048), (33, 2080), (15, 8192), (5, 8224), (40, 9728)] {
        for format in [Format::Q4, Format::Q4Min, Format::Q8] {
            let weights = random.blocks(format, n_rows, n_cols);
            let x = quantize(&random.floats(32 * n_cols), n_cols);
            let expected = matmul(&weights, &x);
            let mut packed = PackedBlocks::new(format, n_rows, n_cols);
            assert!(packed.set_rows(0, &weights));
            everywhere(|place| {
                for n in [1, 2, 3, 7, 8, 9, 31, 32] {
                    let y = packed.matmul(&x.slice(0..n));
                    assert_eq!(bits(&y), bits(&expected[..n * n_rows]), "{format:?} {n_rows}x{n_cols}, {n}, {place}");
                }
                assert_eq!(bits(&matmul(&weights, &x.slice(0..2))), bits(&expected[..2 * n_rows]), "{place}");
            });
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    for format in [Format::Q4, Format::Q4Min, Format::Q8] {
        for code in [0u32, 0x7f7f_7f7f, 0x8080_8080, u32::MAX] {
            let n = 16 * 3;
            let weights = Blocks {
                format,
                n_rows: 16,
                n_cols: 96,
                codes: vec![code; n * format.code_words()],
                scales: vec![0x3c00_3c00; format.scale_words(n)],
            };
            let x = Quantized {
                n_cols: 96,
                codes: [vec![0x7f7f_7f7f; 24], vec![0x8181_8181; 24]].concat(),
                scales: [vec![[1.0, 32.0 * 127.0]; 3], vec![[1.0, -32.0 * 127.0]; 3]].concat(),
            };
            let expected = matmul(&weights, &x);
            let mut packed = PackedBlocks::new(format, 16, 96);
            assert!(packed.set_rows(0, &weights));
            everywhere(|place| assert_eq!(bits(&packed.matmul(&x)), bits(&expected), "{format:?} {code:#x} {place}"));
        }
    }
}

#[test]
fn packing_keeps_every_row() {
    let mut random = Random(2);
    for format in [Format::Q4, Format::Q4Min, Format::Q8] {
        let blocks = random.blocks(format, 37, 96);
        let mut packed = PackedBlocks::new(format, 37, 96);
        assert!(packed.set_rows(0, &blocks));
        let order: Vec<u32> = (0..37).collect();
        // An odd count of blocks leaves half a word of scales over, which packing does not keep.
        let mut expected = blocks.clone();
        if format != Format::Q4Min {
            *expected.scales.last_mut().unwrap() &= 0xffff;
        }
        assert_eq!(packed.rows(&order), expected);
        // Row by row, as a loader may deliver them.
        let mut again = PackedBlocks::new(format, 37, 96);
        for row in 0..37 {
            assert!(again.set_rows(row, &packed.rows(&[row as u32])));
        }
        assert_eq!(again.rows(&order), expected);
        assert!(!again.set_rows(37, &packed.rows(&[0])));
        assert!(!again.set_rows(usize::MAX, &packed.rows(&[0])));
    }
}

/// A small model of odd shapes with random weights.
fn random_model(random: &mut Random, config: &Config, format: Format, context: usize) -> CpuModel {
    let mut weights = CpuWeights::new(config.clone());
    let mut matrix = |weights: &mut CpuWeights, kind, layer, n_rows, n_cols| {
        let info = MatrixInfo { kind, layer, n_rows, n_cols, format };
        // In two slabs, as a file would deliver it.
        let first = n_rows / 2;
        let slabs = [random.blocks(format, first, n_cols), random.blocks(format, n_rows - first, n_cols)];
        for (slab, first_row) in slabs.into_iter().zip([0, first]) {
            pollster::block_on(weights.rows(&info, first_row, slab)).unwrap();
        }
    };
    matrix(&mut weights, MatrixKind::EmbedTokens, 0, config.vocab_size, config.dim);
    for layer in 0..config.n_layers {
        matrix(&mut weights, MatrixKind::QkvProj, layer, config.qkv_dim(), config.dim);
        matrix(&mut weights, MatrixKind::OProj, layer, config.dim, config.q_dim());
        matrix(&mut weights, MatrixKind::GateUpProj, layer, 2 * config.hidden_dim, config.dim);
        matrix(&mut weights, MatrixKind::DownProj, layer, config.dim, config.hidden_dim);
    }
    if !config.tied_head {
        matrix(&mut weights, MatrixKind::LmHead, 0, config.vocab_size, config.dim);
    }
    let mut vector = |weights: &mut CpuWeights, kind, layer, len| {
        let values = random.floats(len).iter().map(|value| 1.0 + value / 2.0).collect();
        pollster::block_on(weights.vector(kind, layer, values)).unwrap();
    };
    for layer in 0..config.n_layers {
        vector(&mut weights, VectorKind::AttnNorm, layer, config.dim);
        vector(&mut weights, VectorKind::MlpNorm, layer, config.dim);
        if config.qkv_bias {
            vector(&mut weights, VectorKind::QkvBias, layer, config.qkv_dim());
        }
    }
    vector(&mut weights, VectorKind::Norm, 0, config.dim);
    CpuModel::new(weights, context).unwrap()
}

fn small_config(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Config {
    Config {
        architecture: Architecture::Qwen2,
        dim: 96,
        hidden_dim: 160,
        n_layers: 2,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size: 53,
        max_seq_len: 128,
        rms_norm_eps: 1e-5,
        rope_frequencies: (0..head_dim / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / head_dim as f64)).collect(),
        rope_pairs: RopePairs::Adjacent,
        qkv_bias: n_kv_heads == 2,
        tied_head: n_kv_heads == 1,
    }
}

/// Runs `tokens` in passes of the lengths `lengths`, again and again, and answers each token's logits.
fn logits_in_passes(model: &mut CpuModel, tokens: &[u32], lengths: &[usize]) -> Vec<Vec<u32>> {
    model.truncate(0);
    let mut logits = Vec::new();
    for length in lengths.iter().cycle() {
        let rest = &tokens[model.committed().len()..];
        if rest.is_empty() {
            break;
        }
        let pass = Pass::chain(&rest[..rest.len().min(*length)]);
        let out = model.forward(&pass, LogitsOf::All).unwrap();
        logits.extend(out.chunks_exact(model.config().vocab_size).map(bits));
        model.commit(&pass, pass.tokens.len() - 1);
    }
    logits
}

#[test]
fn a_token_has_the_same_logits_in_any_pass() {
    for (n_heads, n_kv_heads, head_dim) in [(3, 1, 32), (4, 2, 24), (4, 4, 8)] {
        for format in [Format::Q4, Format::Q4Min, Format::Q8] {
            let mut random = Random(3);
            let config = small_config(n_heads, n_kv_heads, head_dim);
            let mut model = random_model(&mut random, &config, format, 100);
            // Beyond three chunks of attention.
            let tokens: Vec<u32> = (0..100).map(|_| random.bits() % 53).collect();
            let expected = logits_in_passes(&mut model, &tokens, &[1]);
            assert!(expected.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
            everywhere(|place| {
                for lengths in [&[1][..], &[32], &[31, 2], &[7, 1, 16]] {
                    let logits = logits_in_passes(&mut model, &tokens, lengths);
                    assert!(logits == expected, "{format:?} {head_dim} {lengths:?} {place}");
                }
            });
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let logits = pool.install(|| logits_in_passes(&mut model, &tokens, &[32]));
                assert!(logits == expected, "{threads} threads");
            }
        }
    }
}

#[test]
fn a_branch_of_a_tree_has_the_logits_of_its_text() {
    let mut random = Random(4);
    let config = small_config(4, 2, 24);
    let mut model = random_model(&mut random, &config, Format::Q4Min, 80);
    for n_prompt in [1, 29, 31, 32, 45] {
        for _ in 0..4 {
            // Each node hangs on a random earlier one.
            let tokens: Vec<u32> = (0..32).map(|_| random.bits() % 53).collect();
            let mut ancestors = vec![1u32];
            for i in 1..32 {
                ancestors.push(ancestors[random.bits() as usize % i] | 1 << i);
            }
            let prompt: Vec<u32> = (0..n_prompt).map(|_| random.bits() % 53).collect();
            let pass = Pass { tokens, ancestors };
            model.truncate(0);
            pollster::block_on(model.prefill(&prompt, |_| ControlFlow::Continue(()))).unwrap();
            let logits = model.forward(&pass, LogitsOf::All).unwrap();
            let node = 31 - random.bits() as usize % 8;
            // Committing the branch leaves the cache as if its text had been read alone.
            model.commit(&pass, node);
            let text = model.committed().to_vec();
            let next = bits(&model.forward(&Pass::chain(&[7]), LogitsOf::Last).unwrap());
            let alone = logits_in_passes(&mut model, &[&text[..], &[7]].concat(), &[1]);
            assert_eq!(bits(&logits[node * 53..(node + 1) * 53]), alone[text.len() - 1]);
            assert_eq!(next, alone[text.len()]);
        }
    }
}

#[test]
fn greedy_decoding_keeps_its_limits() {
    let mut random = Random(5);
    let config = small_config(3, 1, 32);
    let mut model = random_model(&mut random, &config, Format::Q8, 64);
    let prompt: Vec<u32> = (0..40).map(|_| random.bits() % 53).collect();
    let mut generate = |prompt: &[u32], max_tokens: usize, end_tokens: &[u32], mut left: usize| {
        let request = Request {
            prompt,
            max_tokens,
            end_tokens,
            mode: Mode::Loop,
            sampling: SamplingOptions::default(),
            logprobs: None,
        };
        // `left` counts the tokens until the caller breaks off.
        let mut on_tokens = |news: &News<'_>| {
            let new = news.tokens;
            left -= new.len();
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let generated = pollster::block_on(model.generate(&request, &mut on_tokens)).unwrap();
        (generated.tokens, generated.finish)
    };
    let (tokens, finish) = generate(&prompt, 10, &[], 100);
    assert_eq!((tokens.len(), finish), (10, Some(Finish::Length)));
    // Reusing the whole prompt, and a part of it, changes nothing.
    assert_eq!(generate(&prompt, 10, &[], 100).0, tokens);
    generate(&prompt[..20], 5, &[], 100);
    assert_eq!(generate(&prompt, 10, &[], 100).0, tokens);
    // The first occurrence of an end token ends the text.
    let end = tokens[6];
    let first = tokens.iter().position(|token| *token == end).unwrap();
    assert_eq!(generate(&prompt, 10, &[end], 100), (tokens[..=first].to_vec(), Some(Finish::EndToken)));
    // The context holds 64 tokens, and the prompt has 40.
    let (all, finish) = generate(&prompt, 100, &[], 100);
    assert_eq!((all.len(), finish), (24, Some(Finish::Length)));
    assert_eq!(generate(&prompt, 10, &[], 3), (tokens[..3].to_vec(), None));
}

#[test]
fn wrong_requests_are_errors() {
    let config = small_config(3, 1, 32);
    let mut model = random_model(&mut Random(6), &config, Format::Q8, 40);
    let go_on = |_| ControlFlow::Continue(());
    assert!(matches!(pollster::block_on(model.prefill(&[], go_on)), Err(Error::BadInput(_))));
    assert!(matches!(pollster::block_on(model.prefill(&[53], go_on)), Err(Error::BadInput(_))));
    assert!(matches!(
        pollster::block_on(model.prefill(&[1; 41], go_on)),
        Err(Error::ContextOverflow { needed: 41, context: 40 })
    ));
    assert!(matches!(pollster::block_on(model.prefill(&[1; 35], |_| ControlFlow::Break(()))), Err(Error::Aborted)));
    for ancestors in [vec![0], vec![2], vec![1, 1], vec![1, 3, 7]] {
        let pass = Pass { tokens: vec![1, 2], ancestors };
        assert!(matches!(model.forward(&pass, LogitsOf::Last), Err(Error::BadInput(_))));
    }
    assert!(matches!(CpuModel::new(CpuWeights::new(config), 10), Err(Error::ModelFormat(_))));
}

#[test]
fn argmax_takes_the_lowest_and_never_nan() {
    assert_eq!(argmax(&[f32::NAN, 1.0, 3.0, 3.0, f32::NAN]), 2);
    assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
    assert_eq!(argmax(&[f32::NAN]), 0);
    assert_eq!(argmax(&[-0.0, 0.0]), 0);
}

#[test]
fn attention_is_the_softmax_of_the_scores() {
    let mut random = Random(7);
    let config = small_config(4, 2, 24);
    let tree = Tree { n_committed: 70, ancestors: vec![1, 3, 5, 0b1101] };
    let mut cache = KvCache::new(2, 80, 24);
    let mut half = || half::f16::from_f32(random.float()).to_bits();
    cache.k.fill_with(&mut half);
    cache.v.fill_with(&mut half);
    let q = random.floats(4 * 96);
    // The twin takes queries that are scaled already.
    let scaled: Vec<f32> = q.iter().map(|q| q / 24f32.sqrt()).collect();
    let attn = merge(&attention(&config, &scaled, &cache, &tree));
    for node in 0..4 {
        let slots: Vec<usize> =
            (0..70).chain((0..4).filter(|j| tree.ancestors[node] >> j & 1 == 1).map(|j| 70 + j)).collect();
        for head in 0..4 {
            let q = &q[node * 96 + head * 24..][..24];
            let row = |rows: &[u16], slot| -> Vec<f64> {
                rows[cache.row(head / 2, slot)].iter().map(|bits| half::f16::from_bits(*bits).to_f64()).collect()
            };
            let dot = |k: Vec<f64>| q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
            let weights: Vec<f64> = slots.iter().map(|slot| (dot(row(&cache.k, *slot)) / 24f64.sqrt()).exp()).collect();
            for d in 0..24 {
                let sum: f64 = slots.iter().zip(&weights).map(|(slot, w)| w * row(&cache.v, *slot)[d]).sum();
                let expected = sum / weights.iter().sum::<f64>();
                let got = f64::from(attn[node * 96 + head * 24 + d]);
                assert!((got - expected).abs() < 1e-6, "node {node} head {head} element {d}: {got}, not {expected}");
            }
        }
    }
}
