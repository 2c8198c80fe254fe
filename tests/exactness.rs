//! The same tokens, whatever the plan, the mode, the limits, the backend's features and what the cache held before.

mod common;

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;

use common::TinyModel;
use forerun::cpu::{CpuModel, CpuWeights};
use forerun::decoder::controller::Costs;
use forerun::decoder::memory::Memory;
use forerun::decoder::request::News;
use forerun::decoder::step::MEMORY;
use forerun::decoder::{Finish, FusionChoice, GpuDecoder, Mode, Request, SamplingOptions, TokenLogprobs, Weights};
use forerun::gpu::{Gpu, GpuOptions, LimitsRequest};
use forerun::model::{Architecture, BytesSource, GgmlType, Model, ModelOptions, STAGING};

fn models() -> Vec<TinyModel> {
    let base = TinyModel { tied_head: false, vocab_size: 320, max_seq_len: 192, ..TinyModel::default() };
    vec![
        TinyModel { layers: vec![GgmlType::Q4_1, GgmlType::Q8_0], ..base.clone() },
        TinyModel {
            architecture: Architecture::Qwen2,
            dim: 96,
            hidden_dim: 160,
            n_heads: 4,
            head_dim: 24,
            n_layers: 3,
            n_kv_heads: 1,
            layers: vec![GgmlType::Q4_0],
            seed: 5,
            ..base.clone()
        },
    ]
}

async fn open(tiny: &TinyModel) -> (BytesSource, Model) {
    let source = BytesSource::new("tiny.gguf", tiny.build());
    let model = Model::open(&source, &ModelOptions::default()).await.unwrap();
    (source, model)
}

async fn decoder(gpu: &Gpu, tiny: &TinyModel, fusion: FusionChoice, max_binding: u64) -> GpuDecoder {
    let (source, model) = open(tiny).await;
    let mut weights = Weights::split(gpu, &model.config, model.matrices(), max_binding).await.unwrap();
    model.stream(&source, STAGING, &mut weights).await.unwrap();
    GpuDecoder::new(gpu, &model.config, weights, 192, fusion).await.unwrap()
}

async fn generate(decoder: &mut GpuDecoder, prompt: &[u32], max_tokens: usize, mode: Mode) -> Vec<u32> {
    let request =
        Request { prompt, max_tokens, end_tokens: &[], mode, sampling: SamplingOptions::default(), logprobs: None };
    let made = decoder.gpu().created();
    let generated = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap();
    assert_eq!(made, decoder.gpu().created(), "decoding makes no buffer and no bind group");
    generated.tokens
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 11) % 300).collect()
}

#[test]
fn plans_modes_limits_and_features_agree() {
    pollster::block_on(async {
        for tiny in models() {
            let mut answers = Vec::new();
            for limits in [LimitsRequest::Default, LimitsRequest::Adapter] {
                for plain in [false, true] {
                    let gpu = Gpu::new(GpuOptions { limits, plain }).await.unwrap();
                    // A table of 320 rows, split as the large tables of real models are by default limits.
                    let max_binding = if limits == LimitsRequest::Default { 10_000 } else { u64::MAX };
                    for fusion in [FusionChoice::None, FusionChoice::All] {
                        let mut decoder = decoder(&gpu, &tiny, fusion, max_binding).await;
                        assert_eq!(decoder.left_out(), [] as [String; 0]);
                        for mode in [Mode::Greedy, Mode::Loop] {
                            answers.push(generate(&mut decoder, &prompt(75), 64, mode).await);
                        }
                    }
                }
            }
            assert_eq!(answers[0].len(), 64);
            assert!(answers.iter().all(|tokens| *tokens == answers[0]));
            let distinct: std::collections::HashSet<_> = answers[0].iter().collect();
            assert!(distinct.len() > 4, "the model's text is too dull to tell anything: {:?}", answers[0]);
        }
    });
}

