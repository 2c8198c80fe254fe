//! Twin of the `penalize` kernel: penalties for tokens that stand in the text, and shifts that the request asks for.

use std::collections::HashMap;

use super::numbers::fma;
use crate::decoder::sampler::{REPETITION_WINDOW, Sampling};

/// Changes `logits`, `[vocab_size]`, in place. The token to come follows `context`, whose first `n_prompt` tokens are
/// the prompt, and, of a draft tree, the drafted tokens `ancestors`.
pub fn penalize(logits: &mut [f32], sampling: &Sampling, context: &[u32], n_prompt: usize, ancestors: &[u32]) {
    if sampling.penalizes() {
        let window = (context.len() + ancestors.len()).saturating_sub(REPETITION_WINDOW);
        let mut counts: HashMap<u32, (bool, u32)> = HashMap::new();
        let tokens = context.iter().chain(ancestors).enumerate().skip(window.min(n_prompt));
        for (i, &token) in tokens {
            let (is_seen, n_generated) = counts.entry(token).or_default();
            *is_seen |= i >= window;
            *n_generated += u32::from(i >= n_prompt);
        }
        for (token, (is_seen, n_generated)) in counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let factor = match is_seen {
                true if *logit > 0.0 => sampling.inverse_repetition_penalty,
                true => sampling.repetition_penalty,
                false => 1.0,
            };
            let penalty = match n_generated {
                0 => 0.0,
                n => fma(n as f32, sampling.frequency_penalty, sampling.presence_penalty),
            };
            *logit = fma(*logit, factor, -penalty);
        }
    }
    let biases = sampling.bias_tokens.iter().zip(&sampling.bias_values);
    for (&token, bias) in biases.take(sampling.n_bias as usize) {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::sampler::SamplingOptions;

    #[test]
    fn prompt_answer_and_draft_are_told_apart() {
        let options = SamplingOptions {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(0, 5.0), (3, -5.0)],
            ..SamplingOptions::default()
        };
        let sampling = options.resolve(8).unwrap().unwrap();
        let mut logits = [1.0f32, 2.0, -2.0, 4.0, 4.0, 0.0, 1.0, 1.0];
        // Token 1 stands in the prompt, 2 and 3 in the answer, 3 and 4 in the draft.
        penalize(&mut logits, &sampling, &[1, 1, 2, 3, 3], 2, &[3, 4]);
        assert_eq!(logits, [6.0, 1.0, -4.75, 2.0 - 1.25 - 5.0, 1.25, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn repetition_looks_back_over_the_window_alone() {
        let options = SamplingOptions { repetition_penalty: 2.0, ..SamplingOptions::default() };
        let sampling = options.resolve(4).unwrap().unwrap();
        let context: Vec<u32> = [0, 1].into_iter().chain(std::iter::repeat_n(2, 1023)).collect();
        let mut logits = [8.0; 4];
        penalize(&mut logits, &sampling, &context, 1025, &[]);
        assert_eq!(logits, [8.0, 4.0, 4.0, 8.0]);
        let mut logits = [8.0; 4];
        penalize(&mut logits, &sampling, &context, 1025, &[3]);
        assert_eq!(logits, [8.0, 8.0, 4.0, 4.0]);
    }
}
