//! Twin of the kernels `logprob_parts` and `logprobs`: log-probabilities of a token and of the most probable ones.

use super::numbers::{exp, fma, ln, tree_sum};
use super::simd;
use super::threshold::{key_of, logit_of};
use crate::decoder::request::TokenLogprobs;

/// Logits of a part of the vocabulary, and how many add to one partial sum of it.
const PART: usize = 4096;
const PARTIALS: usize = 256;
/// Below every logit.
const LEAST: f32 = -3.4e38;

/// The natural logarithm of softmax over `logits`, `[vocab_size]`: that of `token`, and those of the `n_top` most
/// probable tokens, the lower one first where two are equal. What is no number counts for nothing and comes last.
pub fn logprobs(logits: &[f32], token: u32, n_top: usize) -> TokenLogprobs {
    let parts: Vec<(f32, f32)> = logits.chunks(PART).map(|part| simd::dispatch(|| largest_and_sum(part))).collect();
    let largest = parts.iter().fold(LEAST, |most, part| most.max(part.0));
    let sum = parts.iter().fold(0.0, |sum, part| fma(exp(part.0 - largest), part.1, sum));
    let log_sum = ln(sum);
    let logprob = |key: u32| logit_of(key) - largest - log_sum;
    TokenLogprobs {
        logprob: logprob(key_of(logits.get(token as usize).copied().unwrap_or(f32::NAN))),
        top: most_probable(logits, n_top).into_iter().map(|(key, token)| (token, logprob(key))).collect(),
    }
}

/// Of at most [`PART`] logits: the largest, and the sum of `e^(logit - largest)`. Partial `i` adds the logits `i`,
/// `i + 256`, … in turn; then the tree over the partials.
#[inline(always)]
fn largest_and_sum(logits: &[f32]) -> (f32, f32) {
    let largest = logits.iter().fold(LEAST, |most, logit| most.max(*logit));
    let mut partials = [0.0f32; PARTIALS];
    for logits in logits.chunks(PARTIALS) {
        for (partial, &logit) in partials.iter_mut().zip(logits) {
            *partial += if logit.is_nan() { 0.0 } else { exp(logit - largest) };
        }
    }
    (largest, tree_sum(partials))
}

/// Keys and tokens of the `n` largest logits, in order.
fn most_probable(logits: &[f32], n: usize) -> Vec<(u32, u32)> {
    let mut best: Vec<(u32, u32)> = Vec::with_capacity(n + 1);
    for (token, &logit) in logits.iter().enumerate() {
        let key = key_of(logit);
        // Most tokens are not above the last of the best.
        if best.len() < n || best.last().is_some_and(|last| key > last.0) {
            let place = best.partition_point(|known| known.0 >= key);
            best.insert(place, (key, token as u32));
            best.truncate(n);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::numbers::mix;

    fn logits(n: u32, seed: u32, spread: f32) -> Vec<f32> {
        (0..n).map(|i| ((mix(i ^ mix(seed)) >> 8) as f32 / (1 << 23) as f32 - 1.0) * spread).collect()
    }

    #[test]
    fn are_close_to_softmax_in_f64() {
        for (n, spread) in [(1, 3.0), (2, 0.0), (255, 8.0), (4096, 30.0), (4097, 1.0), (50_000, 15.0), (152_064, 40.0)]
        {
            let logits = logits(n, n, spread);
            let largest = logits.iter().fold(f32::NEG_INFINITY, |most, v| most.max(*v));
            let sum: f64 = logits.iter().map(|v| (f64::from(*v) - f64::from(largest)).exp()).sum();
            let expected = |token: u32| f64::from(logits[token as usize]) - f64::from(largest) - sum.ln();
            for token in [0, n / 2, n - 1] {
                let told = logprobs(&logits, token, 20);
                let pairs = told.top.iter().copied().chain([(token, told.logprob)]);
                for (token, logprob) in pairs {
                    let error = (f64::from(logprob) - expected(token)).abs();
                    let bound = 1e-6 + 2e-7 * expected(token).abs();
                    assert!(error < bound, "token {token} of {n}: {logprob}, in f64 {}", expected(token));
                }
                let mut order: Vec<u32> = (0..n).collect();
                order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
                let top: Vec<u32> = told.top.iter().map(|(token, _)| *token).collect();
                assert_eq!(top, order[..order.len().min(20)]);
            }
        }
    }

    #[test]
    fn ties_go_to_the_lower_token_and_what_is_no_number_comes_last() {
        let told = logprobs(&[1.0, f32::NAN, 2.0, 1.0, f32::NEG_INFINITY, 2.0], 3, 6);
        let top: Vec<u32> = told.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(top, [2, 5, 0, 3, 4, 1]);
        let total: f32 = told.top[..4].iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
        assert_eq!((told.top[3].1, told.top[4].1), (told.logprob, f32::NEG_INFINITY));
        assert_eq!(logprobs(&[0.5, 0.0], 0, 0).top, []);
        // Zeros of both signs are equal.
        let told = logprobs(&[-0.0, 0.0, -0.0], 1, 2);
        assert_eq!((told.top[0].0, told.top[1].0, told.top[0].1), (0, 1, told.logprob));
    }
}