/// Memories from which drafts of `answer` are right, wrong, random, and right up to some depth.
fn memories(answer: &[u32]) -> Vec<(&'static str, Vec<Vec<u32>>)> {
    let other = |token: u32| (token + 1) % 300;
    let betrayed: Vec<Vec<u32>> = (4..answer.len())
        .map(|i| answer[i - 4..i].iter().copied().chain([answer[i], other(answer[i]), 7]).collect())
        .collect();
    vec![
        ("none", vec![]),
        ("right", vec![answer.to_vec()]),
        ("wrong", answer.windows(4).map(|w| vec![w[0], w[1], w[2], other(w[3]), w[0]]).collect()),
        ("random", (0..40u32).map(|i| (0..50u32).map(|j| (i * 31 + j * j * 7) % 300).collect()).collect()),
        ("adversarial", betrayed),
    ]
}

#[test]
fn speculation_changes_no_token() {
    pollster::block_on(async {
        for tiny in models() {
            let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
            let mut decoder = decoder(&gpu, &tiny, FusionChoice::Auto, u64::MAX).await;
            decoder.set_remembers(false);
            let answer = generate(&mut decoder, &prompt(75), 64, Mode::Greedy).await;
            decoder.set_remembers(true);
            let widths = [2, 4, 8, 16, 32].map(Mode::Tree);
            // Costs that make every width worth its while for some drafts.
            decoder.set_costs(Costs { ms: [1.0, 1.05, 1.1, 1.2, 1.5, 1.8] });
            for mode in widths.into_iter().chain([Mode::Adaptive]) {
                decoder.prepare(mode).await.unwrap();
            }
            assert_eq!(decoder.left_out(), [] as [String; 0]);
            let mut windows = [(1, 2), (2, 3), (4, 4), (4, 2), (1, 4)].into_iter().cycle();
            for (name, memory) in memories(&answer) {
                for mode in widths.into_iter().chain([Mode::Adaptive, Mode::Loop]) {
                    let mut filled = Memory::new(MEMORY);
                    memory.iter().for_each(|answer| filled.remember(answer));
                    decoder.set_memory(filled);
                    decoder.set_window(windows.next());
                    let made = gpu.created();
                    let request = Request {
                        prompt: &prompt(75),
                        max_tokens: 64,
                        end_tokens: &[],
                        mode,
                        sampling: SamplingOptions::default(),
                        logprobs: None,
                    };
                    let generated = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap();
                    assert_eq!(made, gpu.created(), "speculation makes no buffer and no bind group");
                    assert_eq!(generated.tokens, answer, "{} with {name} drafts", mode.name());
                    assert!(generated.n_accepted <= generated.n_drafted && generated.steps <= 64);
                    if name == "right" && mode == Mode::Tree(16) {
                        assert!(generated.steps < 32, "right drafts were not taken: {generated:?}");
                    }
                }
            }
            // What a request leaves behind in the memory and in the slots serves the next.
            for n in [75, 30, 75, 90] {
                let want = generate(&mut decoder, &prompt(n), 40, Mode::Greedy).await;
                assert_eq!(generate(&mut decoder, &prompt(n), 40, Mode::Tree(8)).await, want);
                let longer = [prompt(n), want.clone(), prompt(5)].concat();
                let want = generate(&mut decoder, &longer, 40, Mode::Tree(32)).await;
                assert_eq!(generate(&mut decoder, &longer, 40, Mode::Loop).await, want);
            }
            // End tokens, limits and the end of the context inside an accepted path.
            let end = answer[17];
            let at = answer.iter().position(|token| *token == end).unwrap();
            for max_tokens in [5, 17, 18, 40] {
                let request = Request {
                    prompt: &prompt(75),
                    max_tokens,
                    end_tokens: &[319, end],
                    mode: Mode::Tree(16),
                    sampling: SamplingOptions::default(),
                    logprobs: None,
                };
                let ended = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap();
                let n = max_tokens.min(at + 1);
                let finish = if n == at + 1 { Finish::EndToken } else { Finish::Length };
                assert_eq!((ended.tokens.as_slice(), ended.finish), (&answer[..n], Some(finish)));
            }
            // A memory that is larger than its place in front of the context.
            let mut large = Memory::new(2 * MEMORY);
            large.remember(&vec![answer[0]; 2 * MEMORY]);
            decoder.set_memory(large);
            assert_eq!(decoder.memory().tokens().len(), MEMORY);
            let to_the_end = generate(&mut decoder, &prompt(150), 1000, Mode::Tree(32)).await;
            assert_eq!(to_the_end.len(), 42);
            assert_eq!(generate(&mut decoder, &prompt(150), 1000, Mode::Loop).await, to_the_end);
        }
    });
}

