//! Twin of the `sample` kernel: a token by Gumbel noise, and the whole choice of a token.

use super::numbers::{fma, gumbel, mix};
use super::penalize::penalize;
use super::threshold::{key_of, threshold};
use crate::decoder::sampler::Sampling;

/// Above the largest noise.
const MOST_NOISE: f32 = 22.5;

/// The token with the largest `logit / temperature + noise` among those whose keys are not below `threshold`; the
/// lowest one on a tie, 0 where no logit is a number. `position` is that of the token to come.
pub fn sample(logits: &[f32], sampling: &Sampling, threshold: u32, position: usize) -> u32 {
    let state = mix(mix(sampling.seed ^ 0x9e37_79b9).wrapping_add(position as u32));
    let mut best = (-3.4e38f32, 0);
    for (token, &logit) in logits.iter().enumerate() {
        // Most tokens need no noise to lose.
        let lost = fma(logit, sampling.inverse_temperature, MOST_NOISE * sampling.noise) < best.0;
        if !lost && key_of(logit) >= threshold {
            let hash = mix(mix(state.wrapping_add((token as u32).wrapping_mul(0x9e37_79b1))) ^ state);
            let perturbed = fma(logit, sampling.inverse_temperature, gumbel(hash) * sampling.noise);
            if perturbed > best.0 {
                best = (perturbed, token as u32);
            }
        }
    }
    best.1
}

/// Penalties, thresholds and noise: the token behind `context`, whose first `n_prompt` tokens are the prompt, and,
/// of a draft tree, the drafted tokens `ancestors`. Changes `logits`, `[vocab_size]`.
pub fn choose(logits: &mut [f32], sampling: &Sampling, context: &[u32], n_prompt: usize, ancestors: &[u32]) -> u32 {
    penalize(logits, sampling, context, n_prompt, ancestors);
    let threshold = threshold(logits, sampling);
    sample(logits, sampling, threshold, context.len() + ancestors.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::argmax;
    use crate::decoder::sampler::SamplingOptions;

    fn logits(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| (mix(i ^ mix(seed)) >> 8) as f32 / (1 << 22) as f32 - 2.0).collect()
    }

    fn choices(logits: &[f32], options: &SamplingOptions, n: usize) -> Vec<u32> {
        let sampling = options.resolve(logits.len()).unwrap().unwrap();
        let threshold = threshold(logits, &sampling);
        (0..n).map(|position| sample(logits, &sampling, threshold, position)).collect()
    }

    /// Pearson's statistic of the choices against the probabilities `exp(logit / temperature)` of the tokens `kept`.
    fn chi_squared(logits: &[f32], temperature: f32, kept: &[usize], choices: &[u32]) -> f64 {
        let weight = |i: &usize| (f64::from(logits[*i]) / f64::from(temperature)).exp();
        let total: f64 = kept.iter().map(weight).sum();
        assert!(choices.iter().all(|token| kept.contains(&(*token as usize))));
        let part = |i: &usize| {
            let expected = weight(i) / total * choices.len() as f64;
            let seen = choices.iter().filter(|token| **token as usize == *i).count() as f64;
            (seen - expected).powi(2) / expected
        };
        kept.iter().map(part).sum()
    }

    #[test]
    fn frequencies_are_those_of_softmax() {
        let n = 200_000;
        let all: Vec<usize> = (0..16).collect();
        for seed in 1..=5 {
            for temperature in [0.5, 0.8, 1.5] {
                let logits = logits(16, seed);
                let options = SamplingOptions { temperature, seed, ..SamplingOptions::default() };
                // 15 degrees of freedom: 37.7 is passed once in a thousand.
                let chi = chi_squared(&logits, temperature, &all, &choices(&logits, &options, n));
                assert!(chi < 37.7, "chi squared is {chi} with seed {seed} at {temperature}");
                let mut order = all.clone();
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                let options = SamplingOptions { top_k: 5, ..options };
                let chi = chi_squared(&logits, temperature, &order[..5], &choices(&logits, &options, n));
                assert!(chi < 18.5, "chi squared of top-k is {chi} with seed {seed} at {temperature}");
            }
        }
    }

    #[test]
    fn seeds_and_positions_are_independent() {
        let logits = vec![0.0; 4];
        let of =
            |seed| choices(&logits, &SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::default() }, 40_000);
        let check = |pairs: Vec<(u32, u32)>, name: &str| {
            let chi: f64 = (0..16)
                .map(|cell| {
                    let seen = pairs.iter().filter(|pair| pair.0 * 4 + pair.1 == cell).count() as f64;
                    let expected = pairs.len() as f64 / 16.0;
                    (seen - expected).powi(2) / expected
                })
                .sum();
            assert!(chi < 37.7, "chi squared of {name} is {chi}");
        };
        let first = of(0);
        check(first.windows(2).map(|pair| (pair[0], pair[1])).collect(), "neighbours");
        for seed in [1, 2, 1 << 16, u32::MAX] {
            check(first.iter().copied().zip(of(seed)).collect(), "seeds");
        }
    }

    #[test]
    fn no_choice_is_argmax() {
        for seed in 0..50 {
            let mut logits = logits(700, seed);
            let want = argmax(&logits);
            let hot = SamplingOptions { temperature: 2.0, seed, ..SamplingOptions::default() };
            for options in [
                SamplingOptions { top_k: 1, ..hot.clone() },
                SamplingOptions { top_p: 0.001, ..hot.clone() },
                SamplingOptions { min_p: 1.0, ..hot.clone() },
                // A bias that changes nothing, so that the sampler runs at temperature 0.
                SamplingOptions { temperature: 0.0, logit_bias: vec![(5, 0.0)], ..hot },
            ] {
                let sampling = options.resolve(700).unwrap().unwrap();
                assert_eq!(choose(&mut logits, &sampling, &[1, 2], 1, &[]), want, "{options:?}");
            }
        }
        let none = SamplingOptions { temperature: 1.0, ..SamplingOptions::default() }.resolve(3).unwrap().unwrap();
        assert_eq!(choose(&mut [f32::NAN; 3], &none, &[1], 1, &[]), 0);
    }
}
