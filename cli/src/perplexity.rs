//! `forerun perplexity`: how well a model predicts a text.

use std::ops::ControlFlow;
use std::time::Instant;

use forerun::session::Engine;
use serde::Serialize;

use crate::args::PerplexityArgs;
use crate::failure::{Failure, Outcome};
use crate::{format, input, load, output};

/// Bytes of a text.
const MAX_TEXT: u64 = 64 << 20;

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    /// How many tokens were predicted: all but the first.
    tokens: usize,
    perplexity: f64,
    /// The most probable token in the place of each token but the first: `[tokens]`.
    top1: &'a [u32],
    /// Negative log-likelihood of each token but the first: `[tokens]`.
    nll: &'a [f64],
    /// The text's tokens: `[tokens + 1]`.
    ids: &'a [u32],
    window: usize,
    backend: &'static str,
    adapter: Option<&'a str>,
}

/// Scores the text.
pub fn perplexity(args: &PerplexityArgs) -> Outcome {
    let name = args.file.display();
    // Before the model, which takes longer. A pipe's writer may let us wait.
    let spinner = load::spinner("reading the text");
    let read = std::fs::File::open(&args.file).and_then(|file| input::read_text(file, MAX_TEXT));
    spinner.finish_and_clear();
    let text = read.map_err(|error| {
        let most = format::bytes(MAX_TEXT);
        Failure::Input(format!("cannot read {name} ({error}): give the path of a text in UTF-8, at most {most}"))
    })?;
    if text.is_empty() {
        return Err(Failure::Input(format!("{name} is empty: give a file with some text")));
    }
    let mut engine = load::load(&args.model, &args.engine)?;
    let mut ids = engine.tokenizer().encode(&text, true)?;
    ids.truncate(args.max_tokens.map_or(usize::MAX, usize::from));
    if ids.len() < 2 {
        return Err(Failure::Input(format!(
            "{name} gives {}: give one with more text, as the first of them is not predicted",
            format::things(ids.len(), "token")
        )));
    }
    let window = engine.context();
    let started = Instant::now();
    let scores = score(&mut engine, &ids, window)?;
    let seconds = started.elapsed().as_secs_f64();
    let n = scores.nll.len();
    let perplexity = (scores.nll.iter().sum::<f64>() / n as f64).exp();
    let adapter = engine.adapter().map(|adapter| &adapter.name[..]);
    if args.json {
        let (backend, top1, nll) = (engine.backend_name(), &scores.top1, &scores.nll);
        return output::print_json(&Report { tokens: n, perplexity, top1, nll, ids: &ids, window, backend, adapter });
    }
    let tokens = format::things(n, "token");
    output::print(&format!(
        "perplexity {perplexity:.4} over {tokens}, in windows of {}\n",
        format::count(window as u64)
    ))?;
    output::aside(&format!("{:.1} tokens/s · {}", n as f64 / seconds, adapter.unwrap_or("CPU")));
    Ok(())
}

/// What the model thinks of each token but the first.
struct Scores {
    top1: Vec<u32>,
    nll: Vec<f64>,
}

/// Scores every token but the first. Each window starts with the last token of the one in front, so that none is left
/// out, behind the token BOS where the text itself starts with it.
fn score(engine: &mut Engine, ids: &[u32], window: usize) -> Outcome<Scores> {
    let bos = ids.first().copied().filter(|first| engine.tokenizer().bos() == Some(*first) && window > 2);
    let bar = load::tokens_bar(ids.len() as u64 - 1);
    let mut scores = Scores { top1: Vec::new(), nll: Vec::new() };
    let mut total = 0.0;
    let mut start = 0;
    while start + 1 < ids.len() {
        let mut tokens: Vec<u32> = bos.filter(|_| start > 0).into_iter().collect();
        let first = tokens.len();
        let n = (window - first).min(ids.len() - start);
        tokens.extend_from_slice(&ids[start..start + n]);
        let scored = pollster::block_on(engine.score(&tokens, &mut |i, logits| {
            if let Some(&next) = tokens.get(i + 1)
                && i >= first
            {
                let (best, likelihood) = predict(logits, next);
                scores.top1.push(best);
                scores.nll.push(-likelihood);
                total -= likelihood;
                bar.inc(1);
                bar.set_message(format!("· perplexity {:.2}", (total / scores.nll.len() as f64).exp()));
            }
            ControlFlow::Continue(())
        }));
        if scored.is_err() {
            bar.finish_and_clear();
        }
        scored?;
        start += n - 1;
    }
    bar.finish_and_clear();
    Ok(scores)
}

/// The most probable token (the first of equals), and the log-likelihood of `next`: log-softmax in f64.
fn predict(logits: &[f32], next: u32) -> (u32, f64) {
    let mut best = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = token;
        }
    }
    let most = logits.get(best).map_or(0.0, |&logit| f64::from(logit));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    let chosen = logits.get(next as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit));
    (best as u32, chosen - most - sum.ln())
}

#[cfg(test)]
mod tests {
    use super::predict;

    #[test]
    fn likelihoods_are_those_of_a_softmax() {
        let logits = [1.0, 3.0, 3.0, -2.0];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        for (token, logit) in logits.iter().enumerate() {
            let (best, likelihood) = predict(&logits, token as u32);
            assert_eq!(best, 1);
            assert!((likelihood - (f64::from(*logit).exp() / sum).ln()).abs() < 1e-12);
        }
        assert_eq!(predict(&[1e30, 0.0], 0), (0, 0.0));
    }
}