/// Mixes of options that choose tokens, and that change which one is the most probable.
fn samplers() -> Vec<SamplingOptions> {
    let penalties = SamplingOptions {
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        logit_bias: vec![(5, 1.5), (11, -3.0)],
        ..SamplingOptions::default()
    };
    let warm = |seed| SamplingOptions { temperature: 0.8, seed, ..SamplingOptions::default() };
    vec![
        warm(1),
        SamplingOptions { top_k: 40, top_p: 0.95, min_p: 0.02, ..warm(2) },
        SamplingOptions { temperature: 0.8, seed: 3, top_p: 0.9, ..penalties.clone() },
        penalties,
    ]
}

#[test]
fn a_seed_gives_the_same_tokens_in_every_mode() {
    pollster::block_on(async {
        for tiny in models() {
            let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
            let same_arithmetic = gpu.adapter().is_software == cfg!(feature = "unfused");
            let mut decoder = decoder(&gpu, &tiny, FusionChoice::Auto, u64::MAX).await;
            let (source, model) = open(&tiny).await;
            let mut weights = CpuWeights::new(model.config.clone());
            model.stream(&source, STAGING, &mut weights).await.unwrap();
            let mut cpu = CpuModel::new(weights, 192).unwrap();
            decoder.set_costs(Costs { ms: [1.0, 1.05, 1.1, 1.2, 1.5, 1.8] });
            decoder.prepare(Mode::Adaptive).await.unwrap();
            assert_eq!(decoder.left_out(), [] as [String; 0]);
            let mut answers = vec![generate(&mut decoder, &prompt(75), 64, Mode::Greedy).await];
            let mut windows = [(1, 2), (2, 3), (4, 4), (4, 2), (1, 4)].into_iter().cycle();
            for sampling in samplers() {
                let prompt = prompt(75);
                let request = |mode| {
                    let sampling = sampling.clone();
                    Request { prompt: &prompt, max_tokens: 64, end_tokens: &[], mode, sampling, logprobs: None }
                };
                decoder.set_memory(Memory::new(MEMORY));
                let answer =
                    decoder.generate(&request(Mode::Greedy), &mut |_| ControlFlow::Continue(())).await.unwrap().tokens;
                assert_eq!(answer.len(), 64);
                let made = gpu.created();
                let drafts = memories(&answer).into_iter().filter(|(name, _)| matches!(*name, "right" | "adversarial"));
                for (name, memory) in drafts {
                    for mode in [Mode::Loop, Mode::Tree(4), Mode::Tree(16), Mode::Adaptive] {
                        let mut filled = Memory::new(MEMORY);
                        memory.iter().for_each(|answer| filled.remember(answer));
                        decoder.set_memory(filled);
                        decoder.set_window(windows.next());
                        let generated =
                            decoder.generate(&request(mode), &mut |_| ControlFlow::Continue(())).await.unwrap();
                        assert_eq!(generated.tokens, answer, "{} with {name} drafts, {sampling:?}", mode.name());
                        if name == "right" && mode == Mode::Tree(16) {
                            assert!(generated.steps < 40, "right drafts were not taken: {generated:?}");
                        }
                    }
                }
                assert_eq!(made, gpu.created(), "sampling makes no buffer and no bind group");
                let theirs =
                    cpu.generate(&request(Mode::Loop), &mut |_| ControlFlow::Continue(())).await.unwrap().tokens;
                assert!(!same_arithmetic || theirs == answer, "the CPU chose other tokens with {sampling:?}");
                answers.push(answer);
            }
            let distinct: std::collections::HashSet<_> = answers.iter().collect();
            assert_eq!(distinct.len(), answers.len(), "options changed nothing");
            let refused = SamplingOptions { top_p: f32::NAN, ..SamplingOptions::default() };
            let request = Request {
                prompt: &[1],
                max_tokens: 1,
                end_tokens: &[],
                mode: Mode::Loop,
                sampling: refused,
                logprobs: None,
            };
            let error = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap_err();
            assert!(error.to_string().contains("top_p"), "{error}");
        }
    });
}

