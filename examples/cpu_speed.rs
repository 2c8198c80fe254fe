//! Times the CPU backend on a model file: `cargo run --release --example cpu_speed -- MODEL.gguf [LEVEL]`.
//!
//! The prompt is 256 tokens of no meaning, since speed does not depend on it; LEVEL is plain, avx2, avx-vnni or
//! avx512.

use forerun::cpu::simd::{self, Level};
use forerun::cpu::{CpuModel, CpuWeights};
use forerun::decoder::{Mode, Request, SamplingOptions};
use forerun::model::source::FileSource;
use forerun::model::{Model, ModelOptions, STAGING};
use std::ops::ControlFlow;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give the path of a GGUF file")?;
    let most = match arguments.next().as_deref() {
        Some("plain") => Level::Plain,
        Some("avx2") => Level::Avx2,
        Some("avx-vnni") => Level::AvxVnni,
        _ => Level::Avx512Vnni,
    };
    let level = simd::limit(most);

    let start = Instant::now();
    let source = FileSource::open(&path)?;
    let model = pollster::block_on(Model::open(&source, &ModelOptions::default()))?;
    let mut weights = CpuWeights::new(model.config.clone());
    pollster::block_on(model.stream(&source, STAGING, &mut weights))?;
    let mut cpu = CpuModel::new(weights, 1024)?;
    println!("{path}: {level:?}, loaded in {:.1} s", start.elapsed().as_secs_f64());

    let vocab_size = cpu.config().vocab_size as u32;
    let prompt: Vec<u32> = (0..256u32).map(|i| i * 7919 % vocab_size).collect();
    for n in [32, 256] {
        for _ in 0..2 {
            cpu.truncate(0);
            let request = Request {
                prompt: &prompt[..n],
                max_tokens: 65,
                end_tokens: &[],
                mode: Mode::Loop,
                sampling: SamplingOptions::default(),
                logprobs: None,
            };
            let generated = pollster::block_on(cpu.generate(&request, &mut |_| ControlFlow::Continue(())))?;
            println!(
                "prompt of {n}: prefill {:.1} tokens/s, decode {:.1} tokens/s, tokens {:?}…",
                n as f64 / generated.ttft_ms * 1e3,
                1e3 / generated.decode_ms_per_token(),
                &generated.tokens[..8]
            );
        }
    }
    Ok(())
}
