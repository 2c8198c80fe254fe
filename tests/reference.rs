//! The engine against transformers in float32, on tiny models that have learned a text: the same tokens, the same
//! predictions, the same answers. `tools/reference/tiny_models.py` made the files and the expectations; the same
//! comparison on real models is `tools/reference/compare.py`.

use std::ops::ControlFlow;
use std::path::Path;

use forerun::decoder::Mode;
use forerun::model::FileSource;
use forerun::session::{BackendChoice, Completing, Engine, EngineOptions, Piece, Prompt};
use forerun::text::Message;
use serde::Deserialize;

/// What transformers says of a model.
#[derive(Deserialize)]
struct Expected {
    /// The text's first tokens.
    ids: Vec<u32>,
    perplexity: f64,
    /// The most probable token behind each but the last.
    top1: Vec<u32>,
    /// Of each token but the first.
    log_probabilities: Vec<f64>,
    /// Behind the last token, `[vocab_size]`.
    last_logits: Vec<f32>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    user: String,
    prompt: Vec<u32>,
    answer: String,
    answer_ids: Vec<u32>,
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn check(model: &str, backend: BackendChoice) {
    let expected = std::fs::read(fixture(&format!("models/{model}.json"))).unwrap();
    let expected: Expected = serde_json::from_slice(&expected).unwrap();
    let text = std::fs::read_to_string(fixture("text/lighthouse.txt")).unwrap();
    let options = EngineOptions { backend, ..EngineOptions::default() };
    let source = FileSource::open(fixture(&format!("models/{model}.gguf"))).unwrap();
    pollster::block_on(async {
        let mut engine = Engine::load(&source, &options, &mut |_| ()).await.unwrap();
        let tokens = engine.tokens(Prompt::Raw(&text)).unwrap();
        assert_eq!(tokens[..expected.ids.len()], expected.ids);
        check_scores(&mut engine, &expected).await;
        for chat in &expected.chats {
            check_answer(&mut engine, chat).await;
        }
    });
}

/// Teacher-forced over the text, part of which the model has never seen.
async fn check_scores(engine: &mut Engine, expected: &Expected) {
    let (mut same, mut sum, mut worst) = (0, 0.0, 0f64);
    let mut last = Vec::new();
    let mut on_logits = |i: usize, logits: &[f32]| {
        let Some(&next) = expected.ids.get(i + 1) else {
            last = logits.to_vec();
            return ControlFlow::Continue(());
        };
        let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let log_probability = f64::from(logits[next as usize]) - total.ln();
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        same += usize::from(best as u32 == expected.top1[i]);
        sum += log_probability;
        worst = worst.max((log_probability - expected.log_probabilities[i]).abs());
        ControlFlow::Continue(())
    };
    engine.score(&expected.ids, &mut on_logits).await.unwrap();
    let n = expected.top1.len();
    let agreement = same as f64 / n as f64;
    let perplexity = (-sum / n as f64).exp();
    let furthest = last.iter().zip(&expected.last_logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!(
        "top-1 agreement {agreement:.4}, perplexity {perplexity:.5} for {:.5}, log-probabilities within {worst:.3}, \
         last logits within {furthest:.3}",
        expected.perplexity
    );
    assert!(agreement >= 0.95, "top-1 agreement is only {agreement}");
    assert!((perplexity / expected.perplexity - 1.0).abs() <= 0.01, "{perplexity} for {}", expected.perplexity);
    assert!(furthest < 1.0, "a logit is {furthest} off");
}

async fn check_answer(engine: &mut Engine, chat: &Chat) {
    let messages = [Message::new("user", chat.user.as_str())];
    assert_eq!(engine.tokens(Prompt::Chat(&messages)).unwrap(), chat.prompt);
    for mode in [Mode::Greedy, Mode::Loop] {
        let how = Completing { max_tokens: Some(60), mode, ..Completing::default() };
        let mut streamed = String::new();
        let mut on_text = |piece: &Piece<'_>| {
            let text = piece.text;
            streamed.push_str(text);
            ControlFlow::Continue(())
        };
        let answer = engine.complete(Prompt::Chat(&messages), &how, &mut on_text).await.unwrap();
        assert_eq!(answer.generated.tokens, chat.answer_ids, "{mode:?}: {}", answer.text);
        assert_eq!(answer.text, chat.answer);
        assert_eq!(streamed, chat.answer);
        assert_eq!(answer.finish_reason(), "stop");
    }
}

#[test]
fn llama_on_the_cpu() {
    check("tiny-llama", BackendChoice::Cpu);
}

#[test]
fn qwen2_on_the_cpu() {
    check("tiny-qwen2", BackendChoice::Cpu);
}

#[test]
fn llama_on_the_gpu() {
    check("tiny-llama", BackendChoice::Gpu);
}

#[test]
fn qwen2_on_the_gpu() {
    check("tiny-qwen2", BackendChoice::Gpu);
}
