//! A trial.
use forerun::decoder::*;
use forerun::gpu::*;
use forerun::model::*;
use std::ops::ControlFlow;
fn main() {
    pollster::block_on(async {
        let path = std::env::args().nth(1).unwrap();
        let tokens: Vec<u32> = std::env::args().nth(2).unwrap().split(',').map(|t| t.parse().unwrap()).collect();
        let source = FileSource::open(&path).unwrap();
        let t = now_ms();
        let model = Model::open(&source, &ModelOptions::default()).await.unwrap();
        println!("open {:.0} ms {:?}", now_ms() - t, model.config.dim);
        for m in model.matrices().iter().take(9) {
            println!("{m:?}");
        }
        let gpu = Gpu::new(GpuOptions::default()).await.unwrap();
        let mut w = Weights::new(&gpu, &model.config, model.matrices()).await.unwrap();
        println!("buffers {:.0} ms", now_ms() - t);
        model.stream(&source, 16 << 20, &mut w).await.unwrap();
        println!("stream {:.0} ms", now_ms() - t);
        let mut d = GpuDecoder::new(&gpu, &model.config, w, 512, FusionChoice::Auto).await.unwrap();
        println!(
            "ready {:.0} ms {:?} left out {:?} dispatches {}",
            now_ms() - t,
            d.fusion(),
            d.left_out(),
            d.dispatches_per_step()
        );
        let r = Request { prompt: &tokens, max_tokens: 24, end_tokens: &[], mode: Mode::Loop };
        let g = d
            .generate(&r, &mut |t| {
                println!("{t:?}");
                ControlFlow::Continue(())
            })
            .await
            .unwrap();
        println!("{g:?} {:.1} ms a token", g.decode_ms_per_token());
    });
}
