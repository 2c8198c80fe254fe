//! The same tokens and the same bits, whatever the plan, the bucket and the mode.

use std::ops::ControlFlow;

use forerun::decoder::{FusionChoice, GpuDecoder, Mode, Request, Weights};
use forerun::gpu::{Gpu, GpuOptions};
use forerun::model::{Architecture, Blocks, Config, Format, MatrixInfo, MatrixKind, RopePairs, VectorKind, WeightSink};

fn tiny() -> Config {
    Config {
        architecture: Architecture::Llama,
        dim: 96,
        hidden_dim: 160,
        n_layers: 3,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 16,
        vocab_size: 300,
        max_seq_len: 256,
        rms_norm_eps: 1e-5,
        rope_frequencies: (0..8).map(|i| 10000f64.powf(-(i as f64) / 8.0)).collect(),
        rope_pairs: RopePairs::Adjacent,
        qkv_bias: true,
        tied_head: true,
    }
}

fn random_blocks(format: Format, n_rows: usize, n_cols: usize, seed: &mut u64) -> Blocks {
    let n = n_rows * n_cols / 32;
    let mut next = || {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) as u32
    };
    let codes = (0..n * format.code_words()).map(|_| next() ^ (next() << 8)).collect();
    let f16 = |x: f32| half::f16::from_f32(x).to_bits() as u32;
    let s = match format {
        Format::Q8 => 0.001,
        _ => 0.015,
    };
    let scales = (0..format.scale_words(n))
        .map(|_| {
            let a = s * (0.5 + (next() % 100) as f32 / 100.0);
            match format {
                Format::Q4Min => f16(a) | f16(-7.5 * a) << 16,
                _ => f16(a) | f16(a * 1.1) << 16,
            }
        })
        .collect();
    Blocks { format, n_rows, n_cols, codes, scales }
}

async fn decoder(gpu: &Gpu, fusion: FusionChoice) -> GpuDecoder {
    let c = tiny();
    let mut infos = vec![MatrixInfo {
        kind: MatrixKind::EmbedTokens,
        layer: 0,
        n_rows: c.vocab_size,
        n_cols: c.dim,
        format: Format::Q8,
    }];
    for layer in 0..c.n_layers {
        let f = [Format::Q4, Format::Q4Min, Format::Q8][layer];
        infos.push(MatrixInfo { kind: MatrixKind::QkvProj, layer, n_rows: c.qkv_dim(), n_cols: c.dim, format: f });
        infos.push(MatrixInfo { kind: MatrixKind::OProj, layer, n_rows: c.dim, n_cols: c.q_dim(), format: f });
        infos.push(MatrixInfo {
            kind: MatrixKind::GateUpProj,
            layer,
            n_rows: 2 * c.hidden_dim,
            n_cols: c.dim,
            format: f,
        });
        infos.push(MatrixInfo { kind: MatrixKind::DownProj, layer, n_rows: c.dim, n_cols: c.hidden_dim, format: f });
    }
    let mut weights = Weights::new(gpu, &c, &infos).await.unwrap();
    let mut seed = 7;
    for info in &infos {
        let b = random_blocks(info.format, info.n_rows, info.n_cols, &mut seed);
        weights.rows(info, 0, b).await.unwrap();
    }
    for layer in 0..c.n_layers {
        weights.vector(VectorKind::AttnNorm, layer, vec![1.0; c.dim]).await.unwrap();
        weights.vector(VectorKind::MlpNorm, layer, vec![1.0; c.dim]).await.unwrap();
        weights
            .vector(VectorKind::QkvBias, layer, (0..c.qkv_dim()).map(|i| (i % 7) as f32 * 0.1).collect())
            .await
            .unwrap();
    }
    weights.vector(VectorKind::Norm, 0, vec![1.0; c.dim]).await.unwrap();
    GpuDecoder::new(gpu, &c, weights, 256, fusion).await.unwrap()
}

#[test]
fn plans_and_modes_agree() {
    pollster::block_on(async {
        let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
        println!("{:?}", gpu.adapter());
        let prompt: Vec<u32> = (0..75).map(|i| (i * 37 + 11) % 300).collect();
        let mut all = Vec::new();
        for fusion in [FusionChoice::None, FusionChoice::All, FusionChoice::Auto] {
            let mut decoder = decoder(&gpu, fusion).await;
            println!(
                "{fusion:?}: {:?} {} dispatches, left out {:?}",
                decoder.fusion(),
                decoder.dispatches_per_step(),
                decoder.left_out()
            );
            for mode in [Mode::Greedy, Mode::Loop] {
                let request = Request { prompt: &prompt, max_tokens: 64, end_tokens: &[], mode };
                let before = gpu.created();
                let got = decoder.generate(&request, &mut |_| ControlFlow::Continue(())).await.unwrap();
                assert_eq!(before, gpu.created());
                println!("{mode:?} {got:?}");
                all.push(got.tokens);
            }
        }
        assert!(all.iter().all(|tokens| tokens == &all[0]));
        assert_eq!(all[0].len(), 64);
    });
}
