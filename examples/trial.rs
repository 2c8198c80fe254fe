//! A trial.
use forerun::decoder::*;
use forerun::gpu::*;
use forerun::model::*;
use forerun::session::*;
use std::io::Write;
use std::ops::ControlFlow;
fn main() {
    pollster::block_on(async {
        let path = std::env::args().nth(1).unwrap();
        let backend = if std::env::args().nth(2).unwrap() == "cpu" { BackendChoice::Cpu } else { BackendChoice::Gpu };
        let t = now_ms();
        let options = EngineOptions { backend, context: Some(1024), ..Default::default() };
        let mut e = Engine::load(&FileSource::open(&path).unwrap(), &options, &mut |_| ()).await.unwrap();
        println!("ready {:.0} ms {:?} dispatches {}", now_ms() - t, e.adapter(), e.dispatches_per_step());
        let m = [forerun::text::Message::new("user", std::env::args().nth(3).unwrap())];
        let g = e
            .complete(Prompt::Chat(&m), &Completing { max_tokens: Some(40), mode: Mode::Loop }, &mut |t| {
                print!("{t}");
                std::io::stdout().flush().unwrap();
                ControlFlow::Continue(())
            })
            .await
            .unwrap();
        println!("\n{g:?} {:.1} ms a token", g.generated.decode_ms_per_token());
    });
}