fn bits(told: &[TokenLogprobs]) -> Vec<(u32, Vec<(u32, u32)>)> {
    let top = |told: &TokenLogprobs| told.top.iter().map(|(token, logprob)| (*token, logprob.to_bits())).collect();
    told.iter().map(|told| (told.logprob.to_bits(), top(told))).collect()
}

#[test]
fn log_probabilities_have_the_same_bits_in_every_mode() {
    pollster::block_on(async {
        let [narrow, wide] = <[TinyModel; 2]>::try_from(models()).unwrap();
        for tiny in [narrow, TinyModel { vocab_size: 4200, ..wide }] {
            let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
            let same_arithmetic = gpu.adapter().is_software == cfg!(feature = "unfused");
            let mut decoder = decoder(&gpu, &tiny, FusionChoice::Auto, u64::MAX).await;
            let (source, model) = open(&tiny).await;
            let mut weights = CpuWeights::new(model.config.clone());
            model.stream(&source, STAGING, &mut weights).await.unwrap();
            let mut cpu = CpuModel::new(weights, 192).unwrap();
            decoder.set_costs(Costs { ms: [1.0, 1.05, 1.1, 1.2, 1.5, 1.8] });
            decoder.prepare(Mode::Adaptive).await.unwrap();
            let mut windows = [(1, 2), (2, 3), (4, 4), (4, 2), (1, 4)].into_iter().cycle();
            let plain = SamplingOptions::default();
            let warm = SamplingOptions { temperature: 0.8, seed: 1, ..plain.clone() };
            for (round, sampling) in [plain, warm, samplers().remove(2)].into_iter().enumerate() {
                let (prompt, n_top) = (prompt(75), [20, 3, 0][round]);
                let request = |mode, logprobs| {
                    let sampling = sampling.clone();
                    Request { prompt: &prompt, max_tokens: 48, end_tokens: &[], mode, sampling, logprobs }
                };
                let on = &mut |_: &News<'_>| ControlFlow::Continue(());
                decoder.set_memory(Memory::new(MEMORY));
                let without = decoder.generate(&request(Mode::Greedy, None), on).await.unwrap();
                assert_eq!(without.logprobs, []);
                let first = decoder.generate(&request(Mode::Greedy, Some(n_top)), on).await.unwrap();
                assert_eq!((&first.tokens, first.logprobs.len()), (&without.tokens, 48));
                let made = gpu.created();
                let drafts = memories(&first.tokens);
                for (name, memory) in drafts.into_iter().filter(|(name, _)| matches!(*name, "right" | "adversarial")) {
                    let widths = [2, 4, 8, 16, 32].map(Mode::Tree);
                    for mode in widths.into_iter().chain([Mode::Adaptive, Mode::Loop]) {
                        let mut filled = Memory::new(MEMORY);
                        memory.iter().for_each(|answer| filled.remember(answer));
                        decoder.set_memory(filled);
                        decoder.set_window(windows.next());
                        let mut streamed = Vec::new();
                        let on = &mut |news: &News<'_>| {
                            assert_eq!(news.tokens.len(), news.logprobs.len());
                            streamed.extend_from_slice(news.logprobs);
                            ControlFlow::Continue(())
                        };
                        let told = decoder.generate(&request(mode, Some(n_top)), on).await.unwrap();
                        assert_eq!(told.tokens, first.tokens, "{} with {name} drafts", mode.name());
                        assert!(
                            bits(&told.logprobs) == bits(&first.logprobs),
                            "{} with {name} drafts and {sampling:?} has other log-probabilities",
                            mode.name()
                        );
                        assert_eq!(streamed, told.logprobs);
                    }
                }
                assert_eq!(made, gpu.created(), "log-probabilities make no buffer and no bind group");

                // They are those of the model's own logits.
                let text = [prompt.clone(), first.tokens.clone()].concat();
                let mut expected = Vec::new();
                let on_logits = &mut |i: usize, logits: &[f32]| {
                    if (prompt.len() - 1..text.len() - 1).contains(&i) {
                        expected.push(forerun::cpu::logprobs(logits, text[i + 1], n_top));
                    }
                    ControlFlow::Continue(())
                };
                decoder.score(&text, on_logits).await.unwrap();
                let theirs = cpu.generate(&request(Mode::Loop, Some(n_top)), on).await.unwrap();
                assert_eq!(theirs.logprobs.len(), theirs.tokens.len());
                if same_arithmetic {
                    assert!(bits(&first.logprobs) == bits(&expected), "the twin has other bits with {sampling:?}");
                    assert!(bits(&first.logprobs) == bits(&theirs.logprobs), "the CPU has other bits");
                } else {
                    for (ours, theirs) in first.logprobs.iter().zip(&expected) {
                        assert!((ours.logprob - theirs.logprob).abs() < 1e-5, "{ours:?}, the twin has {theirs:?}");
                    }
                }
                if round == 0 {
                    let is_first = |(told, token): (&TokenLogprobs, &u32)| told.top[0] == (*token, told.logprob);
                    assert!(first.logprobs.iter().zip(&first.tokens).all(is_first));
                }
            }
            let prompt = prompt(5);
            let request = Request {
                prompt: &prompt,
                max_tokens: 1,
                end_tokens: &[],
                mode: Mode::Loop,
                sampling: SamplingOptions::default(),
                logprobs: Some(21),
            };
            let error = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap_err();
            assert!(error.to_string().contains("at most 20"), "{error}");
        }
    });
}

#[test]
fn a_reused_prefix_and_an_aborted_request_change_nothing() {
    pollster::block_on(async {
        let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
        let tiny = &models()[1];
        let mut decoder = decoder(&gpu, tiny, FusionChoice::Auto, u64::MAX).await;
        let first = generate(&mut decoder, &prompt(50), 20, Mode::Loop).await;
        let longer = [prompt(50), first.clone(), prompt(9)].concat();
        let reused = generate(&mut decoder, &longer, 16, Mode::Loop).await;
        assert_eq!(generate(&mut decoder, &prompt(50), 20, Mode::Greedy).await, first);

        // Broken off before the first token, in prefill and in the middle.
        for stop_at in [0, 1, 2, 5] {
            let mut calls = 0;
            let request = Request {
                prompt: &prompt(70),
                max_tokens: 40,
                end_tokens: &[],
                mode: Mode::Loop,
                sampling: SamplingOptions::default(),
                logprobs: None,
            };
            let generated = decoder
                .generate(&request, &mut |_| {
                    calls += 1;
                    if calls > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .await
                .unwrap();
            assert_eq!(generated.finish, None);
            assert_eq!(generate(&mut decoder, &longer, 16, Mode::Loop).await, reused);
        }

        // Dropped with windows in flight, as a panic in the callback does.
        decoder.set_window(Some((4, 4)));
        for mode in [Mode::Loop, Mode::Tree(8)] {
            let sampling = SamplingOptions::default();
            let request = Request { prompt: &longer, max_tokens: 40, end_tokens: &[], mode, sampling, logprobs: None };
            let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let mut on_tokens = |news: &News<'_>| match news.tokens {
                    [] => ControlFlow::Continue(()),
                    _ => std::panic::resume_unwind(Box::new("dropped")),
                };
                pollster::block_on(decoder.generate(&request, &mut on_tokens))
            }));
            assert!(dropped.is_err());
            assert_eq!(generate(&mut decoder, &longer, 16, mode).await, reused);
        }
    });
}

#[test]
fn ends_at_end_tokens_limits_and_the_end_of_the_context() {
    pollster::block_on(async {
        let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
        let tiny = &models()[0];
        let mut decoder = decoder(&gpu, tiny, FusionChoice::None, u64::MAX).await;
        let text = generate(&mut decoder, &prompt(40), 40, Mode::Loop).await;
        let end = text[17];
        let at = text.iter().position(|token| *token == end).unwrap();
        for mode in [Mode::Greedy, Mode::Loop] {
            let request = Request {
                prompt: &prompt(40),
                max_tokens: 40,
                end_tokens: &[319, end],
                mode,
                sampling: SamplingOptions::default(),
                logprobs: None,
            };
            let ended = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap();
            assert_eq!((ended.tokens.as_slice(), ended.finish), (&text[..=at], Some(Finish::EndToken)));
        }
        let request = Request {
            prompt: &prompt(150),
            max_tokens: 1000,
            end_tokens: &[],
            mode: Mode::Loop,
            sampling: SamplingOptions::default(),
            logprobs: None,
        };
        let full = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap();
        assert_eq!((full.tokens.len(), full.finish), (42, Some(Finish::Length)));
        for (prompt, why) in [(prompt(192), "context"), (vec![], "empty"), (vec![5000], "vocabulary")] {
            let request = Request {
                prompt: &prompt,
                max_tokens: 1,
                end_tokens: &[],
                mode: Mode::Loop,
                sampling: SamplingOptions::default(),
                logprobs: None,
            };
            let error = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    });
}

/// The GPU has the bits of the CPU twins, whole models long: where it fuses `fma`, or where the twins (with the feature
/// `unfused`) do not either.
#[test]
fn the_gpu_agrees_with_the_cpu_twins() {
    pollster::block_on(async {
        let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
        let same_arithmetic = gpu.adapter().is_software == cfg!(feature = "unfused");
        for tiny in models() {
            let (source, model) = open(&tiny).await;
            let mut weights = CpuWeights::new(model.config.clone());
            model.stream(&source, STAGING, &mut weights).await.unwrap();
            let mut cpu = CpuModel::new(weights, 192).unwrap();
            let mut decoder = decoder(&gpu, &tiny, FusionChoice::All, u64::MAX).await;
            let (mut theirs, mut ours) = (Vec::new(), Vec::new());
            let keep = |into: &mut Vec<Vec<f32>>, logits: &[f32]| {
                into.push(logits.to_vec());
                ControlFlow::Continue(())
            };
            cpu.score(&prompt(150), &mut |_, logits| keep(&mut theirs, logits)).unwrap();
            decoder.score(&prompt(150), &mut |_, logits| keep(&mut ours, logits)).await.unwrap();
            for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let spread = theirs.iter().fold(0f32, |most, v| most.max(v.abs()));
                let apart = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                let bound = if same_arithmetic { 0.0 } else { 0.03 * spread };
                assert!(apart <= bound, "logits of {spread} behind token {i} differ by {apart}");
            }
        }
    });
}

#[test]
fn contexts_too_long_for_the_device_are_told() {
    pollster::block_on(async {
        let gpu = Gpu::new(GpuOptions { limits: LimitsRequest::Default, plain: false }).await.unwrap();
        let long =
            |max_seq_len| TinyModel { max_seq_len, n_layers: 1, n_heads: 1, n_kv_heads: 1, ..TinyModel::default() };
        // The cache of a layer does not fit one binding.
        let tiny = TinyModel { head_dim: 64, ..long(600_000) };
        let (source, model) = open(&tiny).await;
        let mut weights = Weights::new(&gpu, &model.config, model.matrices()).await.unwrap();
        model.stream(&source, STAGING, &mut weights).await.unwrap();
        let refused = GpuDecoder::new(&gpu, &model.config, weights, 600_000, FusionChoice::None).await;
        let error = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("ask for a shorter context"), "{error}");
    });
}
